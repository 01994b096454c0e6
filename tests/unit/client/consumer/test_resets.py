"""Positions out of range: errors, resets and positions that move."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
import trio.lowlevel

from pipeline.client.cluster.config import OffsetReset
from pipeline.client.consumer.errors import PartitionOffsetOutOfRangeError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenConsumer
from tests.unit.client.consumer.conftest import DEADLINE_S, T0, numbers, read


async def test_out_of_range_is_raised_once_with_the_bounds_and_others_go_on(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    scripted.add_topic("u", [1])
    other = TopicPartition("u", 0)
    fill(2)
    fill(2, other)
    scripted.partition(T0).log_start_offset = 10
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 5, other: 0})
        found = {}
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionOffsetOutOfRangeError, match="t-0") as caught:
            while True:
                for batches in await consumer.poll_batches():
                    found[batches.topic_partition] = batches.next_offset
        error = caught.value
        assert (error.topic_partition, error.requested, error.log_start_offset, error.log_end_offset) == (T0, 5, 10, 20)
        fill(1, other)
        await read(consumer, 10)
        consumer.seek(T0, error.log_start_offset)
        assert (await read(consumer, 10))[T0] == numbers(10, 20)


@pytest.mark.parametrize(("reset", "expected"), [(OffsetReset.EARLIEST, (10, 30)), (OffsetReset.LATEST, (20, 30))])
async def test_out_of_range_is_reset_where_the_policy_says_so(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
    reset: OffsetReset,
    expected: tuple[int, ...],
) -> None:
    fill(2)
    scripted.partition(T0).log_start_offset = 10
    async with scripted.broker(1), connect() as cluster, consume(cluster, auto_offset_reset=reset) as consumer:
        consumer.assign({T0: 5})
        with trio.fail_after(DEADLINE_S):
            while consumer.position(T0) == 5:
                await consumer.poll_batches(timeout_s=0.01)
        fill(1)
        start, stop = expected
        found = numbers(start, consumer.position(T0)) + (await read(consumer, stop - consumer.position(T0)))[T0]
        assert found == numbers(start, stop)


async def test_a_reset_moves_the_position_past_nothing_that_was_not_handed_out(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(1)
    async with (
        scripted.broker(1),
        connect() as cluster,
        consume(cluster, auto_offset_reset=OffsetReset.EARLIEST) as consumer,
    ):
        consumer.assign({T0: 0})
        records = consumer.records()
        with trio.fail_after(DEADLINE_S):
            assert (await anext(records)).offset == 0
            fill(3)
            scripted.partition(T0).log_start_offset = 20
            while consumer.high_watermark(T0) != 40:
                await trio.sleep(0.001)
            assert consumer.position(T0) == 1
            assert [(await anext(records)).offset for _ in range(29)] == [*range(1, 10), *range(20, 40)]
            assert consumer.position(T0) == 40


async def test_a_partition_out_of_range_holds_up_no_other(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    scripted.add_topic("t", [1, 1])
    other = TopicPartition("t", 1)
    plain, asked = scripted._list_offsets, trio.Event()

    def refuse(broker: BrokerId, request: ListOffsetsRequest) -> ListOffsetsResponse:
        asked.set()
        answer = plain(broker, request)
        assert isinstance(answer, ListOffsetsResponse)
        code = ErrorCode.OFFSET_NOT_AVAILABLE
        topics = [
            replace(topic, partitions=[replace(told, error_code=code) for told in topic.partitions])
            for topic in answer.topics
        ]
        return replace(answer, topics=topics)

    scripted._list_offsets = refuse  # type: ignore[method-assign]
    async with (
        scripted.broker(1),
        connect(request_timeout_ms=600_000) as cluster,
        consume(cluster, auto_offset_reset=OffsetReset.LATEST) as consumer,
    ):
        consumer.assign({T0: 500, other: 0})
        with trio.fail_after(DEADLINE_S):
            await asked.wait()
        fill(3, other)
        assert await read(consumer, 30) == {other: numbers(0, 30)}
        scripted._list_offsets = plain  # type: ignore[method-assign]
        with trio.fail_after(DEADLINE_S):
            while consumer.position(T0) == 500:
                await trio.sleep(0.01)
        fill(1)
        assert await read(consumer, 10) == {T0: numbers(0, 10)}
