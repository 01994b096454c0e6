"""The client against a real Apache Kafka 4: its newest versions, topic ids included."""

import time
from collections.abc import Iterator, Sequence
from random import Random

import pytest
import trio

from pipeline.client.admin.elections import alter_reassignments, elect_leaders, list_reassignments
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.reassignment_throttle import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    Move,
    remove_throttle,
    set_throttle,
)
from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, delete_topics, list_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import PartitionOffsetOutOfRangeError
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.producer import open_producer
from pipeline.client.producer.raw_produce import can_keep_offsets, raw_produce
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.elect_leaders import ElectionType
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses
from tests.support.idle_partitions import Heard, idle_soon, requests_of_sessions, until_in_session
from tests.support.kafka import Kafka, running_kafka

DEADLINE_S = 180


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with running_kafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.mark.timeout(900)  # the jars are fetched when they are not there yet
async def test_topics_records_offsets_and_raw_batches(kafka: Kafka) -> None:
    partitions = [TopicPartition("ours", number) for number in range(3)]
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(kafka.bootstrap))) as cluster:
        await create_topics(cluster, [NewTopic(name="ours", partitions=2, replication_factor=1)])
        await create_partitions(cluster, {"ours": 3})
        await create_topics(cluster, [NewTopic(name="copy", partitions=1, replication_factor=1)])
        assert set(await list_topics(cluster)) == {"ours", "copy"}
        sent: dict[tuple[TopicPartition, int], bytes] = {}
        for codec in Codec:
            config = ProducerConfig(compression=codec, batch_size=2000, window_ms=1000)
            async with open_producer(
                cluster, config, clock=lambda: time.time_ns() // 1_000_000, rng=Random(1)
            ) as producer:
                values = [b"%s %d" % (codec.name.encode(), number) for number in range(300)]
                deliveries = [(value, await producer.send("ours", value, key=value[-2:])) for value in values]
                await producer.flush()
                for value, delivery in deliveries:
                    found = await delivery.wait()
                    sent[found.topic_partition, found.offset] = value
        ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=DEADLINE_S)
        assert sum(end.offset for end in ends.values()) == len(sent)
        async with open_consumer(cluster, ConsumerConfig()) as consumer:
            consumer.assign(dict.fromkeys(partitions, 0))
            read: dict[tuple[TopicPartition, int], bytes | None] = {}
            with trio.fail_after(DEADLINE_S):
                while len(read) < len(sent):
                    record = await anext(consumer.records())
                    read[record.topic_partition, record.offset] = record.value
            assert read == sent
            consumer.assign({partitions[0]: 10**6})
            with pytest.raises(PartitionOffsetOutOfRangeError, match="ours-0"):
                await consumer.poll_batches(timeout_s=DEADLINE_S)
            consumer.assign({partitions[0]: 0})
            (batches, *_) = await consumer.poll_batches(timeout_s=DEADLINE_S)
        assert not await can_keep_offsets(cluster, BrokerId(1))
        copy = {TopicPartition("copy", 0): batches.data}
        result = (await raw_produce(cluster, copy, keep_offsets=False, timeout_s=DEADLINE_S))[TopicPartition("copy", 0)]
        assert isinstance(result.error, KafkaError), "stock Kafka takes one batch for a partition in a request"
        await delete_topics(cluster, ["ours"])


@pytest.mark.timeout(900)
async def test_elections_moves_and_throttles(kafka: Kafka) -> None:
    one, two, moved = BrokerId(1), BrokerId(2), TopicPartition("moved", 0)
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(kafka.bootstrap))) as cluster:
        await create_topics(cluster, [NewTopic(name="moved", partitions=1, replication_factor=1)])
        for kind in ElectionType:
            elected = await elect_leaders(cluster, [moved], kind, timeout_s=DEADLINE_S)
            assert isinstance(elected[moved], KafkaError)
            assert getattr(elected[moved], "code", None) is ErrorCode.ELECTION_NOT_NEEDED
        assert await elect_leaders(cluster, None, ElectionType.PREFERRED, timeout_s=DEADLINE_S) == {}
        assert await alter_reassignments(cluster, {moved: [one]}, timeout_s=DEADLINE_S) == {}
        for target, code in (
            ([one, two], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ):
            refused = await alter_reassignments(cluster, {moved: target}, timeout_s=DEADLINE_S)
            assert refused[moved].code is code
        assert await list_reassignments(cluster, timeout_s=DEADLINE_S) == {}
        assert await list_reassignments(cluster, [moved], timeout_s=DEADLINE_S) == {}
        names = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        await set_throttle(cluster, {moved: Move(now=[one], target=[two])}, 1000, timeout_s=DEADLINE_S)
        settings = await describe_topic_settings(cluster, ["moved", "none"], names, timeout_s=DEADLINE_S)
        assert settings == {"moved": {LEADER_REPLICAS: "0:1", FOLLOWER_REPLICAS: "0:2"}}
        await remove_throttle(cluster, ["moved"], timeout_s=DEADLINE_S)
        settings = await describe_topic_settings(cluster, ["moved"], names, timeout_s=DEADLINE_S)
        assert settings == {"moved": {LEADER_REPLICAS: "", FOLLOWER_REPLICAS: ""}}
        await delete_topics(cluster, ["moved"])


async def test_idle_partitions_stay_in_a_session(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    idle_soon(monkeypatch)
    sent = requests_of_sessions(monkeypatch)
    partitions = [TopicPartition("idle", number) for number in range(3)]
    heard = Heard(partitions)
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(kafka.bootstrap))) as cluster:
            await create_topics(cluster, [NewTopic(name="idle", partitions=3, replication_factor=1)])
            async with open_consumer(cluster, ConsumerConfig(max_wait_ms=100), heard.note) as consumer:
                consumer.assign(dict.fromkeys(partitions, 0))
                await until_in_session(sent)
                async with open_producer(
                    cluster, ProducerConfig(linger_ms=0), clock=_now_ms, rng=Random(1)
                ) as producer:
                    for number in (1, 1, 2):
                        await producer.send("idle", b"news", partition=number)
                        await producer.flush()
                        (batches,) = await next_batches(consumer)
                        assert batches.topic_partition == partitions[number]
                await until_in_session(sent, after=len(sent))
                await heard.until_all_after(trio.current_time())
    assert heard.high_watermarks == dict(zip(partitions, (0, 2, 1), strict=True))


async def next_batches(consumer: Consumer) -> Sequence[FetchedBatches]:
    while not (polled := await consumer.poll_batches()):
        pass
    return polled


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
