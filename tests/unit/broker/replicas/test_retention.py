"""Retention, deleted records and visibility, as clients see them."""

import random
from contextlib import suppress

import trio

from pipeline.broker.replicas.replicas import Replicas
from pipeline.errors import DiskFullError
from pipeline.log.checkpoint import LOG_START_OFFSETS, read_offsets
from pipeline.log.files import DiskFiles
from pipeline.model import Offset, TopicPartition
from pipeline.protocol.connection import ClientConnection
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, Broker, Start, batch
from tests.support.wire import joined

T = TopicPartition("t", 0)
OLD_MS = NOW_MS - 10_000_000


async def offset_of(broker: Broker, timestamp: int) -> tuple[int, int]:
    asked = [ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])]
    found = (await broker.ask(ListOffsetsRequest(topics=asked))).topics[0].partitions[0]
    return found.timestamp, found.offset


async def delete_for_good(replicas: Replicas) -> None:
    for directory in replicas.directories.opened:
        await replicas.upkeep.delete_expired(directory, NOW_MS)
        await trio.to_thread.run_sync(directory.flush_due, NOW_MS)


async def test_old_segments_go_and_clients_are_told_the_new_start(start: Start) -> None:
    async with start(log_segment_bytes=2000, log_retention_check_interval_ms=1) as broker:
        await broker.create("t", retention_ms="1000")
        await broker.create("compacted", retention_ms="1000", cleanup_policy="compact")
        for _ in range(5):
            await broker.produce("t", batch(b"x" * 1500, timestamp_ms=OLD_MS))
            await broker.produce("compacted", batch(b"x" * 1500, timestamp_ms=OLD_MS))
        await broker.produce("t", batch(b"new"))
        with trio.fail_after(TIMEOUT_S):
            while (await offset_of(broker, -2))[1] < 4:  # 5 if the fifth was old before the new one came
                await trio.lowlevel.checkpoint()
        assert (await broker.fetch("t", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await broker.fetch("t", 5)).log_start_offset in {4, 5}
        assert await offset_of(broker, OLD_MS + 1) == (NOW_MS, 5)
        assert broker.handle.replicas.partitions[TopicPartition("compacted", 0)].log.log_start_offset == 0


async def test_closed_segments_of_a_full_disk_go_though_the_active_one_cannot_be_closed(start: Start) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    async with start(files=files, log_segment_bytes=2000, log_segment_delete_delay_ms=0) as broker:
        await broker.create("t", retention_ms="1000")
        for _ in range(5):
            await broker.produce("t", batch(b"x" * 1500, timestamp_ms=OLD_MS))
        files.capacity_bytes = files.used_bytes
        refused = await broker.produce("t", batch(b"x" * 1500, timestamp_ms=OLD_MS))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        with suppress(DiskFullError):
            await delete_for_good(broker.handle.replicas)
        log = broker.handle.replicas.partitions[T].log
        assert (log.log_start_offset, len(log.snapshot.segments)) == (4, 1)
        assert (await broker.produce("t", batch(b"x" * 1500))).error_code == ErrorCode.NONE
        files.capacity_bytes = None


async def test_a_slow_reader_of_a_deleted_segment_gets_all_of_it(start: Start) -> None:
    async with start(log_segment_delete_delay_ms=0) as broker:
        await broker.create("t", retention_ms="1000", max_message_bytes="2000000")
        for number in range(16):
            result = await broker.produce("t", batch(bytes([number]) * 1_000_000, timestamp_ms=OLD_MS))
            assert result.error_code == ErrorCode.NONE
        partition = broker.handle.replicas.partitions[T]
        stored = (partition.log.directory / "00000000000000000000.log").read_bytes()
        machine = ClientConnection("slow")
        asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 25)
        topics = [await broker.named(FetchTopic, "t", partitions=[asked])]
        _, pieces = machine.encode_request(FetchRequest(max_bytes=1 << 25, topics=topics), 13)
        async with await trio.open_tcp_stream(broker.address.host, broker.address.port) as stream:
            await stream.send_all(joined(pieces))
            received = bytearray(await stream.receive_some(10))
            await delete_for_good(broker.handle.replicas)
            assert partition.log.log_start_offset == 16
            assert not [path for path in partition.log.directory.iterdir() if path.name.startswith(f"{0:020d}")]
            with trio.fail_after(TIMEOUT_S):
                while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
                    received += await stream.receive_some(50_000)
        assert stored in bytes(received)


async def test_deleted_records_stay_deleted_after_a_kill(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.produce("t", batch(b"a", b"b", b"c"))
        await broker.produce("t", batch(b"d"))
        partition = broker.handle.replicas.partitions[T]
        assert await partition.delete_records(Offset(1)) == 1
        assert read_offsets(DiskFiles(), partition.log.directory.parent / LOG_START_OFFSETS) == {T: 1}
        assert await offset_of(broker, -2) == (-1, 1)
        assert await offset_of(broker, 0) == (NOW_MS + 1, 1)
        assert (await broker.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert await partition.delete_records(Offset(-1)) == 4
        assert (await broker.fetch("t", 4)).error_code == ErrorCode.NONE
    async with start() as broker:
        assert await offset_of(broker, -2) == (-1, 4)


async def test_records_are_visible_once_they_are_flushed(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", visibility="flushed")
        partition = broker.handle.replicas.partitions[T]
        for number in range(5):
            await broker.produce("t", batch(b"x"))
            data = await broker.fetch("t", number, max_wait_ms=5000)
            assert data.high_watermark == number + 1 <= partition.log.recovery_point
    async with start() as broker:
        assert (await broker.fetch("t", 0)).high_watermark == 5


async def test_records_are_visible_after_flush_ms(start: Start) -> None:
    async with start() as broker:
        await broker.create("later", visibility="flushed", flush_ms="3600000")
        await broker.create("soon", visibility="flushed", flush_ms="1")
        for name in ("later", "soon"):
            await broker.produce(name, batch(b"x"))
        data = await broker.fetch("soon", 0, max_wait_ms=30_000)
        assert data.high_watermark == 1
        assert (await broker.fetch("later", 0)).high_watermark == 0


async def test_records_are_visible_after_flush_messages(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", visibility="flushed", flush_messages="2")
        await broker.produce("t", batch(b"x"))
        assert (await broker.fetch("t", 0)).high_watermark == 0
        await broker.produce("t", batch(b"x"))
        assert (await broker.fetch("t", 0)).high_watermark == 2
