"""Producer, consumer and admin against a real broker and a real ZooKeeper."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.elections import alter_reassignments
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import (
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    describe_topics,
    list_topics,
)
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.cluster.discovery import from_zookeeper
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.producer import open_producer
from pipeline.client.producer.raw_produce import can_keep_offsets, raw_produce
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.batch import iterate_headers
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster

DEADLINE_S = 180


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("local")) as running:
        yield running


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(local.bootstrap))) as opened:
        yield opened


@asynccontextmanager
async def produce(cluster: Any, **settings: Any) -> AsyncIterator[Any]:
    async with open_producer(
        cluster, ProducerConfig(**settings), clock=lambda: time.time_ns() // 1_000_000, rng=Random(1)
    ) as producer:
        yield producer


async def new_topic(cluster: Any, name: Any, partitions: int = 1, **configs: Any) -> Any:
    await create_topics(cluster, [NewTopic(name=name, partitions=partitions, replication_factor=1, configs=configs)])
    return [TopicPartition(name, number) for number in range(partitions)]


async def read_all(cluster: Any, partitions: Any) -> Any:
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=DEADLINE_S)
    found: dict[TopicPartition, list[Any]] = {partition: [] for partition in partitions}
    expected = sum(end.offset for end in ends.values())
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign(dict.fromkeys(partitions, 0))
        with trio.fail_after(DEADLINE_S):
            while sum(map(len, found.values())) < expected:
                record = await anext(consumer.records())
                found[record.topic_partition].append(record)
    return found


@pytest.mark.parametrize("codec", list(Codec))
async def test_records_come_back_as_they_were_sent(cluster: Any, codec: Any) -> None:
    partitions = await new_topic(cluster, f"codec-{codec.name.lower()}", 3)
    sent = {}
    async with produce(cluster, compression=codec, batch_size=2000) as producer:
        for number in range(500):
            value = None if number % 50 == 0 else b"%d " % number * 20
            headers = (("n", b"%d" % number), ("null", None))
            delivery = await producer.send(partitions[0].topic, value, key=b"k%d" % (number % 7), headers=headers)
            sent[delivery] = (b"k%d" % (number % 7), value, headers)
        await producer.flush()
        where = [(await delivery.wait(), fields) for delivery, fields in sent.items()]
    found = await read_all(cluster, partitions)
    for metadata, fields in where:
        record = found[metadata.topic_partition][metadata.offset]
        assert (record.offset, record.timestamp_ms) == (metadata.offset, metadata.timestamp_ms)
        assert (record.key, record.value, record.headers) == fields


async def test_topics_are_made_grown_described_and_removed(cluster: Any) -> None:
    partitions = await new_topic(cluster, "admin", 2)
    with pytest.raises(KafkaError) as caught:
        await new_topic(cluster, "admin")
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    await create_topics(cluster, [NewTopic(name="admin")], exist_ok=True)
    async with produce(cluster) as producer:
        await producer.send("admin", b"x", partition=1)
        await create_partitions(cluster, {"admin": 4})
        assert sorted((await describe_topics(cluster, ["admin"]))["admin"].partitions) == [0, 1, 2, 3]
        await producer.send("admin", b"y", partition=3)
    found = await read_all(cluster, [*partitions, TopicPartition("admin", 3)])
    assert [len(records) for records in found.values()] == [0, 1, 1]
    await delete_topics(cluster, ["admin"])
    with trio.fail_after(DEADLINE_S):
        while "admin" in await list_topics(cluster):
            await trio.sleep(0.05)
    with pytest.raises(KafkaError) as caught:
        await delete_topics(cluster, ["admin"])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await delete_topics(cluster, ["admin"], missing_ok=True)


async def test_a_name_that_is_another_way_to_write_the_path_of_a_topic_is_no_topic(cluster: Any) -> None:
    await new_topic(cluster, "whole", 2)
    for name in ("whole/", "/whole", "x/../whole", "."):
        with pytest.raises(KafkaError) as caught:
            await create_partitions(cluster, {name: 4})
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        refused = await alter_reassignments(cluster, {TopicPartition(name, 0): None}, timeout_s=DEADLINE_S)
        assert [refusal.code for refusal in refused.values()] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert len((await describe_topics(cluster, ["whole"]))["whole"].partitions) == 2


async def test_offsets_by_time(cluster: Any) -> None:
    (partition,) = await new_topic(cluster, "times")
    async with produce(cluster, window_ms=1000) as producer:
        for timestamp_ms in range(10_000, 20_000, 100):
            await producer.send("times", b"x", timestamp_ms=timestamp_ms)
    for asked, offset, timestamp_ms in ((0, 0, 10_000), (15_050, 51, 15_100), (19_900, 99, 19_900), (20_000, -1, -1)):
        listed = (await list_offsets(cluster, {partition: asked}, timeout_s=DEADLINE_S))[partition]
        assert (listed.offset, listed.timestamp_ms) == (offset, timestamp_ms)
    assert (await list_offsets(cluster, {partition: EARLIEST}, timeout_s=DEADLINE_S))[partition].offset == 0


async def test_no_stored_batch_crosses_a_window(cluster: Any) -> None:
    (partition,) = await new_topic(cluster, "windows")
    random = Random(3)
    async with produce(cluster, window_ms=1000, compression=Codec.LZ4) as producer:
        for number in range(2000):
            await producer.send("windows", b"x" * 50, timestamp_ms=number * 10 + random.randrange(500))
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign({partition: 0})
        with trio.fail_after(DEADLINE_S):
            while consumer.position(partition) < 2000:
                for batches in await consumer.poll_batches():
                    for _, header in iterate_headers(batches.data):
                        assert header.base_timestamp // 1000 == header.max_timestamp // 1000


async def test_batches_are_copied_as_they_are(cluster: Any) -> None:
    (source,) = await new_topic(cluster, "source")
    (replica,) = await new_topic(cluster, "replica", 1, **{"mirror.source": "here"})
    leader = cluster.view.leader_of(replica)
    assert await can_keep_offsets(cluster, leader)
    async with produce(cluster, batch_size=500, compression=Codec.ZSTD) as producer:
        for number in range(1000):
            await producer.send("source", b"%d" % number)
    async with open_consumer(cluster, ConsumerConfig(max_bytes=3000)) as consumer:
        consumer.assign({source: 0})
        with trio.fail_after(DEADLINE_S):
            while consumer.position(source) < 1000:
                for batches in await consumer.poll_batches():
                    copy = {replica: bytes(batches.data)}
                    result = (await raw_produce(cluster, copy, keep_offsets=True, timeout_s=DEADLINE_S))[replica]
                    assert (result.error, result.log_end_offset) == (None, batches.next_offset)
                    again = (await raw_produce(cluster, copy, keep_offsets=True, timeout_s=DEADLINE_S))[replica]
                    assert again.is_overlap
                    assert again.log_end_offset == batches.next_offset
    found = await read_all(cluster, [source, replica])
    assert [(r.offset, r.value) for r in found[replica]] == [(r.offset, r.value) for r in found[source]]


async def test_a_cluster_is_found_through_zookeeper(local: Any, cluster: Any) -> None:
    await new_topic(cluster, "found")
    async with (
        open_zookeeper(local.zookeeper, session_timeout_ms=20_000) as zookeeper,
        open_cluster(ClientConfig(), discover=from_zookeeper(zookeeper)) as found,
    ):
        assert "found" in await list_topics(found)
