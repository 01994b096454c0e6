"""Batches that are damaged, lie or cannot be opened: an error each, and no neighbour lost."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.lowlevel

from pipeline.client.consumer.consumer import Consumer
from pipeline.client.consumer.errors import PartitionBatchError
from pipeline.errors import CorruptBatchError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.records.batch import HEADER_SIZE, read_header, set_base_offset, write_crc, write_header
from pipeline.records.compression import Codec
from pipeline.records.memory import OPENED_BATCHES
from tests.support.bombs import bomb
from tests.support.scripted_broker import ScriptedCluster
from tests.unit.client.conftest import OpenCluster, OpenConsumer
from tests.unit.client.consumer.conftest import DEADLINE_S, T0, numbers, put, read, read_records

LAST_OFFSET_DELTA = slice(23, 27)
"""Its place in the header of a batch."""
LENGTH = slice(8, 12)


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


async def rejection(consumer: Consumer) -> Any:
    """The error that comes when nothing else is left to be read."""
    with trio.fail_after(DEADLINE_S), pytest.raises(PartitionBatchError) as caught:
        await anext(consumer.records())
    return caught.value


async def test_batches_before_a_damaged_one_are_handed_out_before_its_error(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
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
        assert error.batch == scripted.partition(T0).batches[2][1]
        assert consumer.position(T0) == 20
        assert await consumer.poll_batches(timeout_s=0.05) == []
        assert consumer.skip_batch(T0) == 30
        assert await read(consumer, 10) == {T0: numbers(30, 40)}


async def test_a_batch_that_cannot_be_opened_stops_its_own_partition_alone(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
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
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
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


async def test_only_a_reported_bad_batch_is_skipped(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
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
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
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
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
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
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
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
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, fill: Callable[..., None]
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
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
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
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
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


@pytest.mark.long
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
async def test_a_batch_that_holds_too_much_stops_its_partition_and_says_what_to_raise(
    scripted: ScriptedCluster,
    connect: OpenCluster,
    consume: OpenConsumer,
    fill: Callable[..., None],
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
