"""Topics that were deleted and created again at their source: the new topic is copied into partitions of its own."""

from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import delete_topics
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import PipelineError
from pipeline.mirror.copying.resume import NotHaltedError, ResumeRequest
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import GAPS_TOPIC, UNKNOWN_LAST, Gap, GapReason
from pipeline.mirror.journals.table import PartitionTable, Proposal, SourcePartition, decode_proposal
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.provenance import MIRROR_PARTITIONS, Provenance
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import clock
from tests.support.group_moves import COPYING, commit, committed_offsets, until_committed
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    Site,
    make,
    publish,
    read,
    reason_of,
    settings_of,
    until,
    until_copied,
    until_said,
)

NEW = TopicPartition("clicks", 1)
OLDS = (b"old", b"older", b"oldest")


async def recreate(site: Site, *values: bytes, partitions: int = 1) -> None:
    await delete_topics(site.east, ["clicks"])
    await make(site.east, partitions=partitions)
    for partition in range(partitions):
        await publish(site.east, *values, partition=partition)


async def copy_old(site: Site, partitions: int = 1) -> None:
    await make(site.east, partitions=partitions)
    for partition in range(partitions):
        await publish(site.east, *OLDS, partition=partition)
    async with site.mirroring():
        for partition in range(partitions):
            await until_copied(site.hub, TopicPartition("clicks", partition), *OLDS)


async def ledger_of(site: Site) -> list[Gap]:
    journal = GapJournal(site.hub, clock=clock, rng=Random(1))
    if GAPS_TOPIC not in (await site.hub.fetch_all_topics()).topics:
        return []
    await journal.read_on()
    return list(journal.ledger)


def state_of(service: MirrorService, partition: int = 0) -> str:
    (source,) = (each for each in service.status()["sources"] if each["name"] == "east")
    (line,) = (each for each in source["partitions"] if each["partition"] == partition)
    return str(line["state"])


async def test_x3_a_recreated_topic_is_told_apart_by_its_id_and_copied_into_a_partition_of_its_own(site: Site) -> None:
    await copy_old(site)
    (old_id,) = (topic.id for topic in (await site.east.fetch_all_topics()).topics.values() if topic.name == "clicks")
    await recreate(site, b"new")
    for _ in range(2):  # also after a restart
        async with site.mirroring() as service:
            await until_said(service, "--skip --source east clicks-0")
            assert "clicks-0 is the copy of the old topic" in str(reason_of(service))
            assert state_of(service) == "halted"
            (shown,) = await service.resumption.resume(ResumeRequest(names=["clicks"]))
            assert (shown["reason"], shown["first"], shown["last"]) == ("recreated", 3, None)
    assert await ledger_of(site) == []
    async with site.mirroring() as service:
        await until_said(service, "--skip --source east clicks-0")
        await service.resumption.resume(ResumeRequest(names=["clicks-0"], skip=True))
        await until_copied(site.hub, NEW, b"new")
        await until(lambda: reason_of(service) is None)
        await publish(site.east, b"newer")
        await until_copied(site.hub, NEW, b"new", b"newer")
    async with site.mirroring():  # nothing has to be said again
        await publish(site.east, b"newest")
        await until_copied(site.hub, NEW, b"new", b"newer", b"newest")
    assert await read(site.hub, CLICKS) == list(enumerate(OLDS))
    (gap,) = await ledger_of(site)
    assert (gap.reason, gap.first, gap.last, gap.topic_id) == (GapReason.RECREATED, 3, UNKNOWN_LAST, old_id)
    provenance = Provenance.parse((await settings_of(site.hub))[MIRROR_PARTITIONS])
    old, new = provenance.origin_of(0), provenance.origin_of(1)
    assert old is not None
    assert new is not None
    assert (old.topic_id, old.partition, new.partition) == (old_id, 0, 0)
    assert new.topic_id == site.east.view.topics["clicks"].id != old_id


@pytest.mark.long
async def test_recreated_topics_are_skipped_if_the_settings_say_so_also_again_and_again(site: Site) -> None:
    await copy_old(site, partitions=2)
    async with site.mirroring(gap_policy="skip"):
        for generation in range(1, 4):  # under the running mirror
            await recreate(site, b"%d" % generation, b"x", partitions=2)
            for partition in (0, 1):
                replica = TopicPartition("clicks", 2 * generation + partition)
                await until_copied(site.hub, replica, b"%d" % generation, b"x")
    for partition in (0, 1):
        assert await read(site.hub, TopicPartition("clicks", partition)) == list(enumerate(OLDS))
    gaps = await ledger_of(site)
    assert [(gap.partition.partition, gap.replica.partition, gap.first) for gap in gaps] == [
        (0, 0, 3),
        (1, 1, 3),
        *((partition, 2 * generation + partition, 2) for generation in (1, 2) for partition in (0, 1)),
    ]
    assert {gap.reason for gap in gaps} == {GapReason.RECREATED}


@pytest.mark.long
async def test_partitions_are_resumed_one_by_one_and_others_of_the_new_topic_are_copied_at_once(site: Site) -> None:
    await copy_old(site, partitions=2)
    await recreate(site, b"new", partitions=3)
    async with site.mirroring() as service:
        await until_copied(site.hub, TopicPartition("clicks", 2), b"new")  # the old topic had no such partition
        await until_said(service, "--source east clicks-1", partition=1)
        await service.resumption.resume(ResumeRequest(names=["clicks-1"], skip=True))
        await until_copied(site.hub, TopicPartition("clicks", 3), b"new")
        assert state_of(service, 0) == "halted"
    async with site.mirroring() as service:
        await until_said(service, "--source east clicks-0", partition=0)
        await service.resumption.resume(ResumeRequest(names=["clicks"], skip=True))
        await until_copied(site.hub, TopicPartition("clicks", 4), b"new")
    assert await read(site.hub, CLICKS) == list(enumerate(OLDS))


@pytest.mark.long
async def test_a_mirror_killed_after_the_ledger_was_written_goes_on_with_the_new_topic(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded end of the old topic is the permission."""
    await copy_old(site)
    await recreate(site, b"new")
    async with site.mirroring(refresh_interval_ms=3_000) as service:
        await until_said(service, "--skip --source east clicks-0")
        await service.resumption.resume(ResumeRequest(names=["clicks-0"], skip=True))
        assert len((await site.hub.fetch_all_topics()).topics["clicks"].partitions) == 1
    async with site.mirroring():
        await until_copied(site.hub, NEW, b"new")


async def test_nothing_of_the_new_topic_is_copied_while_the_ledger_cannot_be_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await copy_old(site)
    await recreate(site, b"new")
    async with site.mirroring(gap_policy="skip") as service:
        failed = trio.Event()

        async def fail(_gap: Gap) -> None:
            failed.set()
            raise PipelineError("the ledger is on strike")

        with monkeypatch.context() as patch:
            patch.setattr(service.gaps, "record", fail)
            with trio.fail_after(DEADLINE_S):
                await failed.wait()
                await until(lambda: "on strike" in (service.status()["sources"][0]["error"] or ""))
            assert len((await site.hub.fetch_all_topics()).topics["clicks"].partitions) == 1
        await until_copied(site.hub, NEW, b"new")
    assert len(await ledger_of(site)) == 1


@pytest.mark.long
async def test_an_old_answer_of_the_source_neither_ends_nor_replaces_the_new_topic(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of the source may lag behind the others."""
    await copy_old(site)
    old = await site.east.fetch_all_topics()
    fetch, old_answers = site.east.fetch_all_topics, 0

    async def lag_behind(**_settings: float) -> ClusterMetadata:
        nonlocal old_answers
        old_answers += 1
        return old

    await recreate(site, b"new")
    async with site.mirroring(gap_policy="skip") as service:
        await until_copied(site.hub, NEW, b"new")
        with monkeypatch.context() as patch:
            patch.setattr(site.east, "fetch_all_topics", lag_behind)
            await until(lambda: old_answers >= 4)
        assert (await fetch()).topics["clicks"].id != old.topics["clicks"].id
        await publish(site.east, b"newer")
        await until_copied(site.hub, NEW, b"new", b"newer")
        assert len(service.gaps.ledger) == 1
    async with site.mirroring(gap_policy="skip") as service:
        with monkeypatch.context() as patch:
            patch.setattr(site.east, "fetch_all_topics", lag_behind)
            await until(lambda: old_answers >= 8)
        await publish(site.east, b"newest")
        await until_copied(site.hub, NEW, b"new", b"newer", b"newest")
    assert (await site.hub.fetch_all_topics()).topics["clicks"].partitions.keys() == {0, 1}


async def test_a_single_old_answer_ends_nothing_if_gaps_are_skipped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer has the id of an earlier topic that the mirror has never seen."""
    await make(site.east)
    await publish(site.east, *OLDS)
    async with site.mirroring(gap_policy="skip") as service:
        await until_copied(site.hub, CLICKS, *OLDS)
        fetch = site.east.fetch_all_topics
        answers: list[ClusterMetadata] = []

        async def lag_behind_once(*, timeout_s: float = DEADLINE_S) -> ClusterMetadata:
            found = await fetch(timeout_s=timeout_s)
            if not answers:
                earlier = replace(found.topics["clicks"], id=UUID(int=7))
                found = replace(found, topics={**found.topics, "clicks": earlier})
            answers.append(found)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(site.east, "fetch_all_topics", lag_behind_once)
            await until(lambda: len(answers) >= 4)
        await publish(site.east, b"next")
        await until_copied(site.hub, CLICKS, *OLDS, b"next")
        assert len(service.gaps.ledger) == 0


async def test_an_old_answer_that_is_compared_with_a_newer_entry_offers_no_gap_to_skip(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror asked the source, and then could not reach the hub until another mirror had copied the new topic."""
    await make(site.east)
    old = await site.east.fetch_all_topics()
    await recreate(site, *OLDS)
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, *OLDS)
    fetch, may_ask = site.east.fetch_all_topics, trio.Event()
    answers = [old]

    async def answer_late(*, timeout_s: float = DEADLINE_S) -> ClusterMetadata:
        if answers:
            return answers.pop()
        await may_ask.wait()
        return await fetch(timeout_s=timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(site.east, "fetch_all_topics", answer_late)
        async with site.mirroring() as service:
            await until_said(service, "clicks-0 is the copy of the old topic")
            assert state_of(service) == "halted"
            for _ in range(3):  # as long as nobody has asked again
                with pytest.raises(NotHaltedError, match="asked again before that counts"):
                    await service.resumption.resume(ResumeRequest(names=["clicks"], skip=True))
            may_ask.set()
            await publish(site.east, b"next")
            await until_copied(site.hub, CLICKS, *OLDS, b"next")
            await until(lambda: reason_of(service) is None)
    assert await ledger_of(site) == []
    assert (await site.hub.fetch_all_topics()).topics["clicks"].partitions.keys() == {0}


@pytest.mark.long
async def test_two_mirrors_give_the_new_topic_one_partition(site: Site) -> None:
    await copy_old(site)
    async with site.mirroring(gap_policy="skip"), site.mirroring(gap_policy="skip") as other:
        await recreate(site, b"new", b"newer")
        await until_copied(site.hub, NEW, b"new", b"newer")
        await until(lambda: reason_of(other) is None)
        await publish(site.east, b"newest")
        await until_copied(site.hub, NEW, b"new", b"newer", b"newest")
    assert (await site.hub.fetch_all_topics()).topics["clicks"].partitions.keys() == {0, 1}
    assert len(await ledger_of(site)) == 1


@pytest.mark.long
@pytest.mark.parametrize("is_group", [False, True], ids=["alone", "group"])
async def test_a_topic_that_is_created_again_while_another_mirror_goes_on_ends_where_its_own_replica_does(
    site: Site, is_group: bool
) -> None:
    await copy_old(site)
    async with MemoryZooKeeper().open() as client, site.mirroring(client if is_group else None) as service:
        await publish(site.east, b"last")
        await until_copied(site.hub, CLICKS, *OLDS, b"last")
        ids = []
        for value in (b"second", b"third"):
            ids.append((await site.east.fetch_all_topics()).topics["clicks"].id)
            await recreate(site, value)
        await until_said(service, "--skip --source east clicks-0")
        table = TableJournal(site.hub, lambda _records: None)
        await table.read_on()
        second = SourcePartition(cluster="east", partition=CLICKS, topic_id=ids[1])
        proposal = Proposal(source=second, replica_topic="clicks", replaces=ids[0])
        await table.propose([proposal], clock=clock, rng=Random(1))

        def halt() -> dict[str, Any]:
            return service.status()["sources"][0]["partitions"][0]["halt"] or {}

        await until(lambda: halt().get("topic_id") == str(ids[1]))
        assert (halt()["replica_partition"], halt()["first"]) == (1, 0)
        await service.resumption.resume(ResumeRequest(names=["clicks"], skip=True))
        await until_copied(site.hub, TopicPartition("clicks", 2), b"third")


@pytest.mark.long
async def test_gaps_of_the_old_topic_do_not_hold_for_the_new_one(site: Site) -> None:
    """The old copy has a gap at offsets that the new topic has records at."""
    await copy_old(site)
    await publish(site.east, b"3", b"4", b"5")
    await delete_records(site.east, {CLICKS: 5}, timeout_s=DEADLINE_S)
    async with site.mirroring(gap_policy="skip"):
        found: list[tuple[int, bytes | None]] = []
        with trio.fail_after(DEADLINE_S):
            while not found or found[-1][0] != 5:
                found = await read(site.hub, CLICKS)
        values = [b"n%d" % number for number in range(8)]
        await recreate(site, *values)
        await until_copied(site.hub, NEW, *values)
    assert [gap.reason for gap in await ledger_of(site)] == [GapReason.RETENTION, GapReason.RECREATED]


@pytest.mark.long
async def test_offsets_of_groups_go_to_the_topic_that_they_were_committed_for(site: Site) -> None:
    await copy_old(site)
    await commit(site.east, "g", 3)
    async with site.mirroring(**COPYING, gap_policy="skip"):
        await until_committed(site.hub, "g", {0: 3})
        await recreate(site, b"a", b"b", b"c", b"d")
        await until_copied(site.hub, NEW, b"a", b"b", b"c", b"d")
        await commit(site.east, "g", 2)
        await until_committed(site.hub, "g", {0: 3, 1: 2})
        await commit(site.east, "other", 4)
        await until_committed(site.hub, "other", {1: 4})
    assert await committed_offsets(site.hub, "g") == {0: 3, 1: 2}


@pytest.mark.long
async def test_offsets_of_a_halted_topic_are_not_copied(site: Site) -> None:
    await copy_old(site)
    await recreate(site, b"a", b"b", b"c", b"d", partitions=2)
    async with site.mirroring(**COPYING) as service:
        await until_said(service, "--skip --source east clicks-0")
        await commit(site.east, "g", 2)
        await commit(site.east, "g", 1, partition=1)
        await until_committed(site.hub, "g", {1: 1})  # a partition that the old topic did not have
        await service.resumption.resume(ResumeRequest(names=["clicks-0"], skip=True))
        await until_committed(site.hub, "g", {1: 1, 2: 2})


@pytest.mark.parametrize("replaced", [UUID(int=3), UUID(int=9)], ids=["the newest", "another"])
def test_a_record_replaces_the_newest_topic_alone(replaced: UUID) -> None:
    def proposal(topic_id: int, replaces: UUID | None = None) -> Proposal:
        source = SourcePartition(cluster="east", partition=CLICKS, topic_id=UUID(int=topic_id))
        proposed = Proposal(source=source, replica_topic="clicks", replaces=replaces)
        assert decode_proposal(proposed.encode()[1]) == proposed
        return proposed

    table = PartitionTable()
    for each in (proposal(1), proposal(2), proposal(3, UUID(int=1)), proposal(4, UUID(int=1)), proposal(5, replaced)):
        table.apply(each)
    newest = [entry.source.topic_id.int for entry in table.newest_assignments()]
    entries = [(entry.source.topic_id.int, entry.replica.partition) for entry in table.assignments()]
    is_newest = replaced == UUID(int=3)
    assert newest == [5 if is_newest else 3]
    assert entries == [(1, 0), (3, 1)] + ([(5, 2)] if is_newest else [])
    assert table.missing([proposal(6, replaced)]) == []
    assert len(table.missing([proposal(6, UUID(int=newest[0]))])) == 1
    assert table.missing([proposal(1, UUID(int=newest[0]))]) == []  # replaced before
