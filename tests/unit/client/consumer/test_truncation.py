"""Positions behind the end of a log that was truncated and grew again (KIP-320)."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.lowlevel

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import OffsetReset
from pipeline.client.consumer.consumer import Consumer
from pipeline.client.consumer.errors import PartitionFetchError, PartitionTruncatedError
from pipeline.client.consumer.fetch_plan import judge_answer
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import FetchRequest, PartitionData
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from pipeline.records.batch import place_batch
from tests.support.scripted_broker import Partition, ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenConsumer
from tests.unit.client.consumer.conftest import DEADLINE_S, T0, numbers, read

ASKED = "OffsetForLeaderEpochRequest"


def write(scripted: ScriptedCluster, *values: bytes) -> None:
    """Append batches of ten equal records."""
    for value in values:
        scripted.partition(T0).append_values([value] * 10)
    scripted.notify()


def replace_end(scripted: ScriptedCluster) -> None:
    """Truncate the log of 30 records to 10, and let it grow to 50."""
    scripted.partition(T0).truncate(10)
    write(scripted, *[b"new"] * 4)


async def raised(consumer: Consumer) -> PartitionTruncatedError:
    """The error of the partition, before which no batch is returned."""
    with trio.fail_after(DEADLINE_S), pytest.raises(PartitionTruncatedError) as caught:
        while True:
            assert await consumer.poll_batches() == []
    return caught.value


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.lowlevel.checkpoint()


def refuse(scripted: ScriptedCluster, number: int) -> None:
    """Have the leader tell no ends of epochs of this partition; `del scripted._end_epochs` ends that."""
    plain = scripted._end_epochs

    def answer(broker: BrokerId, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        refusal = EpochEndOffset(partition=number, error_code=ErrorCode.OFFSET_NOT_AVAILABLE)
        topics = [
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[refusal if told.partition == number else told for told in topic.partitions],
            )
            for topic in plain(broker, request).topics
        ]
        return OffsetForLeaderEpochResponse(topics=topics)

    scripted._end_epochs = answer  # type: ignore[method-assign]


async def test_a_truncation_after_a_change_of_leader_is_an_error_that_names_the_end(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        await read(consumer, 30)
        assert scripted.requests[ASKED] == 0
        replace_end(scripted)
        error = await raised(consumer)
        assert (error.topic_partition, error.offset, error.diverging_epoch, error.end_offset) == (T0, 30, 0, 10)
        assert "was truncated to 10, below the position 30: records from 10 on" in str(error)
        assert consumer.position(T0) == 30
        assert await consumer.poll_batches(timeout_s=0) == []
        consumer.seek(T0, error.end_offset)
        assert await read(consumer, 40) == {T0: [b"new"] * 40}


@pytest.mark.parametrize("reset", [OffsetReset.EARLIEST, OffsetReset.LATEST])
async def test_a_reset_policy_continues_with_the_records_that_replaced_the_lost_records(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
    reset: OffsetReset,
) -> None:
    fill(3)
    async with scripted.broker(1), connect() as cluster, consume(cluster, auto_offset_reset=reset) as consumer:
        consumer.assign({T0: 0})
        await read(consumer, 30)
        replace_end(scripted)
        assert await read(consumer, 40) == {T0: [b"new"] * 40}
        assert consumer.position(T0) == 50


async def test_records_that_were_fetched_before_a_truncation_precede_its_error(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        records = consumer.records()
        with trio.fail_after(DEADLINE_S):
            assert (await anext(records)).offset == 0
            replace_end(scripted)
            assert [(await anext(records)).offset for _ in range(29)] == list(range(1, 30))
            with pytest.raises(PartitionTruncatedError):
                await anext(records)


async def test_a_position_with_its_epoch_is_compared_before_the_first_fetch(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    replace_end(scripted)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.add(T0, 30, leader_epoch=0)
        error = await raised(consumer)
        assert scripted.requests["FetchRequest"] == 0
        consumer.add(T0, error.end_offset, leader_epoch=error.diverging_epoch)
        assert await read(consumer, 40) == {T0: [b"new"] * 40}
        consumer.add(T0, 40, leader_epoch=1)
        assert await read(consumer, 10) == {T0: [b"new"] * 10}


async def test_a_position_that_the_new_leader_has_is_asked_about_once(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        await read(consumer, 30)
        for epoch in (1, 2):
            scripted.partition(T0).truncate(scripted.partition(T0).log_end_offset)
            fill(1)
            await read(consumer, 10)
            assert scripted.requests[ASKED] == epoch
        assert consumer.position(T0) == 50


async def test_a_leader_that_never_knew_a_compacted_epoch_has_truncated_nothing(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    """All records of epoch 1 are gone, so the answer is about epoch 0; the position is not beyond its end."""
    fill(3)
    scripted.partition(T0).epoch = 2
    write(scripted, b"after")
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.add(T0, 30, leader_epoch=1)
        assert await read(consumer, 10) == {T0: [b"after"] * 10}


@pytest.mark.parametrize(
    "versions",
    [
        pytest.param({OffsetForLeaderEpochRequest.API_KEY: 1}, id="an API that is too old"),
        pytest.param({MetadataRequest.API_KEY: 9, FetchRequest.API_KEY: 12}, id="metadata without topic ids"),
    ],
)
async def test_a_position_that_cannot_be_compared_is_fetched_as_it_is(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
    versions: dict[int, int],
) -> None:
    fill(3)
    async with scripted.broker(1, versions=versions), connect() as cluster, consume(cluster) as consumer:
        consumer.add(T0, 20, leader_epoch=7)
        assert await read(consumer, 10) == {T0: numbers(20, 30)}
        assert scripted.requests[ASKED] == 0


async def test_a_leader_that_knows_no_epoch_as_high_ends_the_reading(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.add(T0, 20, leader_epoch=7)
        with pytest.raises(PartitionTruncatedError, match="no leader epoch as high") as caught:
            await consumer.poll_batches()
        assert (caught.value.offset, caught.value.diverging_epoch, caught.value.end_offset) == (20, -1, -1)
        consumer.seek(T0, 20)
        assert await read(consumer, 10) == {T0: numbers(20, 30)}


async def test_a_leader_that_lags_is_asked_until_it_knows_its_epoch(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    scripted.lagging[BrokerId(1)] = {"t": {0: Partition(BrokerId(1), batches=list(scripted.partition(T0).batches))}}
    scripted.partition(T0).epoch = 2
    write(scripted, b"next")
    async with scripted.broker(2), scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        await know(cluster, 2)
        consumer.add(T0, 30, leader_epoch=0)
        await until(lambda: scripted.requests[ASKED] >= 3)
        assert scripted.requests["FetchRequest"] == 0
        scripted.lagging.clear()
        assert await read(consumer, 10) == {T0: [b"next"] * 10}


async def know(cluster: Cluster, epoch: int) -> None:
    """Refresh the metadata until it has the leader epoch."""
    cluster.track(["t"])
    with trio.fail_after(DEADLINE_S):
        while cluster.view.leader_epoch_of(T0) != epoch:
            await cluster.refresh()


async def test_a_partition_that_waits_for_its_answer_holds_up_no_other(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    scripted.add_topic("t", [1, 1])
    other = TopicPartition("t", 1)
    fill(3)
    fill(3, other)
    refuse(scripted, 0)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.add(T0, 20, leader_epoch=0)
        consumer.add(other, 20, leader_epoch=0)
        assert await read(consumer, 10) == {other: numbers(20, 30)}
        await until(lambda: scripted.requests[ASKED] >= 3)
        fill(1, other)
        assert await read(consumer, 10) == {other: numbers(30, 40)}
        del scripted._end_epochs
        assert await read(consumer, 10) == {T0: numbers(20, 30)}


async def test_a_leader_that_changes_between_answer_and_fetch_is_asked_again(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    plain = scripted._end_epochs

    def answer(broker: BrokerId, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        told = plain(broker, request)
        if scripted.requests[ASKED] == 1:
            replace_end(scripted)
        return told

    scripted._end_epochs = answer  # type: ignore[method-assign]
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.add(T0, 30, leader_epoch=0)
        assert (await raised(consumer)).end_offset == 10


async def test_a_late_answer_of_the_former_leader_is_void(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    async with (
        scripted.broker(1),
        scripted.broker(2),
        connect() as cluster,
        consume(cluster, max_wait_ms=60_000) as consumer,
    ):
        consumer.assign({T0: 0})
        await read(consumer, 30)
        await until(lambda: scripted.requests["FetchRequest"] == 2)
        former = Partition(BrokerId(1), batches=list(scripted.partition(T0).batches))
        scripted.lagging[BrokerId(1)] = {"t": {0: former}}
        scripted.partition(T0).leader, scripted.partition(T0).epoch = BrokerId(2), 1
        await know(cluster, 1)
        await until(lambda: scripted.requests["FetchRequest"] == 3)
        former.append_values([b"never replicated"] * 10)
        scripted.notify()
        await until(lambda: consumer._fetcher._queues.keys() == {BrokerId(2)})
        write(scripted, b"new")
        assert await read(consumer, 10) == {T0: [b"new"] * 10}


@pytest.mark.parametrize("epoch", [-2, 2**31])
async def test_an_epoch_that_no_request_can_hold_is_refused(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, epoch: int
) -> None:
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        with pytest.raises(ValueError, match="is not a leader epoch"):
            consumer.add(T0, 0, leader_epoch=epoch)


async def test_an_answer_that_leaves_a_partition_out_is_asked_for_again(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    scripted._end_epochs = lambda *_: OffsetForLeaderEpochResponse()  # type: ignore[method-assign]
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.add(T0, 20, leader_epoch=0)
        await until(lambda: scripted.requests[ASKED] >= 3)
        del scripted._end_epochs
        assert await read(consumer, 10) == {T0: numbers(20, 30)}


async def test_a_refusal_for_good_pauses_the_partition(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
) -> None:
    fill(3)
    refused = EpochEndOffset(partition=0, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    answer = OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[refused])])
    scripted._end_epochs = lambda *_: answer  # type: ignore[method-assign]
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.add(T0, 20, leader_epoch=0)
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match="t-0"):
            await consumer.poll_batches(timeout_s=DEADLINE_S)


def answer_of(*batches: tuple[int, int]) -> Any:
    """An answer with batches of ten records, each at an offset and of an epoch."""
    log = Partition(BrokerId(1))
    log.append_values([b"value"] * 10)
    data = bytearray()
    for offset, epoch in batches:
        batch = bytearray(log.batches[0][1])
        place_batch(batch, 0, offset, epoch)
        data += batch
    return PartitionData(high_watermark=10_000, records=memoryview(bytes(data)))


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        pytest.param([(0, 3)], ((3, 0),), id="one batch"),
        pytest.param([(0, 3), (10, 3), (20, 4), (30, 6), (40, 6)], ((3, 0), (4, 20), (6, 30)), id="three epochs"),
        pytest.param([(0, 2), (10, 3)], ((2, 0), (3, 10)), id="first batch begins before the position"),
        pytest.param([(-10 + 5, 1), (5, 2)], ((2, 5),), id="a batch wholly before the position"),
        pytest.param([(0, 1), (50, 2)], ((1, 0), (2, 50)), id="a gap"),
        pytest.param([(0, 1), (50, 2), (10, 1)], ((1, 0),), id="a batch with a wrong offset after a gap"),
        pytest.param([(0, -1), (10, 4)], ((-1, 0), (4, 10)), id="an unknown epoch"),
    ],
)
def test_fetched_batches_name_where_their_epochs_begin(batches: Any, expected: Any) -> None:
    shifted = [(offset + 100, epoch) for offset, epoch in batches]
    found = judge_answer(T0, 105, answer_of(*shifted)).batches
    assert found is not None
    assert found.leader_epochs == tuple((epoch, offset + 100) for epoch, offset in expected)
