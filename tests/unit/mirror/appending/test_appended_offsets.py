"""A mirror that appends: what it copies when it dies, when others write, and when the destination loses something."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.errors import ConfigurationError
from pipeline.mirror.appending import appended_offsets
from pipeline.mirror.appending.appended_offsets import LATE_S
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.offset_map import OFFSET_MAP_TOPIC, OffsetMapEntry, PlannedBatch
from pipeline.mirror.journals.offset_map_journal import OffsetMapJournal
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.protocol.messages.produce import FIRST_VERSION_OF_TOPIC_IDS, ProduceRequest
from tests.support.brokers import clock
from tests.support.mirror_deaths import Death
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    Site,
    make,
    mirror_settings,
    publish,
    read,
    reason_of,
    settings_of,
    until,
    until_copied,
    until_said,
)

VALUES = [b"%d" % number for number in range(6)]


def lag(service: MirrorService, topic: str = "clicks") -> Any:
    lines = [line for line in service.status()["sources"][0]["partitions"] if line["topic"] == topic]
    return lines[0]["lag"] if lines else None


async def values_of(site: Site, topic: str = "clicks") -> list[bytes | None]:
    return [value for _, value in await read(site.hub, TopicPartition(topic, 0))]


@asynccontextmanager
async def other_client(site: Site) -> AsyncIterator[Cluster]:
    """A client of the hub that the mirror knows nothing of."""
    async with open_cluster(site.hub.config) as hub:
        yield hub


async def replace_topic(hub: Cluster) -> None:
    await delete_topics(hub, ["clicks"])
    with trio.fail_after(DEADLINE_S):
        while CLICKS.topic in (await hub.fetch_all_topics()).topics:
            await trio.sleep(0.02)
    await make(hub)


async def test_a_mirror_that_dies_at_any_change_of_the_destination_doubles_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 40):
        topic = f"clicks-{number}"
        await make(site.east, topic)
        await publish(site.east, *VALUES[:3], topic=topic)
        death = Death(site.hub.request, number)
        with monkeypatch.context() as patched:
            patched.setattr(site.hub, "request", death.request)
            async with site.mirroring(topics=[topic], destination_mode="append") as service:
                await until(lambda: death.came or lag(service, topic) == 0)  # noqa: B023
        await publish(site.east, *VALUES[3:], topic=topic)
        async with site.mirroring(topics=[topic], destination_mode="append") as service:
            await until(lambda: lag(service, topic) == 0)  # noqa: B023
        assert await values_of(site, topic) == VALUES
        if not death.came:
            assert number > 5
            return
    pytest.fail("the mirror had not copied everything after so many changes")


@pytest.mark.long
async def test_two_mirrors_and_other_producers_do_no_harm(site: Site) -> None:
    await make(site.east)
    async with (
        site.mirroring(destination_mode="append") as first,
        site.mirroring(destination_mode="append") as second,
    ):
        for number in range(6):
            await publish(site.east, *(b"%d.%d" % (number, part) for part in range(4)))
            await until(lambda: lag(first) == lag(second) == 0)
            await publish(site.hub, b"other")
    expected = [b"%d.%d" % (number, part) for number in range(6) for part in range(4)]
    values = await values_of(site)
    assert [value for value in values if value != b"other"] == expected
    assert values.count(b"other") == 6
    async with site.mirroring(destination_mode="append") as service:
        await publish(site.east, b"last")
        await until(lambda: lag(service) == 0)
    assert (await values_of(site))[-1] == b"last"


async def test_a_place_that_was_confirmed_long_ago_is_located_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appended_offsets, "CONFIRMED_FOR_S", 0.3)
    await make(site.east)
    async with site.mirroring(destination_mode="append") as service:
        for value in VALUES[:3]:
            await publish(site.east, value)
            await until(lambda: lag(service) == 0)
            await trio.sleep(0.4)
    assert await values_of(site) == VALUES[:3]


async def test_a_lost_offset_map_stops_the_partition(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES[:2])
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
    await delete_topics(site.hub, [OFFSET_MAP_TOPIC])
    with trio.fail_after(DEADLINE_S):
        while OFFSET_MAP_TOPIC in (await site.hub.fetch_all_topics()).topics:
            await trio.sleep(0.02)
    await publish(site.east, VALUES[2])
    async with site.mirroring(destination_mode="append") as service:
        await until_said(service, "the offset map has no entry of it")
        (line,) = service.status()["sources"][0]["partitions"]
        assert (line["state"], line["lag"]) == ("halted", None)
    assert await values_of(site) == VALUES[:2]


async def test_a_replica_that_was_deleted_is_copied_again(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES[:3])
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
        await delete_topics(site.hub, ["clicks"])
        with trio.fail_after(DEADLINE_S):
            while CLICKS.topic in (await site.hub.fetch_all_topics()).topics:
                await trio.sleep(0.02)
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
        await publish(site.east, *VALUES[3:])
        await until(lambda: lag(service) == 0)
    assert await values_of(site) == VALUES


async def test_a_topic_with_records_of_others_is_left_alone(site: Site) -> None:
    await make(site.east)
    await make(site.hub)
    await publish(site.hub, b"other")
    await publish(site.east, VALUES[0])
    async with site.mirroring(destination_mode="append") as service:
        await until_said(service, "clicks-0 has records, and the offset map has no entry of it")
    assert await values_of(site) == [b"other"]


async def test_a_replica_takes_settings_but_not_the_type_of_times(site: Site) -> None:
    await make(site.east, retention_ms="-1", message_timestamp_type="LogAppendTime")
    await publish(site.east, VALUES[0])
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
        assert reason_of(service) is None
    assert await settings_of(site.hub) == {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}


def test_offsets_of_groups_cannot_be_copied() -> None:
    with pytest.raises(ConfigurationError, match=r"needs destination\.mode"):
        MirrorConfig.from_settings(
            {
                "destination.bootstrap.servers": "hub:1",
                "destination.mode": "append",
                "sources": [{"name": "east", "bootstrap.servers": "east:1"}],
                "topics": ["clicks"],
                "http.listen": "127.0.0.1:0",
                "group.offsets.enabled": True,
            }
        )


async def test_a_replica_that_was_deleted_and_created_by_others_is_copied_again(site: Site) -> None:
    await make(site.east)
    async with (
        site.mirroring(destination_mode="append", refresh_interval_ms=3_600_000) as service,
        other_client(site) as hub,
    ):
        await publish(site.east, *VALUES[:3])
        await until(lambda: lag(service) == 0)
        await replace_topic(hub)
        await publish(site.east, VALUES[3])
        with trio.fail_after(DEADLINE_S):
            while len(values := await values_of(site)) < 4:
                assert values == VALUES[: len(values)]
                await trio.sleep(0.02)
        assert values == VALUES[:4]


async def leave_a_backlog(
    site: Site, service: MirrorService, monkeypatch: pytest.MonkeyPatch, *values: bytes
) -> Callable[[], None]:
    """Have the place of the replica recorded, then the values fetched. They are appended once the result is called."""
    record, is_recorded = OffsetMapJournal.record, trio.Event()

    async def record_and_note(journal: OffsetMapJournal, entries: Iterable[OffsetMapEntry]) -> None:
        due = list(entries)
        await record(journal, due)
        if not any(entry.planned for entry in due):
            is_recorded.set()

    with monkeypatch.context() as patched:
        patched.setattr(appended_offsets, "CHECKPOINT_S", 0.1)
        patched.setattr(OffsetMapJournal, "record", record_and_note)
        await publish(site.east, values[0])
        await is_recorded.wait()
    copier = service.sources["east"].copier
    append_more = copier._append_more
    monkeypatch.setattr(copier, "_append_more", lambda *_: None)
    await publish(site.east, *values[1:])
    await until(lambda: copier._queue.holds(CLICKS) and lag(service) == len(values) - 1)
    await until(lambda: copier._queue._waiting[CLICKS][-1].batches.next_offset == len(values))
    return lambda: monkeypatch.setattr(copier, "_append_more", append_more)


async def mirror_until(site: Site, event: trio.Event, *, task_status: trio.TaskStatus[MirrorService]) -> None:
    async with site.mirroring(destination_mode="append") as service:
        task_status.started(service)
        await event.wait()


@pytest.mark.long
@pytest.mark.parametrize("is_read_first", [True, False])
async def test_mirrors_that_die_while_one_locates_what_the_other_one_appends_leave_a_certain_place(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_read_first: bool
) -> None:
    values = [b"%d" % number for number in range(12)]
    await make(site.east)
    read_on = OffsetMapJournal.read_on
    is_sending = trio.Event()

    async def send_nothing(*_arguments: Any, **_settings: Any) -> Any:
        is_sending.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        killed = trio.Event()
        first: MirrorService = await nursery.start(mirror_until, site, killed)
        append_backlog = await leave_a_backlog(site, first, monkeypatch, *values[:-1])
        await publish(site.hub, b"other")  # a replica that ends behind its recorded place is searched
        monkeypatch.setattr(appended_offsets, "CHECKPOINT_S", 3600)

        async def read_on_as_the_other_appends(journal: OffsetMapJournal) -> None:
            monkeypatch.setattr(OffsetMapJournal, "read_on", read_on)
            if is_read_first:
                await read_on(journal)
            append_backlog()
            await until(lambda: lag(first) == 0)
            if is_read_first:
                monkeypatch.setattr(appended_offsets, "raw_produce", send_nothing)
            else:
                await read_on(journal)

        monkeypatch.setattr(OffsetMapJournal, "read_on", read_on_as_the_other_appends)
        async with site.mirroring(destination_mode="append") as second:
            await until(lambda: is_sending.is_set() or lag(second) == 0)
            killed.set()
            await until(lambda: not nursery.child_tasks)
            await publish(site.east, values[-1])
            await until(lambda: is_sending.is_set() or lag(second) == 0)
    monkeypatch.setattr(appended_offsets, "raw_produce", raw_produce)
    async with site.mirroring(destination_mode="append") as third:
        await until(lambda: lag(third) == 0)
    assert [value for value in await values_of(site) if value != b"other"] == values


async def test_a_topic_of_the_same_name_is_noticed_where_servers_know_topics_by_name_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProduceRequest, "VERSIONS", (0, FIRST_VERSION_OF_TOPIC_IDS - 1))
    await make(site.east)
    async with (
        site.mirroring(destination_mode="append", refresh_interval_ms=3_600_000) as service,
        other_client(site) as hub,
    ):
        await publish(site.east, *VALUES[:3])
        await until(lambda: lag(service) == 0)
        await replace_topic(hub)
        await publish(site.east, VALUES[3])
        await until_copied(hub, CLICKS, VALUES[3])
        await publish(site.east, VALUES[4])
        await until_said(service, "the topic clicks of the destination to have it copied again")
        await until_copied(hub, CLICKS, VALUES[3])


async def test_young_plans_are_not_compacted_away(site: Site) -> None:
    """A mirror that slept may write the last record of a replica, while another one sends what it has planned."""
    await make(site.east)
    async with site.mirroring(destination_mode="append") as service:
        await until(lambda: lag(service) == 0)
        assert int((await settings_of(site.hub, OFFSET_MAP_TOPIC))["min.compaction.lag.ms"]) >= 1000 * LATE_S


async def test_an_entry_that_is_read_while_another_one_is_written_stays_known(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    async with site.mirroring(destination_mode="append") as service:
        await publish(site.east, VALUES[0])
        await until(lambda: lag(service) == 0)
    config = CurrentConfig(MirrorConfig.from_settings(mirror_settings("east")))
    ours, theirs = (OffsetMapJournal(site.hub, config, clock=clock) for _ in range(2))
    for journal in (ours, theirs):
        await journal.open()
    (entry,) = ours._known.values()
    write = ours._write

    async def write_as_the_other_one_does(entries: Iterable[OffsetMapEntry]) -> None:
        await write(entries)
        await theirs.record([replace(entry, planned=(PlannedBatch(1, 7, 8),))])
        await ours.read_on()

    monkeypatch.setattr(ours, "_write", write_as_the_other_one_does)
    await ours.record([replace(entry, planned=(PlannedBatch(1, 2, 3),))])
    assert set(ours._known[entry.key].planned) >= {PlannedBatch(1, 7, 8), PlannedBatch(1, 2, 3)}
