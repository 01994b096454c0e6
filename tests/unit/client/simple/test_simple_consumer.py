"""The low-level consumer against scripted brokers and a real one: each call has one answer, or the reason why not."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset, ProducerConfig
from pipeline.client.consumer.errors import PartitionBatchError, PartitionOffsetOutOfRangeError
from pipeline.client.producer.producer import open_producer
from pipeline.client.simple.simple_consumer import SimpleConsumer, open_simple_consumer
from pipeline.errors import ConfigurationError, DeadlineExceededError, NetworkError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchRequest
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from tests.support.brokers import serving_cluster
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster

T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)
NOW_MS = 1_700_000_000_000
CONFIG = ConsumerConfig(max_wait_ms=0)


def fill(scripted: ScriptedCluster, batches: int, topic_partition: TopicPartition = T0) -> None:
    partition = scripted.partition(topic_partition)
    for _ in range(batches):
        partition.append_values([b"%d" % partition.log_end_offset] * 10)


async def values(consumer: SimpleConsumer, batches: Any) -> list[Any]:
    return [record.value for record in await consumer.records(batches)]


async def test_a_fetch_begins_at_the_offset_and_says_where_to_go_on(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    fill(scripted, 3)
    scripted.fetch_limit_batches = 1
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        fetched = await consumer.fetch(T0, 15)
        assert (fetched.position, fetched.next_offset, fetched.high_watermark) == (15, 20, 30)
        records = await consumer.records(fetched)
        assert [(record.topic_partition, record.offset, record.value) for record in records] == [
            (T0, offset, b"10") for offset in range(15, 20)
        ]
        again = await consumer.fetch(T0, 15)
        assert (again.next_offset, again.data) == (fetched.next_offset, fetched.data)
        assert (await consumer.fetch(T0, 0)).next_offset == 10
        at_end = await consumer.fetch(T0, 30)
        assert (at_end.next_offset, len(at_end.data), await consumer.records(at_end)) == (30, 0, [])


async def test_the_error_of_one_partition_takes_nothing_from_the_others(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    scripted.add_topic("u", [2])
    fill(scripted, 2)
    fill(scripted, 3, U0)
    scripted.partition(T0).log_start_offset = 10
    async with (
        scripted.broker(1),
        scripted.broker(2),
        connect() as cluster,
        open_simple_consumer(cluster, CONFIG) as consumer,
    ):
        for offset in (3, 21):
            response = await consumer.multi_fetch({T0: offset, U0: 10})
            assert response.batches.keys() == {U0}
            assert response.batches[U0].next_offset == 30
            error: Any = response.errors[T0]
            assert isinstance(error, PartitionOffsetOutOfRangeError)
            assert (error.requested, error.log_start_offset, error.log_end_offset) == (offset, 10, 20)
        with pytest.raises(PartitionOffsetOutOfRangeError, match=r"t-0.*offset 3 .*10 to 20"):
            await consumer.fetch(T0, 3)
        assert await values(consumer, await consumer.fetch(T0, 10)) == [b"10"] * 10


async def test_a_moved_leader_is_followed(scripted: ScriptedCluster, connect: OpenCluster) -> None:
    fill(scripted, 1)
    async with (
        scripted.broker(1),
        scripted.broker(2),
        connect() as cluster,
        open_simple_consumer(cluster, CONFIG) as consumer,
    ):
        await consumer.fetch(T0, 0)
        scripted.partition(T0).leader = BrokerId(2)
        scripted.partition(T0).epoch += 1
        assert (await consumer.fetch(T0, 0)).next_offset == 10


async def test_a_leader_that_does_not_answer_in_time_is_an_error_of_the_partition(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        await consumer.fetch(T0, 0)
        scripted.fetch_script.extend([ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100_000)
        with pytest.raises(KafkaError) as caught:
            await consumer.fetch(T0, 0, timeout_s=0.1)
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        scripted.fetch_script.clear()
        scripted.hold_metadata = trio.Event()
        with pytest.raises((NetworkError, DeadlineExceededError)):
            await consumer.fetch(TopicPartition("new", 0), 0, timeout_s=0.1)


async def test_a_damaged_batch_is_an_error_that_says_where_to_go_on(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    fill(scripted, 3)
    header, data = scripted.partition(T0).batches[1]
    scripted.partition(T0).batches[1] = (header, data[:-1] + bytes([data[-1] ^ 1]))
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        assert (await consumer.fetch(T0, 0)).next_offset == 10
        with pytest.raises(PartitionBatchError, match="checksum") as caught:
            await consumer.fetch(T0, 10)
        assert (caught.value.offset, caught.value.next_offset) == (10, 20)
        assert (await consumer.fetch(T0, 20)).next_offset == 30


async def test_a_batch_that_is_cut_is_asked_for_with_the_size_that_it_declares(
    scripted: ScriptedCluster, connect: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As brokers before KIP-74 do."""
    scripted.partition(T0).append_values([bytes(100_000)])
    asked = []
    whole = ScriptedCluster._read

    def cut(self: ScriptedCluster, broker: BrokerId, request: FetchRequest, code: ErrorCode) -> Any:
        size = request.topics[0].partitions[0].partition_max_bytes
        asked.append(size)
        response = whole(self, broker, request, code)
        (topic,) = response.responses
        (data,) = topic.partitions
        assert isinstance(data.records, bytes)
        part = replace(data, records=data.records[:size])
        return replace(response, responses=[replace(topic, partitions=[part])])

    monkeypatch.setattr(ScriptedCluster, "_read", cut)
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        fetched = await consumer.fetch(T0, 0, max_bytes=5)
        assert await values(consumer, fetched) == [bytes(100_000)]
    size = len(scripted.partition(T0).batches[0][1])
    assert list(dict.fromkeys(asked)) == [5, 10, 20, size]


@pytest.mark.parametrize("offset", [-1, 2**63])
async def test_impossible_requests_are_refused(scripted: ScriptedCluster, connect: OpenCluster, offset: int) -> None:
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        with pytest.raises(ValueError, match="not an offset"):
            await consumer.fetch(T0, offset)
        with pytest.raises(ValueError, match="max_bytes"):
            await consumer.fetch(T0, 0, max_bytes=0)
        with pytest.raises(ValueError, match="max_offsets"):
            await consumer.offsets_before(T0, LATEST, 0)
        with pytest.raises(ConfigurationError, match=r"auto\.offset\.reset"):
            async with open_simple_consumer(cluster, ConsumerConfig(auto_offset_reset=OffsetReset.EARLIEST)):
                pass


async def test_fetches_of_many_tasks_do_not_wait_for_one_another(
    scripted: ScriptedCluster, connect: OpenCluster
) -> None:
    fill(scripted, 1)
    waiting = ConsumerConfig(max_wait_ms=600_000)
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, waiting) as consumer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.fetch, T0, 10)
            with trio.fail_after(60):
                while not cluster.is_asked(scripted.addresses[BrokerId(1)], "simple fetch"):
                    await trio.sleep(0.001)
                assert (await consumer.fetch(T0, 0)).next_offset == 10
            nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            assert (await consumer.fetch(T0, 0)).next_offset == 10


@asynccontextmanager
async def filled_topic(directory: Path, send: Callable[[Any], Any]) -> AsyncIterator[Cluster]:
    """A broker with topics t and u of one partition; `send` publishes with a producer."""
    async with serving_cluster(directory) as cluster:
        await create_topics(cluster, [NewTopic(name=name, partitions=1) for name in ("t", "u")])
        async with open_producer(cluster, ProducerConfig(), clock=lambda: NOW_MS, rng=Random(1)) as producer:
            await send(producer)
        yield cluster


async def test_offsets_before_a_time_descend_to_the_start_of_the_log(tmp_path: Path) -> None:
    async def send(producer: Any) -> None:
        for number in range(100):
            await producer.send("t", b"%d" % number, timestamp_ms=NOW_MS + number)

    async with filled_topic(tmp_path, send) as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        assert await consumer.offsets_before(T0, LATEST, 1) == [100]
        assert await consumer.offsets_before(T0, LATEST, 5) == [100, 75, 50, 25, 0]
        assert await consumer.offsets_before(T0, EARLIEST, 5) == [0]
        assert await consumer.offsets_before(T0, NOW_MS + 40, 3) == [40, 20, 0]
        assert await consumer.offsets_before(T0, NOW_MS + 1_000, 2) == [100, 0]
        assert await consumer.offsets_before(T0, NOW_MS, 2) == [0]
        await delete_records(cluster, {T0: 30}, timeout_s=30)
        assert await consumer.offsets_before(T0, NOW_MS + 40, 3) == [40, 35, 30]
        assert await consumer.offsets_before(T0, NOW_MS + 10, 3) == [30]
        with pytest.raises(PartitionOffsetOutOfRangeError) as caught:
            await consumer.fetch(T0, 29)
        assert (caught.value.log_start_offset, caught.value.log_end_offset) == (30, 100)


async def test_records_larger_than_asked_for_are_returned_whole(tmp_path: Path) -> None:
    async def send(producer: Any) -> None:
        for topic in ("t", "u"):
            await producer.send(topic, bytes(300_000))

    async with filled_topic(tmp_path, send) as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        with trio.fail_after(60):
            response = await consumer.multi_fetch({T0: 0, U0: 0}, max_bytes=100)
        assert response.errors == {}
        for topic_partition in (T0, U0):
            assert await values(consumer, response.batches[topic_partition]) == [bytes(300_000)]
