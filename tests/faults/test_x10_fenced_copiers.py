"""Fenced copiers: mirror processes share partitions; one is killed or paused past its session, all are restarted.

The hub refuses the copier that others have replaced, and the copies stay exact under the load of a foreign producer.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio

from pipeline.cli.terminal.connect import connected
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.errors import ErrorCode, KafkaError
from tests.support.foreign_producer import ForeignProducer
from tests.support.mirror_group import SESSION_TIMEOUT_MS, GrowthWatch, MirrorGroupSite, mirror_group
from tests.support.mirrors import token_of
from tests.support.replica_check import ReplicaCheck

TOPIC = "clicks"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(6)]
MIRRORS = 3
RECORDS_PER_S = 300
ROUNDS = 5
TAKEOVER_S = 5.0
"""Time after which the partitions of a killed process must grow again."""
INTERRUPTION_S = 1.0
"""Time for which all other partitions may stand still; a broker answers fetches of a few records within that."""


@dataclass
class Load:
    """A group under load."""

    group: MirrorGroupSite
    producer: ForeignProducer
    growth: GrowthWatch

    async def check(self, by: int) -> int:
        """Compare source and replica, batch by batch, once this member says that all is well."""
        site = replace(self.group.site, url=self.group.url(by))
        return await ReplicaCheck(site, PARTITIONS, self.producer).run()


@asynccontextmanager
async def load(directory: Path) -> AsyncIterator[Load]:
    async with mirror_group(directory, MIRRORS, TOPIC) as group, trio.open_nursery() as nursery:
        async with connected(group.site.source.bootstrap, None, "test") as cluster:
            await create_topics(cluster, [NewTopic(name=TOPIC, partitions=len(PARTITIONS), replication_factor=3)])
        producer = ForeignProducer(
            group.site.source.bootstrap, TOPIC, partitions=len(PARTITIONS), records_per_s=RECORDS_PER_S
        )
        growth = GrowthWatch(group.site.hub.bootstrap, PARTITIONS)
        await group.until_shared(*range(MIRRORS), partitions=len(PARTITIONS))
        producer.start()
        nursery.start_soon(growth.run)
        yield Load(group, producer, growth)
        await trio.to_thread.run_sync(producer.stop)
        nursery.cancel_scope.cancel()


async def refused_as_older(bootstrap: str, partition: TopicPartition) -> bool:
    """True if the hub refuses batches of the first copier that ever was."""
    async with connected(bootstrap, None, "test") as hub:
        await hub.topic(partition.topic)
        found = await raw_produce(
            hub,
            {partition: b""},
            keep_offsets=True,
            timeout_s=30,
            sources={partition: await token_of(hub, partition)},
            copier_epochs={partition: 1},
        )
    error = found[partition].error
    return isinstance(error, KafkaError) and error.code is ErrorCode.INVALID_PRODUCER_EPOCH


async def kill_one(loaded: Load, number: int) -> tuple[float, float]:
    """Kill a member; return the longest stops of its partitions and of all others."""
    group, others = loaded.group, [each for each in range(MIRRORS) if each != number]
    before = (await group.until_shared(*range(MIRRORS), partitions=len(PARTITIONS)))[number]
    loaded.growth.begin()
    await group.kill(number)
    await group.until_shared(*others, partitions=len(PARTITIONS))
    await loaded.check(others[0])
    stops = loaded.growth.stops_s()
    await group.members[number].start()
    return max(stops[each] for each in before), max(stops[each] for each in stops.keys() - before)


async def pause_one(loaded: Load, number: int) -> None:
    """Pause a member past its session; the others take over, and go on when it wakes up."""
    group, others = loaded.group, [each for each in range(MIRRORS) if each != number]
    taken = (await group.until_shared(*range(MIRRORS), partitions=len(PARTITIONS)))[number]
    group.pause(number)
    try:
        await group.until_shared(*others, partitions=len(PARTITIONS))
        for each in taken:
            assert await refused_as_older(group.site.hub.bootstrap, TopicPartition(TOPIC, each))
    finally:
        group.wake(number)
    await group.until_shared(*range(MIRRORS), partitions=len(PARTITIONS))
    await loaded.check(number)


async def restart_all(loaded: Load) -> None:
    """Restart one member after the other, cleanly."""
    for member in loaded.group.members:
        await member.unit.stop()
        await member.start()
    await loaded.group.until_shared(*range(MIRRORS), partitions=len(PARTITIONS))
    await loaded.check(0)


@pytest.mark.long
async def test_a_killed_and_a_paused_mirror_lose_and_double_nothing(tmp_path: Path) -> None:
    with unwrapped_errors():
        async with load(tmp_path) as loaded:
            own_s, others_s = await kill_one(loaded, 0)
            print(f"partitions of the killed mirror stopped for {own_s:.1f} s, all others for {others_s:.1f} s")
            await pause_one(loaded, 1)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_takeover_takes_less_than_5_s_and_interrupts_no_other_partition(tmp_path: Path) -> None:
    with unwrapped_errors():
        async with load(tmp_path) as loaded:
            stops = [await kill_one(loaded, number % MIRRORS) for number in range(ROUNDS)]
            for number in range(ROUNDS):
                await pause_one(loaded, number % MIRRORS)
            await restart_all(loaded)
            records = await loaded.check(0)
        print(f"session {SESSION_TIMEOUT_MS} ms, {records} records; stops of own and other partitions in s: {stops}")
        assert max(own_s for own_s, _ in stops) < TAKEOVER_S
        assert max(others_s for _, others_s in stops) < INTERRUPTION_S
