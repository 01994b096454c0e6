"""Brokers are killed and leaders moved while four producers and two groups run: nothing is lost, nothing doubled.

The log holds what each producer sent, once and in its order. A group by the coordinator and a group by ZooKeeper, of
two members each, are handed what the log holds: all of it, in order, and once, since no member dies.
"""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.elections import alter_reassignments, elect_leaders
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, OffsetReset, ProducerConfig
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.connector.connector import open_consumer_connector
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.group_consumer import open_group_consumer
from pipeline.client.group.listener import RebalanceListener
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.client.streams.stream import MessageStream
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.elect_leaders import ElectionType
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records
from pipeline.settings import parse_addresses
from tests.support.brokers import clock
from tests.support.cluster.observation import Observer
from tests.support.cluster.systems import ClusterProcesses, local_places, our_cluster

TOPIC = "sent"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(6)]
BROKERS = 3
SEED = 1811
DEADLINE_S = 900
SETTINGS = {"zookeeper.session.timeout.ms": 3000, "offsets.topic.num.partitions": 3}

Send = Callable[[Producer, list[bytes], int], Any]


async def one_by_one(producer: Producer, values: list[bytes], partition: int) -> None:
    for value in values:
        await producer.send(TOPIC, value, partition=partition)


async def as_list(producer: Producer, values: list[bytes], partition: int) -> None:
    await producer.send_many(TOPIC, values, b"key", partition=partition)


async def and_wait(producer: Producer, values: list[bytes], partition: int) -> None:
    for value in values[:5]:
        await producer.send_and_wait(TOPIC, value, partition=partition)
    await one_by_one(producer, values[5:], partition)


PRODUCERS: list[tuple[Send, dict[str, Any]]] = [
    (one_by_one, {"batch_size": 2000}),
    (as_list, {"compression": Codec.ZSTD}),
    (and_wait, {"compression": Codec.LZ4, "linger_ms": 20}),
    (one_by_one, {"linger_ms": 0, "batch_size": 500, "buffer_memory": 20_000}),
]


async def send_until(cluster: Cluster, number: int, ended: trio.Event, sent: dict[TopicPartition, list[bytes]]) -> None:
    """Send numbered records until the faults are over, and then until all are acknowledged."""
    send, settings = PRODUCERS[number]
    random = Random(SEED + number)
    config = ProducerConfig(request_timeout_ms=3000, delivery_timeout_ms=300_000, max_block_ms=300_000, **settings)
    async with open_producer(cluster, config, clock=clock, rng=random) as producer:
        count = 0
        while not ended.is_set():
            partition = random.randrange(len(PARTITIONS))
            values = [b"%d %d" % (number, count + index) for index in range(random.randint(1, 30))]
            count += len(values)
            await send(producer, values, partition)
            sent[PARTITIONS[partition]] += values
            await trio.sleep(random.uniform(0, 0.02))
        assert await producer.aclose() == []
    assert count > 100


async def move_leaders(cluster: Cluster, random: Random) -> None:
    """Have another replica lead each partition; what fails is tried again by the next move."""
    orders = {}
    for partition in PARTITIONS:
        orders[partition] = [BrokerId(number) for number in random.sample(range(1, BROKERS + 1), BROKERS)]
    try:
        await alter_reassignments(cluster, orders, timeout_s=20)
        await elect_leaders(cluster, None, ElectionType.PREFERRED, timeout_s=20)
    except PipelineError as error:
        print(f"leaders were not moved: {error}")


async def disturb(system: ClusterProcesses, cluster: Cluster, observer: Observer, rounds: int) -> None:
    """Kill each broker in turn, and move leaders before, while it is away, and when it is back."""
    random = Random(SEED)
    for number in range(rounds):
        await trio.sleep(random.uniform(0.5, 2))
        await move_leaders(cluster, random)
        node = list(system.nodes.values())[number % BROKERS]
        node.kill()
        await trio.sleep(random.uniform(0, 4))  # shorter and longer than a session
        if number % 2:
            await move_leaders(cluster, random)
        node.launch()
        await trio.to_thread.run_sync(node.wait_for_port)
        await trio.to_thread.run_sync(observer.wait_until_in_sync, [TOPIC])


async def ends_of_logs(cluster: Cluster) -> dict[TopicPartition, int]:
    found = await list_offsets(cluster, dict.fromkeys(PARTITIONS, LATEST), timeout_s=60)
    return {partition: listed.offset for partition, listed in found.items()}


async def read_back(cluster: Cluster) -> dict[TopicPartition, list[Any]]:
    """Return the values of each partition up to its end, at their offsets."""
    ends = await ends_of_logs(cluster)
    seen: dict[TopicPartition, list[Any]] = {partition: [] for partition in PARTITIONS}
    async with open_consumer(cluster, ConsumerConfig(max_wait_ms=100)) as consumer:
        consumer.assign(dict.fromkeys(PARTITIONS, 0))
        while any(consumer.position(partition) < ends[partition] for partition in PARTITIONS):
            for batches in await consumer.poll_batches():
                for record in iterate_records(batches.data):
                    if record.offset >= batches.position:
                        assert record.offset == len(seen[batches.topic_partition])
                        seen[batches.topic_partition].append(record.value)
    return seen


class GroupNotes:
    """What a group was handed: the values by offset, and where each tenure of a member continues."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[TopicPartition, list[Any]] = {partition: [] for partition in PARTITIONS}
        self.repeated = 0
        self.has_all = trio.Event()
        self._ends: dict[TopicPartition, int] | None = None

    def expect(self, ends: dict[TopicPartition, int]) -> None:
        """Set `has_all` once all up to these offsets was handed out."""
        self._ends = ends
        self._look()

    async def read(self, stream: MessageStream, tenures: "Tenures") -> None:
        async for record in stream:
            partition, offset = record.topic_partition, record.offset
            values = self.values[partition]
            assert tenures.next_offset.get(partition, offset) == offset, f"{self.name}: {partition} jumps to {offset}"
            tenures.next_offset[partition] = offset + 1
            if offset < len(values):
                self.repeated += 1
                assert values[offset] == record.value, f"{self.name}: {partition} at {offset} changed"
            else:
                assert offset == len(values), f"{self.name}: skipped before {partition} at {offset}"
                values.append(record.value)
            if self._ends is not None:
                self._look()

    def _look(self) -> None:
        if self._ends == {partition: len(values) for partition, values in self.values.items()}:
            self.has_all.set()


class Tenures(RebalanceListener):
    """Where a member's partitions continue, as long as it has them."""

    def __init__(self) -> None:
        self.next_offset: dict[TopicPartition, int] = {}

    async def partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            self.next_offset.pop(partition, None)


async def be_member(bootstrap: str, zookeeper: str | None, notes: GroupNotes, number: int) -> None:
    """Be a member of a group, by the coordinator or by ZooKeeper, until the group has all."""
    tenures, random = Tenures(), Random(SEED + number)
    by_coordinator = GroupConfig(group_id=notes.name, auto_offset_reset=OffsetReset.EARLIEST, max_wait_ms=100)
    by_zookeeper = ConnectorConfig(group_id=notes.name, auto_offset_reset=OffsetReset.EARLIEST, max_wait_ms=100)
    client = ClientConfig(bootstrap=parse_addresses(bootstrap), request_timeout_ms=5000)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(open_cluster(client))
        opened: Any = (
            open_group_consumer(cluster, by_coordinator, rng=random, listener=tenures)
            if zookeeper is None
            else open_consumer_connector(cluster, zookeeper, by_zookeeper, clock=clock, rng=random, listener=tenures)
        )
        group = await stack.enter_async_context(opened)
        streams = (await group.create_message_streams({TOPIC: 1}))[TOPIC]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(notes.read, streams[0], tenures)
            await notes.has_all.wait()
            await group.shutdown()


def by_producer(values: list[Any]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for value in values:
        producer, number = value.split()
        found.setdefault(producer, []).append(int(number))
    return found


@pytest.fixture
def system(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with our_cluster(tmp_path, local_places(BROKERS), SETTINGS) as cluster:
        cluster.start()
        yield cluster


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("rounds", [6])
async def test_four_producers_and_two_groups_lose_and_double_nothing(
    system: ClusterProcesses, tmp_path: Path, rounds: int
) -> None:
    observer = Observer(system)
    observer.create_topics([TOPIC], len(PARTITIONS), BROKERS)
    zookeeper = tomllib.loads((tmp_path / "1.toml").read_text())["zookeeper"]["connect"]
    groups = {GroupNotes("by-coordinator"): None, GroupNotes("by-zookeeper"): zookeeper}
    sent: dict[TopicPartition, list[bytes]] = {partition: [] for partition in PARTITIONS}
    ended = trio.Event()
    with trio.fail_after(DEADLINE_S):
        async with (
            open_cluster(ClientConfig(bootstrap=parse_addresses(system.bootstrap))) as cluster,
            trio.open_nursery() as reading,
        ):
            for number, (notes, connect) in enumerate((*groups.items(), *groups.items())):
                reading.start_soon(be_member, system.bootstrap, connect, notes, number)
            async with trio.open_nursery() as sending:
                for number in range(len(PRODUCERS)):
                    sending.start_soon(send_until, cluster, number, ended, sent)
                await disturb(system, cluster, observer, rounds)
                ended.set()
            seen = await read_back(cluster)
            ends = {partition: len(values) for partition, values in seen.items()}
            for notes in groups:
                notes.expect(ends)
    for partition in PARTITIONS:
        assert by_producer(seen[partition]) == by_producer(sent[partition])
    for notes in groups:
        assert notes.values == seen
        print(f"{notes.name}: {notes.repeated} handed out again")
        assert notes.repeated == 0
    print(f"{sum(map(len, sent.values()))} records of {len(PRODUCERS)} producers, {rounds} kills: none lost or doubled")
