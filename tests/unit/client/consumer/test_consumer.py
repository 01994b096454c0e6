from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.lowlevel

from pipeline.client.cluster.config import OffsetReset
from pipeline.client.consumer import opening
from pipeline.client.consumer.consumer import Consumer
from pipeline.client.consumer.errors import PartitionBatchError, PartitionFetchError, PartitionOffsetOutOfRangeError
from pipeline.errors import CorruptBatchError, MemoryExhaustedError, PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from pipeline.records.batch import HEADER_SIZE, iterate_headers, read_header, set_base_offset, write_crc, write_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.memory import DEFAULT_CAPACITY_BYTES, OPENED_BATCHES
from pipeline.records.record import iterate_records
from tests.support.bombs import bomb
from tests.support.scripted_broker import Partition, ScriptedCluster

T0 = TopicPartition("t", 0)
LAST_OFFSET_DELTA = slice(23, 27)
"""Its place in the header of a batch."""
LENGTH = slice(8, 12)
DEADLINE_S = 60


@pytest.fixture
def fill(scripted: ScriptedCluster) -> Callable[..., Any]:
    """Appends batches of ten records with the values 0, 1, 2 ... to a partition."""

    def fill(batches: int, topic_partition: TopicPartition = T0) -> None:
        partition = scripted.partition(topic_partition)
        for _ in range(batches):
            start = partition.log_end_offset
            partition.append_values([b"%d" % number for number in range(start, start + 10)])
        scripted.notify()

    return fill


async def read(consumer: Consumer, records: int) -> Any:
    """Values by partition, once so many records were read."""
    found: dict[Any, Any] = {}
    with trio.fail_after(DEADLINE_S):
        while sum(map(len, found.values())) < records:
            for batches in await consumer.poll_batches():
                mine = found.setdefault(batches.topic_partition, [])
                mine += [r.value for r in iterate_records(batches.data) if r.offset >= batches.position]
    return found


def numbers(start: int, stop: int) -> Any:
    return [b"%d" % number for number in range(start, stop)]


@pytest.mark.parametrize("start", [0, 7, 10, 55, 99])
async def test_reads_from_any_offset_to_the_end_and_then_what_comes(
    scripted: ScriptedCluster,
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
    start: int,
) -> None:
    fill(10)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: start})
        assert (await read(consumer, 100 - start))[T0] == numbers(start, 100)
        assert (consumer.position(T0), consumer.high_watermark(T0)) == (100, 100)
        assert await consumer.poll_batches(timeout_s=0.05) == []
        fill(1)
        assert (await read(consumer, 10))[T0] == numbers(100, 110)


async def test_whole_batches_come_as_views_without_those_before_the_offset(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(3)
    scripted.trailing_bytes = 30
    scripted.leading_batches = 1
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 15})
        (batches,) = await consumer.poll_batches()
        assert isinstance(batches.data, memoryview)
        assert [header.base_offset for _, header in iterate_headers(batches.data)] == [10, 20]
        assert (batches.position, batches.next_offset, batches.high_watermark) == (15, 30, 30)


async def test_several_brokers_are_read_at_once(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    scripted.add_topic("wide", [1, 2, 1, 2])
    partitions = [TopicPartition("wide", number) for number in range(4)]
    for partition in partitions:
        fill(5, partition)
    async with scripted.broker(1), scripted.broker(2), connect() as cluster, consume(cluster) as consumer:
        consumer.assign(dict.fromkeys(partitions, 0))
        assert await read(consumer, 200) == {partition: numbers(0, 50) for partition in partitions}


async def test_survives_restarts_moves_and_errors_without_gap_or_repetition(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(30)
    scripted.fetch_limit_batches = 1
    scripted.fetch_script.extend(
        [ErrorCode.NONE, "close", ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR]
    )
    scripted.fetch_script.pop()
    async with scripted.broker(2), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        async with scripted.broker(1):
            found = (await read(consumer, 100))[T0]
        async with scripted.broker(1):
            found += (await read(consumer, 100))[T0]
            scripted.partition(T0).leader = BrokerId(2)
            scripted.partition(T0).epoch += 1
            found += (await read(consumer, 300 - len(found)))[T0]
    assert found == numbers(0, 300)


async def test_what_is_fetched_ahead_is_bounded(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(100)
    scripted.fetch_limit_batches = 1
    async with scripted.broker(1), connect() as cluster, consume(cluster, max_bytes=500) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            while scripted.requests["FetchRequest"] < 3:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked(0.05)
        ahead = await consumer.poll_batches()
        assert 500 <= sum(len(batches.data) for batches in ahead) <= 1000
        assert (await read(consumer, 1000 - 10 * len(ahead)))[T0][-1] == b"999"


async def test_seek_add_and_remove_void_what_was_fetched(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    scripted.add_topic("u", [1])
    other = TopicPartition("u", 0)
    fill(2)
    fill(2, other)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            while scripted.requests["FetchRequest"] < 2:
                await trio.lowlevel.checkpoint()
        consumer.seek(T0, 15)
        consumer.add(other, 0)
        found = await read(consumer, 25)
        assert found == {T0: numbers(15, 20), other: numbers(0, 20)}
        consumer.remove(T0)
        assert consumer.assignment == {other}
        fill(1)
        fill(1, other)
        assert await read(consumer, 10) == {other: numbers(20, 30)}
        with pytest.raises(KeyError):
            consumer.seek(T0, 0)


@pytest.mark.parametrize(
    "bad",
    [
        {T0: 1.5},
        {T0: float("nan")},
        {T0: "5"},
        {T0: None},
        {T0: -1},
        {T0: 2**63},
        {TopicPartition("t", -1): 0},
        {TopicPartition("t", 2**31): 0},
        {TopicPartition("t", "0"): 0},  # type: ignore[arg-type]
        {TopicPartition(None, 0): 0},  # type: ignore[arg-type]
        {TopicPartition("x" * 40_000, 0): 0},
        {("v", 0): 0},
    ],
)
async def test_what_no_request_can_hold_is_refused_and_changes_nothing(
    scripted: ScriptedCluster,
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
    bad: Any,
) -> None:
    scripted.add_topic("u", [1])
    other = TopicPartition("u", 0)
    fill(3, other)
    refusals = (ValueError, TypeError, AttributeError, KafkaError)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({other: 0})
        ((partition, offset),) = bad.items()
        with pytest.raises(refusals):
            consumer.add(partition, offset)
        with pytest.raises(refusals):
            consumer.assign({T0: 0, **bad})
        assert consumer.assignment == {other}
        assert await read(consumer, 30) == {other: numbers(0, 30)}


async def test_out_of_range_is_raised_once_with_the_bounds_and_others_go_on(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
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
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
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
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
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


async def test_a_topic_made_anew_is_not_mixed_with_the_old_one(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(1)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        await read(consumer, 10)
        scripted.add_topic("t", [1])
        scripted.topics["t"][0] = Partition(BrokerId(1))
        fill(5)
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match=r"t-0.*deleted and created again"):
            while True:
                await consumer.poll_batches()


async def test_a_topic_that_stays_away_is_an_error(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any]
) -> None:
    async with scripted.broker(1), connect(default_api_timeout_ms=2000) as cluster, consume(cluster) as consumer:
        consumer.assign({TopicPartition("nowhere", 0): 0})
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match="nowhere-0") as caught:
            while True:
                await consumer.poll_batches()
        assert isinstance(caught.value.cause, KafkaError)


async def test_a_refusal_that_stays_is_an_error(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(1)
    scripted.fetch_script.append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match="TOPIC_AUTHORIZATION_FAILED"):
            while True:
                await consumer.poll_batches()
        consumer.seek(T0, 0)
        assert (await read(consumer, 10))[T0] == numbers(0, 10)


def damage(scripted: ScriptedCluster, number: int, topic_partition: TopicPartition = T0) -> None:
    """Give a batch a checksum that is wrong, as a disk or a network does."""
    header, data = scripted.partition(topic_partition).batches[number]
    scripted.partition(topic_partition).batches[number] = (header, data[:-1] + bytes([data[-1] ^ 1]))


def garble(scripted: ScriptedCluster, number: int, topic_partition: TopicPartition = T0) -> None:
    """Give a batch a payload that is no gzip under a checksum that is right, as any producer can."""
    header, data = scripted.partition(topic_partition).batches[number]
    garbled = bytearray(data[:HEADER_SIZE] + b"this is no gzip")
    write_header(garbled, header._replace(attributes=int(Codec.GZIP), batch_length=len(garbled) - HEADER_SIZE + 49))
    write_crc(garbled, 0, len(garbled))
    scripted.partition(topic_partition).batches[number] = (read_header(garbled), bytes(garbled))


def put(scripted: ScriptedCluster, batch: bytearray) -> None:
    """Append a batch of one record to the partition."""
    partition = scripted.partition(T0)
    placed = bytearray(batch)
    set_base_offset(placed, 0, partition.log_end_offset)
    partition.batches.append((read_header(placed), bytes(placed)))
    scripted.notify()


async def read_records(consumer: Consumer, count: int) -> Any:
    """Values by partition of so many records."""
    found: dict[Any, Any] = {}
    with trio.fail_after(DEADLINE_S):
        while count and (record := await anext(consumer.records())):
            found.setdefault(record.topic_partition, []).append(record.value)
            count -= 1
    return found


async def rejection(consumer: Consumer) -> Any:
    """The error that comes when nothing else is left to be read."""
    with trio.fail_after(DEADLINE_S), pytest.raises(PartitionBatchError) as caught:
        await anext(consumer.records())
    return caught.value


async def test_batches_before_a_damaged_one_are_handed_out_before_its_error(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(4)
    damage(scripted, 2)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        assert await read(consumer, 20) == {T0: numbers(0, 20)}
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionBatchError, match=r"t-0.*20.*checksum.*30") as caught:
            await consumer.poll_batches(DEADLINE_S)
        error = caught.value
        assert (error.topic_partition, error.offset, error.next_offset) == (T0, 20, 30)
        assert isinstance(error.cause, CorruptBatchError)
        assert consumer.position(T0) == 20
        assert await consumer.poll_batches(timeout_s=0.05) == []
        assert consumer.skip_batch(T0) == 30
        assert await read(consumer, 10) == {T0: numbers(30, 40)}


async def test_a_batch_that_cannot_be_opened_stops_its_own_partition_alone(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    scripted.add_topic("u", [1])
    other = TopicPartition("u", 0)
    fill(4)
    fill(4, other)
    garble(scripted, 1)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0, other: 0})
        assert await read_records(consumer, 50) == {T0: numbers(0, 10), other: numbers(0, 40)}
        error = await rejection(consumer)
        assert (error.topic_partition, error.offset, error.next_offset) == (T0, 10, 20)
        assert "t-0: batch at offset 10: not gzip data" in str(error)
        assert (consumer.position(T0), consumer.position(other)) == (10, 40)
        fill(1, other)
        assert await read_records(consumer, 10) == {other: numbers(40, 50)}
        assert consumer.skip_batch(T0) == 20
        assert await read_records(consumer, 20) == {T0: numbers(20, 40)}


async def test_a_bad_batch_is_refused_again_when_it_is_sought(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(3)
    garble(scripted, 0)
    garble(scripted, 1)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 5})
        assert (await rejection(consumer)).offset == 5
        consumer.seek(T0, 5)
        assert (await rejection(consumer)).offset == 5
        consumer.skip_batch(T0)
        assert (await rejection(consumer)).offset == 10
        consumer.skip_batch(T0)
        assert await read_records(consumer, 10) == {T0: numbers(20, 30)}


async def test_only_a_bad_batch_that_was_told_of_is_skipped(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(2)
    damage(scripted, 1)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with pytest.raises(ValueError, match="t-0 does not rest at a bad batch"):
            consumer.skip_batch(T0)
        with trio.fail_after(DEADLINE_S):
            while not consumer._fetcher._errors:
                await trio.lowlevel.checkpoint()
        with pytest.raises(ValueError, match="t-0 does not rest at a bad batch"):
            consumer.skip_batch(T0)
        assert await read_records(consumer, 10) == {T0: numbers(0, 10)}
        await rejection(consumer)
        assert consumer.skip_batch(T0) == 20
        with pytest.raises(ValueError, match="does not rest"):
            consumer.skip_batch(T0)
        with pytest.raises(KeyError):
            consumer.skip_batch(TopicPartition("nowhere", 0))


async def test_a_header_that_lies_about_its_end_loses_nothing_behind_it(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(3)
    header, data = scripted.partition(T0).batches[1]
    lying = bytearray(data)
    lying[LAST_OFFSET_DELTA] = (14).to_bytes(4, "big")
    scripted.partition(T0).batches[1] = (header, bytes(lying))
    skipped = []
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 10})
        while consumer.position(T0) < 20:
            assert "checksum" in str(await rejection(consumer))
            skipped.append(consumer.skip_batch(T0))
        assert await read_records(consumer, 10) == {T0: numbers(20, 30)}
    assert skipped == list(range(11, 21))


@pytest.mark.parametrize("behind", [0, 3])
async def test_a_batch_longer_than_the_answer_is_an_error_and_no_silence(
    scripted: ScriptedCluster,
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
    behind: int,
) -> None:
    """A flipped bit in a batch's length on the broker's disk: no answer from there on holds a whole batch."""
    fill(2 + behind)
    header, data = scripted.partition(T0).batches[1]
    longer = bytearray(data)
    longer[LENGTH] = (header.batch_length + (1 << 16)).to_bytes(4, "big")
    scripted.partition(T0).batches[1] = (header, bytes(longer))
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        assert await read_records(consumer, 10) == {T0: numbers(0, 10)}
        error = await rejection(consumer)
        assert (error.topic_partition, error.offset, error.next_offset) == (T0, 10, 20)
        assert "t-0: batch at offset 10: " in str(error)
        assert "continue at offset 20" in str(error)
        assert consumer.skip_batch(T0) == 20
        if behind:
            assert await read_records(consumer, behind * 10) == {T0: numbers(20, 20 + behind * 10)}


async def test_bytes_without_a_batch_that_reaches_the_position_are_an_error(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(1)
    header, data = scripted.partition(T0).batches[0]
    for answered in (data[:40], data):
        scripted.partition(T0).batches[:] = [(header, data), (header._replace(base_offset=10), answered)]
        async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
            consumer.assign({T0: 10})
            error = await rejection(consumer)
            assert (error.offset, error.next_offset) == (10, 11)
            assert "t-0: batch at offset 10: " in str(error)


async def test_a_batch_that_the_broker_finds_damaged_is_an_error(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(2)
    scripted.fetch_script.append(ErrorCode.CORRUPT_MESSAGE)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 3})
        error = await rejection(consumer)
        assert (error.topic_partition, error.offset, error.next_offset) == (T0, 3, 4)
        assert "t-0: batch at offset 3: is damaged in the log of the partition's leader" in str(error)
        assert consumer.skip_batch(T0) == 4


@pytest.mark.parametrize("wrong", [0, 50])
async def test_a_batch_with_a_wrong_offset_takes_none_of_its_neighbours_along(
    scripted: ScriptedCluster,
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
    wrong: int,
) -> None:
    """No checksum covers the base offset of a batch."""
    fill(5)
    header, data = scripted.partition(T0).batches[2]
    moved = bytearray(data)
    set_base_offset(moved, 0, wrong)
    scripted.partition(T0).batches[2] = (header, bytes(moved))
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 5})
        assert await read_records(consumer, 15) == {T0: numbers(5, 20)}
        error = await rejection(consumer)
        assert (error.offset, error.next_offset) == (20, 30)
        assert f"batch at offset 20: has the wrong offset {wrong}" in str(error)
        consumer.skip_batch(T0)
        assert await read_records(consumer, 20) == {T0: numbers(30, 50)}


@pytest.mark.parametrize("count", [1, 4])
async def test_the_last_batch_of_an_answer_with_a_wrong_offset_is_not_taken_for_one_behind_a_gap(
    scripted: ScriptedCluster,
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
    count: int,
) -> None:
    fill(count)
    header, data = scripted.partition(T0).batches[-1]
    base = header.base_offset
    moved = bytearray(data)
    set_base_offset(moved, 0, base + 2**40)
    scripted.partition(T0).batches[-1] = (header, bytes(moved))
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        if base:
            assert await read_records(consumer, base) == {T0: numbers(0, base)}
        error = await rejection(consumer)
        assert (error.offset, error.next_offset) == (base, base + 10)
        assert f"has the wrong offset {base + 2**40}" in str(error)


async def test_records_are_made_for_those_who_ask(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(3)
    found = []
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 12})
        with trio.fail_after(DEADLINE_S):
            async for record in consumer.records():
                assert consumer.position(T0) == record.offset + 1
                found.append((record.topic_partition, record.offset, record.value))
                if record.offset == 29:
                    break
    assert found == [(T0, number, b"%d" % number) for number in range(12, 30)]


@pytest.mark.parametrize("fetch_version", [4, 11, 12, 13, 18])
async def test_old_and_new_brokers_are_spoken_to(
    scripted: ScriptedCluster,
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
    fetch_version: int,
) -> None:
    fill(1)
    async with (
        scripted.broker(1, versions={1: fetch_version, 3: 9 if fetch_version < 13 else 13}),
        connect() as cluster,
        consume(cluster) as consumer,
    ):
        consumer.assign({T0: 3})
        assert (await read(consumer, 7))[T0] == numbers(3, 10)


async def test_a_broker_too_old_to_be_fetched_from_is_an_error(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(1)
    async with scripted.broker(1, versions={1: 3}), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S), pytest.raises(PartitionFetchError, match="UNSUPPORTED_VERSION"):
            await consumer.poll_batches(timeout_s=DEADLINE_S)


async def test_an_error_in_the_block_is_caught_as_itself_also_while_all_is_cancelled(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(1)
    async with scripted.broker(1), connect() as cluster:
        with trio.CancelScope() as scope:
            with pytest.raises(PipelineError, match="mine"):
                async with consume(cluster) as consumer:
                    consumer.assign({T0: 0})
                    await read(consumer, 10)
                    scope.cancel()
                    raise PipelineError("mine")
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
async def test_a_batch_that_holds_too_much_stops_its_partition_and_says_what_to_raise(
    scripted: ScriptedCluster,
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
    codec: Codec,
) -> None:
    fill(1)
    put(scripted, bomb(codec, 100 << 20, 0))
    fill(1)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        assert await read_records(consumer, 10) == {T0: numbers(0, 10)}
        error = await rejection(consumer)
        assert (error.offset, error.next_offset) == (10, 11)
        assert "raise max_opened_bytes of ConsumerConfig" in str(error)
        assert OPENED_BATCHES.held_bytes == 0
        consumer.skip_batch(T0)
        assert await read_records(consumer, 10) == {T0: numbers(11, 21)}
    async with scripted.broker(1), connect() as cluster, consume(cluster, max_opened_bytes=101 << 20) as consumer:
        consumer.assign({T0: 10})
        assert len((await read_records(consumer, 1))[T0][0]) == 100 << 20


async def test_an_open_batch_is_charged_until_its_records_were_taken_or_the_consumer_ends(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    put(scripted, bomb(Codec.GZIP, 1 << 20, 0))
    put(scripted, bomb(Codec.GZIP, 2 << 20, 0))
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        await read_records(consumer, 1)
        assert 2 << 20 <= OPENED_BATCHES.held_bytes < 4 << 20
        await read_records(consumer, 1)
        assert 4 << 20 <= OPENED_BATCHES.held_bytes < 6 << 20
    assert OPENED_BATCHES.held_bytes == 0


async def test_small_batches_wait_for_no_memory_and_large_ones_among_them_keep_their_place(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    builder = BatchBuilder(Codec.GZIP, 1 << 20)
    assert builder.append(None, b"small", (), 0)
    small = builder.build()
    for batch in (small, bomb(Codec.GZIP, 1 << 20, 0), small):
        put(scripted, batch)
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        records = consumer.records()
        with trio.fail_after(DEADLINE_S):
            with OPENED_BATCHES.charged(OPENED_BATCHES.capacity_bytes):
                assert (await anext(records)).value == b"small"
                assert OPENED_BATCHES.waiting == 0
                with trio.move_on_after(0.05) as scope:
                    await anext(records)
                assert scope.cancelled_caught
            assert len((await anext(records)).value) == 1 << 20
            assert OPENED_BATCHES.held_bytes > 1 << 20
            assert (await anext(records)).value == b"small"
            assert OPENED_BATCHES.held_bytes == 0
            assert consumer.position(T0) == 3


async def test_waiting_for_memory_holds_up_no_other_task_and_loses_no_batch(
    scripted: ScriptedCluster,
    connect: Callable[..., Any],
    consume: Callable[..., Any],
    fill: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(scripted, bomb(Codec.GZIP, 1 << 20, 0))
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with OPENED_BATCHES.charged(OPENED_BATCHES.capacity_bytes):
            with monkeypatch.context() as patched:
                patched.setattr(opening, "WAIT_S", 0.05)
                with pytest.raises(MemoryExhaustedError, match=r"raise opened\.batches\.max\.bytes"):
                    await anext(consumer.records())
            with trio.move_on_after(0.05):
                await anext(consumer.records())
            assert OPENED_BATCHES.waiting == 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_records, consumer, 1)
                with trio.fail_after(DEADLINE_S):
                    while not OPENED_BATCHES.waiting:
                        await trio.lowlevel.checkpoint()
                OPENED_BATCHES.resize(2 * OPENED_BATCHES.capacity_bytes)
        assert consumer.position(T0) == 1
    OPENED_BATCHES.resize(DEFAULT_CAPACITY_BYTES)


async def test_each_record_comes_from_the_position_on_of_one_open_batch_at_a_time(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(1)
    put(scripted, bomb(Codec.ZSTD, 1 << 20, 0))
    taken: list[Any] = []
    async with scripted.broker(1), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 5})
        while len(taken) < 6:
            for batches in await consumer.poll_batches():
                await opening.each_record(batches, taken.append)
    assert [record.offset for record in taken] == list(range(5, 11))
    assert OPENED_BATCHES.held_bytes == 0


async def test_a_partition_out_of_range_holds_up_no_other(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
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


async def test_a_consumer_whose_block_has_ended_says_so(
    scripted: ScriptedCluster, connect: Callable[..., Any], consume: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    fill(1)
    async with scripted.broker(1), connect() as cluster:
        async with consume(cluster) as consumer:
            consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            with pytest.raises(PipelineError, match="is closed"):
                await anext(consumer.records())
            with pytest.raises(PipelineError, match="is closed"):
                await consumer.poll_batches()
