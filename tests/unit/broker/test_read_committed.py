"""Readers of committed records (KIP-98), on a log into which a mirror copied transactions."""

import struct

from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.records.batch import iterate_headers, write_crc
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.unit.broker.conftest import NOW_MS, Broker, Start, batch

TRANSACTIONAL = 0x10
CONTROL = 0x20
PRODUCER = {"producer_id": 7, "producer_epoch": 0}


def _with_attributes(made: bytearray, attributes: int) -> bytearray:
    struct.pack_into(">h", made, 21, attributes)
    write_crc(made, 0, len(made))
    return made


def _marker(offset: int, *, commits: bool) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 1000)
    builder.append(struct.pack(">hh", 0, int(commits)), struct.pack(">hi", 0, 0), (), NOW_MS)
    made = _with_attributes(builder.build(**PRODUCER), TRANSACTIONAL | CONTROL)
    struct.pack_into(">q", made, 0, offset)
    return made


async def _read(broker: Broker, offset: int, *, session_epoch: int = -1) -> PartitionData:
    asked = FetchPartition(fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [await broker.named(FetchTopic, "t", partitions=[asked])]
    response = await broker.ask(FetchRequest(topics=topics, isolation_level=1, session_epoch=session_epoch))
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
        await copy(_with_attributes(batch(b"b", base_offset=1, base_sequence=0, **PRODUCER), TRANSACTIONAL))
        await copy(batch(b"c", base_offset=2, timestamp_ms=NOW_MS + 9))
        for session_epoch in (-1, 0):
            data = await _read(broker, 0, session_epoch=session_epoch)
            assert (data.high_watermark, data.last_stable_offset, _first_offsets(data)) == (3, 1, [0])
            assert data.aborted_transactions == ()
        assert _first_offsets(await _read(broker, 1)) == []
        assert (await _find(broker, -1), await _find(broker, NOW_MS + 9)) == (1, -1)
        await copy(_marker(3, commits=False))
        data = await _read(broker, 0)
        assert (data.last_stable_offset, _first_offsets(data)) == (4, [0, 1, 2, 3])
        assert data.aborted_transactions is not None
        assert [(found.producer_id, found.first_offset) for found in data.aborted_transactions] == [(7, 1)]
        assert (await _find(broker, -1), await _find(broker, NOW_MS + 9)) == (4, 2)
