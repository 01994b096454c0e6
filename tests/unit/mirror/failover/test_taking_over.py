"""A topic that fails over, returns, and fails over again: each time it has the partitions that it always had."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.cli.mirror.failover import read_table
from pipeline.client.admin.offsets import delete_records, list_offsets
from pipeline.client.admin.topics import delete_topics, list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.log.files import DiskFiles
from pipeline.mirror.config import GapPolicy
from pipeline.mirror.failover.failback import ReversedTopic, Reverser
from pipeline.mirror.failover.promotion import Promoter
from pipeline.mirror.failover.taking_over import take_over
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import GapReason, gap_of
from pipeline.mirror.journals.table import Assignment, Proposal
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.model import TopicPartition
from pipeline.protocol.errors import KafkaError
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import clock
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    Site,
    batch_at,
    make,
    mirroring_of,
    publish,
    read,
    token_of,
    until_copied,
    until_said,
)
from tests.support.request_deaths import dies_at

OTHER = TopicPartition("clicks", 1)


async def promote(cluster: Cluster, topic: str = "clicks") -> None:
    await Promoter(cluster, clock=clock, timeout_s=DEADLINE_S).promote(topic)


async def reverse(
    hub: Cluster, old: Cluster, source: str, hub_name: str, directory: Path, topic: str = "clicks"
) -> ReversedTopic:
    entries = await read_table(hub, [topic])
    reverser = Reverser(
        hub, old, source, hub_name, directory, DiskFiles(), clock=clock, rng=Random(1), timeout_s=DEADLINE_S
    )
    return await reverser.reverse(topic, entries, [])


async def newest_entries(site: Site) -> list[Assignment]:
    journal = TableJournal(site.hub, lambda _skipped: None)
    await journal.read_on()
    return journal.table.newest_assignments()


async def until_east_follows(site: Site, *values: bytes) -> None:
    async with mirroring_of(site.east, hub=site.hub):
        await until_copied(site.east, CLICKS, *values)
        await until_copied(site.east, OTHER, b"other")


async def copy_to_hub(site: Site) -> None:
    """Make the topic at east, with a record in each partition, and its replica in the hub."""
    await make(site.east, partitions=2)
    await publish(site.east, b"0")
    await publish(site.east, b"other", partition=1)
    async with site.mirroring():
        await until_copied(site.hub, OTHER, b"other")
        await until_copied(site.hub, CLICKS, b"0")


@pytest.mark.long
async def test_a_topic_goes_there_and_back_twice(site: Site, tmp_path: Path) -> None:
    await copy_to_hub(site)
    values = [b"0"]
    for trip in range(2):
        await promote(site.hub)
        values.append(b"hub %d" % trip)
        await publish(site.hub, values[-1])
        assert (await reverse(site.hub, site.east, "east", "hub", tmp_path / f"{trip}-there")).is_done
        await until_east_follows(site, *values)
        await promote(site.east)
        values.append(b"east %d" % trip)
        await publish(site.east, values[-1])
        back = await reverse(site.east, site.hub, "hub", "east", tmp_path / f"{trip}-back")
        assert list(back.ranges) == []
        async with site.mirroring():
            await until_copied(site.hub, CLICKS, *values)
            await until_copied(site.hub, OTHER, b"other")
        assert [entry.replica for entry in await newest_entries(site)] == [CLICKS, OTHER]
    assert await read(site.hub, CLICKS) == list(enumerate(values))


async def returned(site: Site, tmp_path: Path) -> None:
    """The topic was reversed, and is promoted at east; the hub's topic is not touched yet."""
    await copy_to_hub(site)
    await promote(site.hub)
    await reverse(site.hub, site.east, "east", "hub", tmp_path / "there")
    await until_east_follows(site, b"0")
    await promote(site.east)


async def takes_over(site: Site) -> bool:
    return await take_over(site.hub, site.east, "east", "clicks", clock=clock, rng=Random(1), timeout_s=DEADLINE_S)


@pytest.mark.long
async def test_a_replica_with_records_of_the_former_topic_is_not_taken_over(site: Site, tmp_path: Path) -> None:
    await returned(site, tmp_path)
    before = await newest_entries(site)
    assert not await takes_over(site)
    assert await newest_entries(site) == before


@pytest.mark.long
async def test_a_replica_with_gaps_is_not_taken_over(site: Site, tmp_path: Path) -> None:
    """A mirror would pass the offsets of the gap, at which the new topic has records."""
    await returned(site, tmp_path)
    entry, _ = await newest_entries(site)
    gaps = GapJournal(site.hub, clock=clock, rng=Random(1))
    await gaps.open()
    await gaps.record(gap_of(entry, 5, 9, GapReason.RETENTION, now_ms=clock()))
    await delete_topics(site.hub, ["clicks"], timeout_s=DEADLINE_S)
    await make(site.hub, partitions=2, mirror_source="east")
    assert not await takes_over(site)


@pytest.mark.long
@pytest.mark.parametrize("source", ["west", "hub"])
async def test_a_replica_of_another_source_is_not_taken_over(site: Site, tmp_path: Path, source: str) -> None:
    await returned(site, tmp_path)
    await delete_topics(site.hub, ["clicks"], timeout_s=DEADLINE_S)
    await make(site.hub, partitions=2, mirror_source="east")
    assert not await take_over(site.hub, site.east, source, "clicks", clock=clock, rng=Random(1), timeout_s=DEADLINE_S)
    assert await takes_over(site)
    assert await takes_over(site), "a repeated command says the same"


@pytest.mark.long
async def test_gaps_before_the_first_record_of_the_new_topic_are_no_obstacle(site: Site, tmp_path: Path) -> None:
    """Retention had deleted records before the topic was copied for the first time, and deletes more at the hub."""
    await make(site.east, partitions=2)
    await publish(site.east, b"deleted", b"0", b"1")
    await publish(site.east, b"other", partition=1)
    await delete_records(site.east, {CLICKS: 1}, timeout_s=DEADLINE_S)
    async with site.mirroring():
        await until_ends(site.hub, 3, 1)
    await promote(site.hub)
    await publish(site.hub, b"hub")
    await delete_records(site.hub, {CLICKS: 2}, timeout_s=DEADLINE_S)
    await reverse(site.hub, site.east, "east", "hub", tmp_path / "there")
    async with mirroring_of(site.east, hub=site.hub):
        await until_ends(site.east, 4, 1)
    await promote(site.east)
    await reverse(site.east, site.hub, "hub", "east", tmp_path / "back")
    async with site.mirroring():
        await until_ends(site.hub, 4, 1)
    assert [entry.replica for entry in await newest_entries(site)] == [CLICKS, OTHER]
    assert await read(site.hub, CLICKS) == await read(site.east, CLICKS) == [(2, b"1"), (3, b"hub")]


async def until_ends(cluster: Cluster, *ends: int) -> None:
    wanted = {TopicPartition("clicks", number): LATEST for number in range(len(ends))}
    with trio.fail_after(DEADLINE_S):
        while True:
            with suppress(KafkaError):
                found = await list_offsets(cluster, wanted, timeout_s=1)
                if tuple(listed.offset for _, listed in sorted(found.items())) == ends:
                    return
            await trio.sleep(0.02)


async def came_back(site: Site, tmp_path: Path) -> None:
    """The hub's topic is created again; the command was interrupted before anything was taken over."""
    await returned(site, tmp_path)
    await delete_topics(site.hub, ["clicks"], timeout_s=DEADLINE_S)
    await make(site.hub, partitions=2, mirror_source="east", mirror_partitions="[]")


@pytest.mark.long
@pytest.mark.parametrize("is_group", [False, True], ids=["alone", "group"])
async def test_a_mirror_that_sees_the_new_topic_first_goes_on_once_it_has_taken_over(
    site: Site, tmp_path: Path, is_group: bool
) -> None:
    """The mirror halts, and must not enter the deleted topic as the source of the new replica."""
    await came_back(site, tmp_path)
    async with MemoryZooKeeper().open() as client, site.mirroring(client if is_group else None) as mirror:
        await until_said(mirror, "To copy the new one")
        assert await takes_over(site)
        await until_copied(site.hub, CLICKS, b"0")
        await until_copied(site.hub, OTHER, b"other")
    assert [entry.replica for entry in await newest_entries(site)] == [CLICKS, OTHER]


async def test_a_repeated_command_takes_over_the_partitions_that_are_left(site: Site, tmp_path: Path) -> None:
    await came_back(site, tmp_path)
    entry, _ = await newest_entries(site)
    topic_id = (await list_topics(site.east))["clicks"].id
    first = Proposal(
        source=replace(entry.source, topic_id=topic_id),
        replica_topic="clicks",
        replaces=entry.source.topic_id,
        takes_over=True,
    )
    journal = TableJournal(site.hub, lambda _skipped: None)
    await journal.read_on()
    await journal.propose([first], clock=clock, rng=Random(1))
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"0")
        assert await takes_over(site)
        await until_copied(site.hub, OTHER, b"other")


@pytest.mark.long
async def test_a_mirror_that_was_paused_all_the_time_cannot_write_to_the_new_replica(
    site: Site, tmp_path: Path
) -> None:
    await copy_to_hub(site)
    of_the_old_topic = {CLICKS: await token_of(site.hub, CLICKS)}
    await promote(site.hub)
    await reverse(site.hub, site.east, "east", "hub", tmp_path / "there")
    await until_east_follows(site, b"0")
    await promote(site.east)
    await reverse(site.east, site.hub, "hub", "east", tmp_path / "back")
    produced = await raw_produce(
        site.hub,
        {CLICKS: batch_at(0, b"old")},
        keep_offsets=True,
        timeout_s=DEADLINE_S,
        sources=of_the_old_topic,
    )
    assert "must say whose copy" in str(produced[CLICKS].error)
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"0")


async def go_there(site: Site, tmp_path: Path, topics: Sequence[str]) -> None:
    """Each topic is promoted at east again, with a record of each time in its only partition."""
    for topic in topics:
        await make(site.east, topic)
        await publish(site.east, b"east", topic=topic)
    async with site.mirroring():
        for topic in topics:
            await until_copied(site.hub, TopicPartition(topic, 0), b"east")
    for topic in topics:
        await promote(site.hub, topic)
        await publish(site.hub, b"hub", topic=topic)
        await reverse(site.hub, site.east, "east", "hub", tmp_path / f"{topic}-there", topic)
    async with mirroring_of(site.east, hub=site.hub):
        for topic in topics:
            await until_copied(site.east, TopicPartition(topic, 0), b"east", b"hub")
    for topic in topics:
        await promote(site.east, topic)


@pytest.mark.long
@pytest.mark.parametrize("policy", GapPolicy)
@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_return_that_dies_anywhere_beside_a_running_mirror_is_finished(
    site: Site, tmp_path: Path, is_sent: bool, policy: GapPolicy
) -> None:
    """All records are in one replica partition, once. A mirror that skips may have chosen another one meanwhile."""
    random, deaths = Random(7), 0
    topics = [f"clicks{number}" for number in range(1, 41)]
    await go_there(site, tmp_path, topics)
    async with site.mirroring(gap_policy=policy):
        for number, topic in enumerate(topics, 1):
            directory = tmp_path / f"{topic}-back"

            async def command(old: Cluster) -> None:
                await reverse(site.east, old, "hub", "east", directory, topic)  # noqa: B023

            if await dies_at(number, site.hub, command, is_sent=is_sent):
                deaths += 1
                await trio.sleep(random.choice((0, 0.02, 0.3, 0.6)))  # the mirror looks each 0.1 s
                await command(site.hub)
        for topic in topics:
            own = TopicPartition(topic, 0)
            with trio.fail_after(DEADLINE_S):
                while (entry := await entry_of(site, own)).source.topic_id != (await list_topics(site.east))[topic].id:
                    await trio.sleep(0.1)
            await until_copied(site.hub, entry.replica, b"east", b"hub")
            assert entry.replica == own or (policy is GapPolicy.SKIP and await read(site.hub, own) == [])
    assert 30 < deaths < len(topics), "the last commands come to their ends"


async def entry_of(site: Site, partition: TopicPartition) -> Assignment:
    (entry,) = [entry for entry in await newest_entries(site) if entry.source.partition == partition]
    return entry
