"""Brokers are killed and leaders moved while four producers run: nothing is lost, nothing doubled, all is in order."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.elections import alter_reassignments, elect_leaders
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.elect_leaders import ElectionType
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records
from pipeline.settings import parse_addresses
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
    async with open_producer(cluster, config, clock=lambda: time.time_ns() // 1_000_000, rng=random) as producer:
        count = 0
        while not ended.is_set():
            partition = random.randrange(len(PARTITIONS))
            values = [b"%d %d" % (number, count + index) for index in range(random.randint(1, 30))]
            count += len(values)
            await send(producer, values, partition)
            sent[PARTITIONS[partition]] += values
            await trio.sleep(random.uniform(0, 0.02))
        assert await producer.aclose() == []
    assert count > 500


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


async def read_back(cluster: Cluster, sent: dict[TopicPartition, list[bytes]]) -> dict[TopicPartition, list[Any]]:
    seen: dict[TopicPartition, list[Any]] = {partition: [] for partition in PARTITIONS}
    async with open_consumer(cluster, ConsumerConfig(max_wait_ms=100)) as consumer:
        consumer.assign(dict.fromkeys(PARTITIONS, 0))
        while any(len(seen[partition]) < len(sent[partition]) for partition in PARTITIONS):
            for batches in await consumer.poll_batches():
                records = iterate_records(batches.data)
                seen[batches.topic_partition] += [each.value for each in records if each.offset >= batches.position]
    return seen


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
async def test_four_producers_lose_and_double_nothing(system: ClusterProcesses, rounds: int) -> None:
    observer = Observer(system)
    observer.create_topics([TOPIC], len(PARTITIONS), BROKERS)
    sent: dict[TopicPartition, list[bytes]] = {partition: [] for partition in PARTITIONS}
    ended = trio.Event()
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(system.bootstrap))) as cluster:
            async with trio.open_nursery() as nursery:
                for number in range(len(PRODUCERS)):
                    nursery.start_soon(send_until, cluster, number, ended, sent)
                await disturb(system, cluster, observer, rounds)
                ended.set()
            seen = await read_back(cluster, sent)
    for partition in PARTITIONS:
        assert by_producer(seen[partition]) == by_producer(sent[partition])
    print(f"{sum(map(len, sent.values()))} records of {len(PRODUCERS)} producers, {rounds} kills: none lost or doubled")
