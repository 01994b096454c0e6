import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.log.appends import AppendInfo
from pipeline.log.config import LogConfig
from pipeline.log.files import DiskFiles, Files
from pipeline.log.index import Index
from pipeline.log.loader import load_log
from pipeline.log.segment_indexes import position_before
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import (
    BatchHeader,
    iterate_headers,
    place_batch,
    read_header,
    set_base_offset,
    validate_for_append,
)
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.testing.faulty_files import FaultyFiles

TOPIC_PARTITION = TopicPartition("events", 0)
EPOCH = LeaderEpoch(3)
NOW_MS = 1_700_000_000_000


class Batches:
    """Makes batches and appends them."""

    epoch = EPOCH
    now_ms = NOW_MS
    topic_partition = TOPIC_PARTITION

    def make(
        self,
        count: int = 1,
        *,
        size: int = 20,
        timestamp: int = NOW_MS,
        producer_id: int = -1,
        epoch: int = -1,
        sequence: int = -1,
        base_offset: int = 0,
        step_ms: int = 1,
    ) -> bytearray:
        builder = BatchBuilder(Codec.NONE, 1 << 30)
        for number in range(count):
            assert builder.append(None, bytes([number % 251]) * size, (), timestamp + number * step_ms)
        batch = builder.build(producer_id, epoch, sequence)
        set_base_offset(batch, 0, base_offset)
        return batch

    def append(self, log: UnifiedLog, batches: bytes | bytearray, now_ms: int = NOW_MS) -> AppendInfo:
        buffer = bytearray(batches)
        headers = validate_for_append(buffer, max_batch_bytes=1 << 30)
        return log.append(memoryview(buffer), headers, EPOCH, now_ms)

    def append_keeping(self, log: UnifiedLog, batches: bytes | bytearray, now_ms: int = NOW_MS) -> AppendInfo:
        buffer = bytearray(batches)
        headers = validate_for_append(buffer, max_batch_bytes=1 << 30, keep_offsets=True)
        return log.append_keeping_offsets(memoryview(buffer), headers, EPOCH, now_ms)

    def copied(self, count: int = 1, *, epoch: int, base_offset: int, **make: int) -> bytearray:
        """A batch as a leader hands it out, written there in this epoch."""
        batch = self.make(count, base_offset=base_offset, **make)
        place_batch(batch, 0, base_offset, epoch)
        return batch

    def append_copied(self, log: UnifiedLog, batches: bytes | bytearray, now_ms: int = NOW_MS) -> AppendInfo:
        buffer = bytearray(batches)
        headers = validate_for_append(buffer, max_batch_bytes=1 << 30, keep_offsets=True)
        return log.append_copied(memoryview(buffer), headers, now_ms)

    def read(self, log: UnifiedLog, offset: int, max_bytes: int = 1, up_to: int | None = None) -> list[BatchHeader]:
        up_to = log.log_end_offset if up_to is None else up_to
        found = log.read(Offset(offset), max_bytes, Offset(up_to))
        data = found.region.file.read_at(found.region.size, found.region.position)  # type: ignore[attr-defined]
        assert len(data) == found.region.size
        headers = [header for _, header in iterate_headers(data)]
        assert not headers or headers[0].base_offset == found.base_offset
        return headers

    def read_all(self, log: UnifiedLog) -> list[BatchHeader]:
        headers: list[BatchHeader] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            found = self.read(log, offset, 1 << 20)
            assert found
            headers += found
            offset = Offset(found[-1].next_offset)
        return headers

    def raw(self, log: UnifiedLog) -> list[bytes]:
        """The bytes of all batches."""
        return [log.snapshot.read_batch(header) for header in self.read_all(log)]

    def header(self, batch: bytes) -> BatchHeader:
        """The header of a batch."""
        return read_header(batch)

    def next_offset(self, batch: bytes) -> int:
        """The offset behind a batch."""
        return read_header(batch).next_offset

    def read_all_offline(self, tmp_path: Path) -> list[BatchHeader]:
        """The headers of all batches in the files of `open_log`."""
        paths = sorted((tmp_path / "events-0").glob("*.log"))
        return [header for path in paths for _, header in iterate_headers(path.read_bytes())]

    def expected(self, batch: bytes | bytearray, base_offset: int) -> BatchHeader:
        """The header of a batch as it lies in the log."""
        return read_header(batch)._replace(base_offset=base_offset, partition_leader_epoch=EPOCH)

    def check_indexes(self, log: UnifiedLog) -> None:
        """Every index entry points at its batch; every offset and time is found through them."""
        for segment in log.snapshot.segments:
            places = list(segment.places())
            assert sum(place.size_bytes for place in places) == segment.size_bytes
            by_position = {place.position: place for place in places}
            for relative_offset, position in entries(segment.offset_index):
                assert by_position[position].last_offset == segment.base_offset + relative_offset
            for timestamp, relative_offset in entries(segment.time_index):
                upto = [p for p in places if p.last_offset <= segment.base_offset + relative_offset]
                assert timestamp == max((p.max_timestamp for p in upto), default=-1)
            assert segment.max_timestamp == max((p.max_timestamp for p in places), default=-1)
            for place in places:
                assert segment.locate(place.base_offset) == segment.locate(place.last_offset) == place
            for timestamp in {p.max_timestamp + delta for p in places for delta in (-1, 0, 1)}:
                first = next((p for p in places if p.max_timestamp >= timestamp), None)
                later = segment.places(position_before(segment, timestamp))
                assert next((p for p in later if p.max_timestamp >= timestamp), None) == first


def entries(index: Index) -> list[tuple[int, int]]:
    """Of an index, stored ones and those in memory."""
    entry = index._entry
    stored = index.open().read_at(index._stored * entry.size, 0) if index._stored else b""
    return list(entry.iter_unpack(stored + index._tail))


@pytest.fixture(scope="session")
def batches() -> Batches:
    return Batches()


Opener = Callable[..., UnifiedLog]


@pytest.fixture
def open_log(tmp_path: Path) -> Opener:
    def open_it(
        config: LogConfig | None = None,
        *,
        files: Files | None = None,
        recovery_point: int = 0,
        clean: bool = False,
        below: str = "",
    ) -> UnifiedLog:
        directory = tmp_path / below / "events-0"
        directory.mkdir(parents=True, exist_ok=True)
        return load_log(
            files or DiskFiles(),
            directory,
            TOPIC_PARTITION,
            config or LogConfig(),
            recovery_point=Offset(recovery_point),
            clean=clean,
            now_ms=NOW_MS,
        )

    return open_it


@pytest.fixture
def faulty() -> FaultyFiles:
    return FaultyFiles(DiskFiles(), random.Random(1))


SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=1)


@pytest.fixture(scope="session")
def small_segments() -> LogConfig:
    return SMALL
