"""Readers of committed records (KIP-98), on a log into which a mirror copied transactions."""

from typing import Any

import pytest
import trio

from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.records.batch import iterate_headers
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch
from tests.support.transactions import PRODUCER, TRANSACTIONAL, marker, with_attributes


async def _read(
    broker: Broker, offset: int, *, session_epoch: int = -1, max_bytes: int = 1 << 20, **waiting: Any
) -> PartitionData:
    asked = FetchPartition(fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [await broker.named(FetchTopic, "t", partitions=[asked])]
    request = FetchRequest(topics=topics, isolation_level=1, session_epoch=session_epoch, **waiting)
    response = await broker.ask(request, lane="fetch")
    data: PartitionData = response.responses[0].partitions[0]
    return data


async def _find(broker: Broker, timestamp: int) -> int:
    asked = [ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(timestamp=timestamp)])]
    response = await broker.ask(ListOffsetsRequest(topics=asked, isolation_level=1))
    offset: int = response.topics[0].partitions[0].offset
    return offset


def _first_offsets(data: PartitionData) -> list[int]:
    return [header.base_offset for _, header in iterate_headers(data.records)]  # type: ignore[arg-type]


async def test_open_transactions_are_hidden_and_aborted_ones_named(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", mirror_source="east:t")

        async def copy(made: bytearray) -> None:
            assert (await broker.produce("t", made, keep_offsets=True)).error_code == ErrorCode.NONE

        await copy(batch(b"a"))
        await copy(with_attributes(batch(b"b", base_offset=1, base_sequence=0, **PRODUCER), TRANSACTIONAL))
        await copy(batch(b"c", base_offset=2, timestamp_ms=NOW_MS + 9))
        for session_epoch in (-1, 0):
            data = await _read(broker, 0, session_epoch=session_epoch)
            assert (data.high_watermark, data.last_stable_offset, _first_offsets(data)) == (3, 1, [0])
            assert data.aborted_transactions == ()
        assert _first_offsets(await _read(broker, 1)) == []
        assert (await _find(broker, -1), await _find(broker, NOW_MS + 9)) == (1, -1)
        await copy(marker(3, commits=False))
        data = await _read(broker, 0)
        assert (data.last_stable_offset, _first_offsets(data)) == (4, [0, 1, 2, 3])
        assert data.aborted_transactions is not None
        assert [(found.producer_id, found.first_offset) for found in data.aborted_transactions] == [(7, 1)]
        assert (await _find(broker, -1), await _find(broker, NOW_MS + 9)) == (4, 2)


async def test_aborted_transactions_behind_what_is_read_are_not_told(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", mirror_source="east:t")
        for base in range(0, 400, 2):
            made = batch(b"b" * 100, base_offset=base, base_sequence=base // 2, **PRODUCER)
            await broker.produce("t", with_attributes(made, TRANSACTIONAL), keep_offsets=True)
            await broker.produce("t", marker(base + 1, commits=False), keep_offsets=True)
        offset = 0
        while offset < 400:
            data = await _read(broker, offset, max_bytes=2000)
            read = _first_offsets(data)
            assert data.aborted_transactions is not None
            told = [found.first_offset for found in data.aborted_transactions]
            assert told[0] == offset - offset % 2
            assert max(read) - 1 <= told[-1] <= max(read) + 4
            offset = max(read) + 1


async def test_a_copy_that_begins_within_transactions_says_after_a_restart_what_was_aborted(start: Start) -> None:
    async def check(broker: Broker, stable: int, offsets: list[int], aborted: list[int]) -> None:
        data = await _read(broker, 100)
        assert (data.last_stable_offset, _first_offsets(data)) == (stable, offsets)
        assert [found.first_offset for found in data.aborted_transactions or ()] == aborted

    async with start() as broker:
        await broker.create("t", mirror_source="east:t")
        for made in (
            marker(100, commits=False),  # its transaction began and ended before the log start of the source
            with_attributes(batch(b"a", base_offset=101, base_sequence=7, **PRODUCER), TRANSACTIONAL),  # the end of one
            marker(102, commits=False),
            with_attributes(batch(b"b", base_offset=103, base_sequence=8, **PRODUCER), TRANSACTIONAL),  # left open
            batch(b"c", base_offset=104),
        ):
            assert (await broker.produce("t", made, keep_offsets=True)).error_code == ErrorCode.NONE
        await check(broker, 103, [100, 101, 102], [101])
    async with start() as broker:
        await check(broker, 103, [100, 101, 102], [101])
        assert (await broker.produce("t", marker(105, commits=False), keep_offsets=True)).error_code == ErrorCode.NONE
        await check(broker, 106, [100, 101, 102, 103, 104, 105], [101, 103])


@pytest.mark.parametrize("session_epoch", [-1, 0])
async def test_unstable_records_do_not_end_the_wait_of_a_fetch(start: Start, session_epoch: int) -> None:
    async with start() as broker:
        await broker.create("t", mirror_source="east:t")
        found: list[PartitionData] = []

        async def wait() -> None:
            found.append(await _read(broker, 0, session_epoch=session_epoch, max_wait_ms=9000, min_bytes=200))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            partition = broker.handle.replicas.partitions[TopicPartition("t", 0)]
            for offset in range(3):
                while not partition.waiters:
                    await trio.sleep(0.001)
                made = batch(b"b" * 100, base_offset=offset, base_sequence=offset, **PRODUCER)
                await broker.produce("t", with_attributes(made, TRANSACTIONAL), keep_offsets=True)
            assert not found
            await broker.produce("t", marker(3, commits=True), keep_offsets=True)
            with trio.fail_after(TIMEOUT_S / 2):
                while not found:
                    await trio.sleep(0.001)
        assert _first_offsets(found[0]) == [0, 1, 2, 3]
