"""Committed offsets of groups, copied between real brokers in this process: what is written, and what is left alone."""

from typing import Any

import pytest
import trio

from pipeline.client.admin.groups import CommittedOffset, commit_offsets, delete_group, fetch_offsets
from pipeline.client.admin.many_groups import find_live_brokers
from pipeline.client.admin.topics import delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.errors import ConfigurationError, NetworkError
from pipeline.mirror.groups import offset_copier, offset_writer
from pipeline.mirror.groups.offset_journal import GroupOffsetJournal
from pipeline.mirror.groups.offset_plan import MAX_MARKS
from pipeline.mirror.groups.offset_writer import GroupOffsetWriter
from pipeline.model import BrokerId, TopicPartition
from tests.support import mirrors
from tests.support.brokers import clock
from tests.support.group_moves import (
    COPYING,
    after_a_round,
    commit,
    committed_offsets,
    groups_status,
    until_committed,
    until_left_alone,
)
from tests.support.mirrors import CLICKS, NOBODY, Site, make, publish, until, until_copied

MOVED_ON = {"group": "g", "topic": "clicks", "partition": 0, "reason": "moved on at the hub"}


async def fill(site: Site, *values: bytes) -> None:
    await make(site.east)
    await publish(site.east, *(values or (b"a", b"b", b"c", b"d")))


async def test_groups_are_not_copied_unless_the_settings_say_so(site: Site) -> None:
    await fill(site, b"a")
    await commit(site.east, "g", 1)
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a")
        assert [source["groups"] for source in service.status()["sources"]] == [None, None]
    assert await committed_offsets(site.hub, "g") == {}
    assert "_mirror_group_offsets" not in (await site.hub.fetch_all_topics()).topics


@pytest.mark.parametrize("jump_ms", [-5 * 3_600_000, 10 * 365 * 24 * 3_600_000])
async def test_the_age_of_a_round_does_not_follow_the_wall_clock(
    site: Site, monkeypatch: pytest.MonkeyPatch, jump_ms: int
) -> None:
    jumps = [0]
    monkeypatch.setattr(mirrors, "clock", lambda: clock() + jumps[-1])
    await fill(site, b"a")
    async with site.mirroring(group_offsets_enabled=True, group_offsets_interval_ms=3_600_000) as service:
        await until(lambda: groups_status(service)["age_seconds"] is not None)
        jumps.append(jump_ms)
        await until(lambda: groups_status(service)["age_seconds"] > 0.1)
        assert groups_status(service)["age_seconds"] < 3600


async def test_the_age_of_a_round_counts_from_its_beginning(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[float] = []

    async def find_slowly(source: Cluster, *, timeout_s: float) -> list[BrokerId]:
        found = await find_live_brokers(source, timeout_s=timeout_s)
        began.append(trio.current_time())
        await until(lambda: trio.current_time() > began[0] + 0.2)
        return found

    monkeypatch.setattr(offset_copier, "find_live_brokers", find_slowly)
    await fill(site, b"a")
    async with site.mirroring(group_offsets_enabled=True, group_offsets_interval_ms=3_600_000) as service:
        await until(lambda: groups_status(service)["age_seconds"] is not None)
        assert groups_status(service)["age_seconds"] > 0.2


async def test_an_offset_comes_with_its_metadata_byte_for_byte(site: Site) -> None:
    await fill(site)
    note = "näch\tste \U0001f600" + "x" * 3000
    await commit_offsets(site.east, "g", {CLICKS: CommittedOffset(offset=3, leader_epoch=0, metadata=note)})
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 3})
        await after_a_round(service)
        assert groups_status(service)["copied"] == 1
        assert site.metrics.get_sample_value("mirror_group_offsets_copied_total", {"source": "east"}) == 1
        age = site.metrics.get_sample_value("mirror_group_offsets_age_seconds", {"source": "east"})
        assert age is not None
        assert 0 <= age < 60
    assert await fetch_offsets(site.hub, "g") == {CLICKS: CommittedOffset(offset=3, metadata=note)}


@pytest.mark.long
async def test_two_sources_have_a_group_of_one_name(site: Site) -> None:
    await fill(site)
    async with site.mirroring(**COPYING) as service:
        await until_copied(site.hub, CLICKS, b"a", b"b", b"c", b"d")
        await make(site.west)
        await publish(site.west, b"w", b"x")
        await until_copied(site.hub, TopicPartition("clicks", 1), b"w", b"x")
        await commit(site.east, "g", 3)
        await commit(site.west, "g", 1)
        await until_committed(site.hub, "g", {0: 3, 1: 1})
        await commit(site.west, "g", 2)
        await until_committed(site.hub, "g", {0: 3, 1: 2})
        assert groups_status(service)["left_alone"] == groups_status(service, "west")["left_alone"] == []


async def test_an_offset_waits_until_the_replica_has_reached_it(site: Site) -> None:
    await fill(site, b"a")
    await commit(site.east, "g", 2)
    await commit(site.east, "other", 1)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "other", {0: 1})
        await until(lambda: groups_status(service)["waiting"] == 1)
        assert await committed_offsets(site.hub, "g") == {}
        await publish(site.east, b"b")
        await until_committed(site.hub, "g", {0: 2})
        await until(lambda: groups_status(service)["waiting"] == 0)


async def test_groups_are_chosen_by_their_names(site: Site) -> None:
    await fill(site)
    for group in ("app-1", "app-2", "other"):
        await commit(site.east, group, 1)
    async with site.mirroring(groups=["app-.*"], groups_exclude=[".*-2"], **COPYING) as service:
        await until_committed(site.hub, "app-1", {0: 1})
        await after_a_round(service)
    assert [await committed_offsets(site.hub, group) for group in ("app-2", "other")] == [{}, {}]


async def test_a_bad_pattern_is_refused(site: Site) -> None:
    with pytest.raises(ConfigurationError, match=r"groups\.exclude"):
        async with site.mirroring(groups_exclude=["("], **COPYING):
            pass


@pytest.mark.long
async def test_an_offset_that_somebody_committed_at_the_hub_is_left_alone(site: Site) -> None:
    await fill(site)
    await commit(site.east, "g", 1)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 1})
        await commit(site.hub, "g", 3)
        await commit(site.east, "g", 2)
        await until_left_alone(service, MOVED_ON)
        assert await committed_offsets(site.hub, "g") == {0: 3}
    async with site.mirroring(**COPYING) as service:
        await until_left_alone(service, MOVED_ON)
        assert await committed_offsets(site.hub, "g") == {0: 3}


async def test_a_group_that_the_hub_had_before_is_left_alone(site: Site) -> None:
    await fill(site)
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a", b"b", b"c", b"d")
    await commit(site.hub, "g", 4)
    await commit(site.east, "g", 2)
    async with site.mirroring(**COPYING) as service:
        await until_left_alone(service, MOVED_ON)
    assert await committed_offsets(site.hub, "g") == {0: 4}


@pytest.mark.long
async def test_a_group_that_was_deleted_at_the_hub_is_copied_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_copier, "FULL_CHECK_ROUNDS", 3)
    await fill(site)
    await commit(site.east, "g", 2)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 2})
        await commit(site.hub, "g", 3)
        await until_left_alone(service, MOVED_ON)
        await delete_group(site.hub, "g")
        await until_committed(site.hub, "g", {0: 2})
        await until_left_alone(service)


async def test_a_mirror_that_starts_again_recognises_its_commits(site: Site) -> None:
    await fill(site)
    await commit(site.east, "g", 1, metadata="note")
    async with site.mirroring(**COPYING):
        await until_committed(site.hub, "g", {0: 1})
    await commit(site.east, "g", 3)
    async with site.mirroring(**COPYING):
        await until_committed(site.hub, "g", {0: 3})
    await commit(site.east, "g", 0)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 0})
        assert groups_status(service)["left_alone"] == []


@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_mirror_killed_between_journal_and_commit_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """The second commit is the last that the first mirror sends, or the first that it no longer sends."""
    await fill(site)
    await commit(site.east, "g", 1)
    async with site.mirroring(**COPYING):
        await until_committed(site.hub, "g", {0: 1})
        reached, commit_group = trio.Event(), GroupOffsetWriter._commit

        async def die(writer: GroupOffsetWriter, coordinator: Any, group: Any, plan: Any, *rest: Any) -> None:
            if plan.writes:
                if is_committed:
                    await commit_group(writer, coordinator, group, plan, *rest)
                reached.set()
                await trio.sleep_forever()

        with monkeypatch.context() as patch:
            patch.setattr(GroupOffsetWriter, "_commit", die)
            await commit(site.east, "g", 2)
            await reached.wait()
    assert await committed_offsets(site.hub, "g") == {0: 2 if is_committed else 1}
    await commit(site.east, "g", 3)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 3})
        assert groups_status(service)["left_alone"] == []


@pytest.mark.long
async def test_two_mirrors_at_once_do_not_take_each_other_for_somebody_else(site: Site) -> None:
    await fill(site, *(b"%d" % number for number in range(20)))
    async with site.mirroring(**COPYING) as first, site.mirroring(**COPYING) as second:
        # No more commits than marks are kept: a commit that arrives later than that is one of somebody else.
        for offset in range(1, MAX_MARKS + 1):
            for group in ("g", "h"):
                await commit(site.east, group, offset)
            await trio.sleep(0.03)
        await until_committed(site.hub, "g", {0: MAX_MARKS})
        await until_committed(site.hub, "h", {0: MAX_MARKS})
        await until_left_alone(first)
        await until_left_alone(second)


@pytest.mark.long
async def test_offsets_of_a_recreated_topic_are_not_copied(site: Site) -> None:
    await fill(site)
    await commit(site.east, "g", 4)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 4})
        await delete_topics(site.east, ["clicks"])
        await fill(site, b"new")
        await commit(site.east, "g", 1)
        await after_a_round(service)
        assert await committed_offsets(site.hub, "g") == {0: 4}
    async with site.mirroring(**COPYING) as service:
        await after_a_round(service)
        assert await committed_offsets(site.hub, "g") == {0: 4}


@pytest.mark.long
async def test_a_source_that_is_away_does_not_hold_up_the_groups_of_others(site: Site) -> None:
    async with open_cluster(NOBODY) as away:
        site.west = away
        await fill(site)
        await commit(site.east, "g", 2)
        async with site.mirroring(**COPYING) as service:
            await until_committed(site.hub, "g", {0: 2})
            await until(lambda: "no broker" in groups_status(service, "west")["error"])
            await until(lambda: groups_status(service)["error"] is None)
            assert groups_status(service, "west")["age_seconds"] is None


async def test_a_coordinator_of_the_hub_that_does_not_answer_is_shown_and_asked_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(site)
    request = Cluster.request

    async def fail(cluster: Cluster, broker: Any, message: Any, **options: Any) -> Any:
        if cluster is site.hub and options.get("lane") == "groups":
            raise NetworkError("broker 1 is on strike")
        return await request(cluster, broker, message, **options)

    async with site.mirroring(**COPYING) as service:
        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "request", fail)
            await commit(site.east, "g", 2)
            await until(lambda: "on strike" in (groups_status(service)["error"] or ""))
        await until_committed(site.hub, "g", {0: 2})
        await until(lambda: groups_status(service)["error"] is None)


@pytest.mark.long
async def test_many_groups_are_copied_in_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_copier, "MAX_PAGE_GROUPS", 7)
    await fill(site)
    groups = [f"group-{number}" for number in range(50)]
    for group in groups:
        await commit(site.east, group, 2)
    async with site.mirroring(**COPYING) as service:
        await until(lambda: groups_status(service)["copied"] == len(groups))
        await after_a_round(service)
        assert groups_status(service)["copied"] == len(groups)
    assert [await committed_offsets(site.hub, group) for group in groups] == [{0: 2}] * len(groups)


@pytest.mark.long
async def test_marks_of_a_group_that_is_gone_from_both_clusters_are_removed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_copier, "FULL_CHECK_ROUNDS", 2)
    journals: list[GroupOffsetJournal] = []
    read_on = GroupOffsetJournal.read_on

    async def note(journal: GroupOffsetJournal) -> None:
        journals.append(journal)
        await read_on(journal)

    monkeypatch.setattr(GroupOffsetJournal, "read_on", note)
    await fill(site)
    await commit(site.east, "g", 2)
    await commit(site.east, "stays", 2)
    async with site.mirroring(**COPYING) as service:
        await until_committed(site.hub, "g", {0: 2})
        await until_committed(site.hub, "stays", {0: 2})
        await delete_group(site.east, "g")
        await after_a_round(service)  # a round that has read the group in the source would write it again
        assert set(journals[-1].groups_of("east")) == {"g", "stays"}
        await delete_group(site.hub, "g")
        await until(lambda: journals[-1].groups_of("east") == ["stays"])


@pytest.mark.long
async def test_a_mirror_that_was_stopped_before_its_commit_overwrites_no_group_that_moved_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, moved_at = GroupOffsetJournal.append, 0.0

    async def append_and_stop(journal: GroupOffsetJournal, records: Any) -> None:
        nonlocal moved_at
        await append(journal, records)
        if records and not moved_at:
            await commit(site.hub, "g", 3)
            moved_at = trio.current_time()
            await until(lambda: trio.current_time() > moved_at + 0.2)

    monkeypatch.setattr(GroupOffsetJournal, "append", append_and_stop)
    monkeypatch.setattr(offset_writer, "OUTDATED_AFTER_S", 0.2)
    await fill(site)
    await commit(site.east, "g", 1)
    async with site.mirroring(**COPYING) as service:
        await until_left_alone(service, MOVED_ON)
        assert await committed_offsets(site.hub, "g") == {0: 3}
