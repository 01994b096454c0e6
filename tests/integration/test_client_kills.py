"""The only broker is killed, again and again, under a producer and a consumer: nothing is lost, nothing doubled."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from pipeline.records.record import iterate_records
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster

KILLS = 4
PARTITIONS = [TopicPartition("killed", number) for number in range(3)]
DEADLINE_S = 400


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path) as running:
        yield running


@pytest.mark.long
async def test_acknowledged_records_are_read_exactly_once_and_in_order(local: LocalCluster) -> None:
    random = Random(20)
    sent: dict[TopicPartition, list[bytes]] = {partition: [] for partition in PARTITIONS}
    seen: dict[TopicPartition, list[bytes | None]] = {partition: [] for partition in PARTITIONS}
    offsets: dict[TopicPartition, list[int]] = {partition: [] for partition in PARTITIONS}
    killing_is_over = trio.Event()
    all_sent = trio.Event()

    async def kill() -> None:
        for _ in range(KILLS):
            await trio.sleep(random.uniform(0.2, 1.0))
            local.kill("broker-1")
            await trio.to_thread.run_sync(local.wait_restarted, "broker-1", abandon_on_cancel=True)
        killing_is_over.set()

    async def send(cluster: Any) -> None:
        config = ProducerConfig(batch_size=2000, request_timeout_ms=5000)
        async with open_producer(cluster, config, clock=lambda: time.time_ns() // 1_000_000, rng=random) as producer:
            number = 0
            while not killing_is_over.is_set() or number < 1000:
                partition = random.choice(PARTITIONS)
                value = b"%d" % number
                await producer.send("killed", value, partition=partition.partition)
                sent[partition].append(value)
                number += 1
                if number % 20 == 0:
                    await trio.sleep(0.001)
        all_sent.set()

    async def read(cluster: Any) -> None:
        async with open_consumer(cluster, ConsumerConfig(max_wait_ms=100)) as consumer:
            consumer.assign(dict.fromkeys(PARTITIONS, 0))
            while not (all_sent.is_set() and sum(map(len, seen.values())) >= sum(map(len, sent.values()))):
                for batches in await consumer.poll_batches(timeout_s=0.1):
                    partition = batches.topic_partition
                    for record in iterate_records(batches.data):
                        if record.offset >= batches.position:
                            seen[partition].append(record.value)
                            offsets[partition].append(record.offset)

    config = ClientConfig(bootstrap=parse_addresses(local.bootstrap))
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(config) as cluster:
            await create_topics(cluster, [NewTopic(name="killed", partitions=3, replication_factor=1)])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill)
                nursery.start_soon(send, cluster)
                nursery.start_soon(read, cluster)
    for partition in PARTITIONS:
        assert seen[partition] == sent[partition]
        assert offsets[partition] == list(range(len(sent[partition])))
