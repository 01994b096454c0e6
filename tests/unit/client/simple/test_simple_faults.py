"""The low-level consumer at its bounds: sizes, many partitions, closing, times that are none."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.simple.fetch_sizes import MAX_ANSWER_BYTES, MAX_FETCH_BYTES
from pipeline.client.simple.offsets_before import divided_offsets
from pipeline.client.simple.simple_consumer import SimpleConsumer, open_simple_consumer
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.connection import MAX_RESPONSE_BYTES
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import FetchRequest
from pipeline.protocol.messages.list_offsets import MAX_TIMESTAMP
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster

T0 = TopicPartition("t", 0)
CONFIG = ConsumerConfig(max_wait_ms=0)


def bound_answers(monkeypatch: pytest.MonkeyPatch) -> list[FetchRequest]:
    """Have brokers keep to `max_bytes` as Apache Kafka does (KIP-74): the first batch is whole, others come if they
    fit. Returns the requests.
    """
    requests: list[FetchRequest] = []
    whole = ScriptedCluster._read

    def read(self: ScriptedCluster, broker: BrokerId, request: FetchRequest, code: ErrorCode) -> Any:
        requests.append(request)
        left = request.max_bytes
        response = whole(self, broker, request, code)
        topics = []
        for asked, topic in zip(request.topics, response.responses, strict=True):
            parts: list[Any] = []
            for each, part in zip(asked.partitions, topic.partitions, strict=True):
                records: Any = part.records or b""
                if left < request.max_bytes and len(records) > min(left, each.partition_max_bytes):
                    records = b""
                left -= len(records)
                parts.append(replace(part, records=records))
            topics.append(replace(topic, partitions=parts))
        return replace(response, responses=topics)

    monkeypatch.setattr(ScriptedCluster, "_read", read)
    return requests


async def test_many_partitions_are_asked_for_no_more_than_a_client_takes(
    scripted: ScriptedCluster, connect: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.add_topic("many", [1] * 200)
    partitions = [TopicPartition("many", number) for number in range(200)]
    for each in partitions:
        scripted.partition(each).append_values([bytes(1000)])
    requests = bound_answers(monkeypatch)
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        response = await consumer.multi_fetch(dict.fromkeys(partitions, 0))
        assert (len(response.batches), response.errors) == (200, {})
        assert max(request.max_bytes for request in requests) <= MAX_ANSWER_BYTES
        await consumer.fetch(T0, 0, max_bytes=2**31 - 1)
        assert requests[-1].max_bytes == MAX_FETCH_BYTES < MAX_RESPONSE_BYTES


async def test_partitions_for_which_others_left_no_room_are_asked_again_in_their_size(
    scripted: ScriptedCluster, connect: OpenCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.add_topic("many", [1] * 5)
    partitions = [TopicPartition("many", number) for number in range(5)]
    for each in partitions:
        scripted.partition(each).append_values([bytes(900)])
    requests = bound_answers(monkeypatch)
    monkeypatch.setattr("pipeline.client.simple.simple_consumer.MAX_ANSWER_BYTES", 2000)
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        with trio.fail_after(60):
            response = await consumer.multi_fetch(dict.fromkeys(partitions, 0), max_bytes=1000)
    assert (len(response.batches), response.errors) == (5, {})
    assert {part.partition_max_bytes for each in requests for topic in each.topics for part in topic.partitions} == {
        1000
    }
    assert len(requests) == 3


async def test_a_consumer_that_is_closed_leaves_no_connection(scripted: ScriptedCluster, connect: OpenCluster) -> None:
    waiting = ConsumerConfig(max_wait_ms=600_000)
    async with scripted.broker(1) as address, connect() as cluster, trio.open_nursery() as nursery:
        consumer = SimpleConsumer(cluster, waiting)
        nursery.start_soon(consumer.fetch, T0, 0)
        with trio.fail_after(60):
            while not cluster.is_asked(address, "simple fetch"):
                await trio.sleep(0.001)
            consumer.close()
            scripted.partition(T0).append_values([b"v"])
            scripted.notify()
            while nursery.child_tasks:
                await trio.sleep(0.001)
        assert [lane for _, lane in cluster._pool._connections if lane] == []
        with pytest.raises(PipelineError, match="closed"):
            await consumer.fetch(T0, 0)


@pytest.mark.parametrize("timestamp_ms", [MAX_TIMESTAMP, -4, -100])
async def test_what_is_no_time_is_refused(scripted: ScriptedCluster, connect: OpenCluster, timestamp_ms: int) -> None:
    async with scripted.broker(1), connect() as cluster, open_simple_consumer(cluster, CONFIG) as consumer:
        with pytest.raises(ValueError, match="neither a time"):
            await consumer.offsets_before(T0, timestamp_ms, 1)
        with pytest.raises(TypeError):
            await consumer.offsets_before(T0, 1.5, 1)  # type: ignore[arg-type]


def test_more_offsets_than_there_are_cost_nothing() -> None:
    assert divided_offsets(0, 3, 2**40) == [3, 2, 1, 0]
    assert divided_offsets(5, 5, 2**40) == [5]
