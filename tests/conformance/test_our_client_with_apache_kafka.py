"""Our producer, consumer and admin against Apache Kafka 4: who outgrows our broker goes on with the same programs."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.leader_epochs import NO_EPOCH_END, EpochEnd, ends_of_epochs
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
from pipeline.client.cluster.config import Acks, ClientConfig, ConsumerConfig, OffsetReset, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.errors import PartitionTruncatedError
from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.client.producer.raw_produce import can_keep_offsets
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records
from pipeline.settings import parse_addresses
from tests.support.clients import read_with_kcat

DEADLINE_S = 180
FIRST_MS = 1_431_849_903_000


@pytest.fixture
async def cluster(apache_kafka: str) -> AsyncIterator[Cluster]:
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as opened:
        yield opened


@asynccontextmanager
async def producing(cluster: Cluster, **settings: Any) -> AsyncIterator[Producer]:
    config = ProducerConfig(**settings)
    clock = lambda: time.time_ns() // 1_000_000  # noqa: E731
    async with open_producer(cluster, config, clock=clock, rng=Random(1)) as producer:
        yield producer


async def new_topic(cluster: Cluster, name: str, partitions: int = 1, **configs: str) -> list[TopicPartition]:
    """Create a topic that keeps records however old their timestamps are."""
    configs = {"retention.ms": "-1", **configs}
    await create_topics(cluster, [NewTopic(name=name, partitions=partitions, replication_factor=1, configs=configs)])
    return [TopicPartition(name, number) for number in range(partitions)]


async def read(cluster: Cluster, partition: TopicPartition, offset: int, count: int) -> list[Any]:
    found: list[Any] = []
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign({partition: offset})
        with trio.fail_after(DEADLINE_S):
            while len(found) < count:
                found.append(await anext(consumer.records()))
    return found


@pytest.mark.parametrize("acks", list(Acks))
@pytest.mark.parametrize("codec", list(Codec))
async def test_records_come_back_as_they_were_sent(
    cluster: Cluster, apache_kafka: str, codec: Codec, acks: Acks
) -> None:
    (partition,) = await new_topic(cluster, f"ours-{codec.name}-{acks.name}")
    sent = []
    settings = {"compression": codec, "acks": acks, "idempotence": acks is Acks.ALL, "batch_size": 2000}
    async with producing(cluster, **settings) as producer:
        for number in range(200):
            value = (None, b"", b"%d " % number * 20)[number % 3]
            headers = (("n", b"%d" % number), ("null", None))
            sent.append((b"k%d" % number, value, headers, FIRST_MS + number))
            await producer.send(
                partition.topic, value, key=b"k%d" % number, headers=headers, timestamp_ms=FIRST_MS + number
            )
        await producer.flush()
    found = await read(cluster, partition, 0, len(sent))
    assert [(record.key, record.value, record.headers, record.timestamp_ms) for record in found] == sent
    by_kcat = await trio.to_thread.run_sync(read_with_kcat, apache_kafka, partition.topic)
    assert [(key, value, tuple(headers), at) for _, key, value, headers, at in by_kcat] == sent


async def test_topics_are_made_grown_described_and_removed(cluster: Cluster) -> None:
    await new_topic(cluster, "admin", 2)
    with pytest.raises(KafkaError) as caught:
        await new_topic(cluster, "admin")
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    await create_partitions(cluster, {"admin": 4})
    assert sorted((await describe_topics(cluster, ["admin"]))["admin"].partitions) == [0, 1, 2, 3]
    async with producing(cluster) as producer:
        metadata = await (await producer.send("admin", b"last", partition=3)).wait()
    assert (metadata.topic_partition, metadata.offset) == (TopicPartition("admin", 3), 0)
    await delete_topics(cluster, ["admin"])
    with trio.fail_after(DEADLINE_S):
        while "admin" in await list_topics(cluster):
            await trio.sleep(0.05)
    with pytest.raises(KafkaError) as caught:
        await delete_topics(cluster, ["admin"])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_apache_kafka_lists_offsets_by_time(cluster: Cluster) -> None:
    (partition,) = await new_topic(cluster, "times")
    async with producing(cluster) as producer:
        for number in range(100):
            await producer.send("times", b"x", timestamp_ms=FIRST_MS + 100 * number)
    for asked, offset, timestamp_ms in (
        (FIRST_MS, 0, FIRST_MS),
        (FIRST_MS + 5050, 51, FIRST_MS + 5100),
        (FIRST_MS + 9901, -1, -1),
        (MAX_TIMESTAMP, 99, FIRST_MS + 9900),
        (EARLIEST, 0, -1),
        (LATEST, 100, -1),
    ):
        listed = (await list_offsets(cluster, {partition: asked}, timeout_s=DEADLINE_S))[partition]
        assert (listed.offset, listed.timestamp_ms) == (offset, timestamp_ms)
    assert [record.offset for record in await read(cluster, partition, 50, 3)] == [50, 51, 52]


async def test_out_of_range_is_an_error_or_a_reset(cluster: Cluster) -> None:
    (partition,) = await new_topic(cluster, "range")
    async with producing(cluster) as producer:
        await producer.send("range", b"only")
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign({partition: 1000})
        with trio.fail_after(DEADLINE_S), pytest.raises(PipelineError, match="1000"):
            await anext(consumer.records())
    async with open_consumer(cluster, ConsumerConfig(auto_offset_reset=OffsetReset.EARLIEST)) as consumer:
        consumer.assign({partition: 1000})
        with trio.fail_after(DEADLINE_S):
            assert (await anext(consumer.records())).value == b"only"


async def test_a_record_too_large_is_refused(cluster: Cluster) -> None:
    await new_topic(cluster, "small", 1, **{"max.message.bytes": "2000"})
    with pytest.raises(DeliveryError, match="MESSAGE_TOO_LARGE"):
        async with producing(cluster) as producer:
            await producer.send("small", b"x" * 5000)
    async with producing(cluster) as producer:
        assert (await (await producer.send("small", b"x")).wait()).offset == 0


async def test_batches_are_polled_whole(cluster: Cluster) -> None:
    (partition,) = await new_topic(cluster, "whole")
    async with producing(cluster, batch_size=1000, compression=Codec.LZ4) as producer:
        for number in range(3000):
            await producer.send("whole", b"%d" % number)
    values: list[Any] = []
    async with open_consumer(cluster, ConsumerConfig(max_bytes=5000, max_partition_bytes=3000)) as consumer:
        consumer.assign({partition: 0})
        with trio.fail_after(DEADLINE_S):
            while len(values) < 3000:
                for batches in await consumer.poll_batches():
                    values += [int(record.value or b"") for record in iterate_records(batches.data)]
    assert values == list(range(3000))


async def test_positions_are_compared_by_leader_epoch(cluster: Cluster) -> None:
    (partition,) = await new_topic(cluster, "epochs")
    async with producing(cluster) as producer:
        for number in range(3):
            await producer.send("epochs", b"%d" % number)
            await producer.flush()
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign({partition: 0})
        with trio.fail_after(DEADLINE_S):
            while not (polled := await consumer.poll_batches()):
                pass
        ((epoch, first), *others) = polled[0].leader_epochs
        assert (epoch >= 0, first, others) == (True, 0, [])
        ends = await ends_of_epochs(cluster, {partition: epoch}, timeout_s=DEADLINE_S)
        assert ends == {partition: EpochEnd(leader_epoch=epoch, end_offset=3)}
        assert (await ends_of_epochs(cluster, {partition: 7}, timeout_s=DEADLINE_S))[partition] == NO_EPOCH_END
        consumer.add(partition, 2, leader_epoch=epoch)
        with trio.fail_after(DEADLINE_S):
            assert (await anext(consumer.records())).value == b"2"
        consumer.add(partition, 4, leader_epoch=epoch)
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionTruncatedError, match="truncated to 3"):
            await anext(consumer.records())


async def test_apache_kafka_does_not_claim_to_keep_offsets(cluster: Cluster) -> None:
    (partition,) = await new_topic(cluster, "features")
    leader = cluster.view.leader_of(partition)
    assert leader is not None
    assert not await can_keep_offsets(cluster, leader)
