import os
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import DiskFullError, OffsetOutOfRangeError, StorageError
from pipeline.log.checkpoint import LOG_START_OFFSETS, read_offsets
from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.expiry import take_expired
from pipeline.log.files import DiskFiles
from pipeline.log.retention import SegmentFacts, count_expired
from pipeline.log.segment_indexes import position_before
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.support.steps import to_end
from tests.unit.log.conftest import Batches

NAME = TopicPartition("a", 0)
KEEP = LogConfig(segment_bytes=700, index_interval_bytes=1, retention_ms=None)
BRIEF = LogConfig(segment_bytes=700, index_interval_bytes=1, retention_ms=1000)


def open_directory(path: Path, files: Any, now_ms: int, config: LogConfig = KEEP) -> LogDirectory:
    return open_log_directory(
        path, files, config, broker_id=BrokerId(1), cluster_id="c", rng=random.Random(1), now_ms=now_ms
    )


def expire(
    directory: LogDirectory, log: UnifiedLog, now_ms: int, high_watermark: int | None = None
) -> list[Any] | Sequence[int]:
    segments = take_expired(log, log.log_end_offset if high_watermark is None else Offset(high_watermark), now_ms)
    if segments:
        directory.delete_segments({log: segments}, now_ms)
    return [segment.base_offset for segment in segments]


SIZES = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50), st.integers(0, 1000)), min_size=1, max_size=8)


@pytest.mark.long
@settings(max_examples=300)
@given(
    rows=SIZES,
    retention_ms=st.none() | st.integers(0, 1000),
    retention_bytes=st.none() | st.integers(0, 200),
    deletes=st.booleans(),
    start=st.integers(0, 400),
    high_watermark=st.integers(0, 400),
)
def test_only_segments_that_may_go_are_expired(
    rows: Sequence[tuple[int, ...]],
    retention_ms: int | None,
    retention_bytes: int | None,
    deletes: bool,
    start: int,
    high_watermark: int,
) -> None:
    end, facts = 0, []
    for records, size_bytes, newest_ms in rows:
        end += records
        facts.append(SegmentFacts(end, size_bytes, newest_ms))
    config = LogConfig(retention_ms=retention_ms, retention_bytes=retention_bytes, deletes=deletes)
    count = count_expired(
        facts, config, log_start_offset=Offset(start), high_watermark=Offset(high_watermark), now_ms=1000
    )
    left = sum(segment.size_bytes for segment in facts)
    for segment in facts[:count]:
        assert segment.end_offset <= high_watermark
        is_old = retention_ms is not None and 1000 - segment.newest_ms > retention_ms
        left -= segment.size_bytes
        is_excess = retention_bytes is not None and left >= retention_bytes
        assert segment.end_offset <= start or (deletes and (is_old or is_excess))
    if deletes and retention_ms is not None and count < len(facts) and facts[count].size_bytes:
        assert 1000 - facts[count].newest_ms <= retention_ms or facts[count].end_offset > high_watermark


def filled(directory: LogDirectory, batches: Batches, count: int = 12) -> UnifiedLog:
    log = directory.create(NAME, now_ms=batches.now_ms)
    for number in range(count):
        batches.append(log, batches.make(2, size=100, timestamp=batches.now_ms + number * 100))
    assert len(log.snapshot.segments) > 3
    return log


def test_old_segments_go_and_what_is_left_is_whole(tmp_path: Path, batches: Batches) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms, BRIEF)
    log = filled(directory, batches)
    everything = batches.read_all(log)
    first = log.snapshot.segments[0]
    assert expire(directory, log, first.max_timestamp + 1000) == []
    assert expire(directory, log, first.max_timestamp + 1001) == [0]
    assert log.log_start_offset == log.snapshot.segments[0].base_offset > 0
    assert batches.read_all(log) == [header for header in everything if header.base_offset >= log.log_start_offset]
    with pytest.raises(OffsetOutOfRangeError):
        log.read(Offset(0), 1, log.log_end_offset)
    partition = tmp_path / "logs" / "a-0"
    names = {path.name for path in partition.glob("*.deleted")}
    assert {"00000000000000000000.log.deleted", "00000000000000000000.index.deleted"} <= names
    directory.flush_due(batches.now_ms + 3_600_000)
    assert not list(partition.glob("*.deleted"))
    directory.close()
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    assert directory.logs[NAME].log_start_offset == log.log_start_offset
    batches.check_indexes(directory.logs[NAME])
    directory.close()


def test_an_active_segment_that_expired_is_closed_first(tmp_path: Path, batches: Batches) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms, BRIEF)
    log = filled(directory, batches)
    end = log.log_end_offset
    assert expire(directory, log, batches.now_ms + 10**6, high_watermark=end - 1) != []
    assert len(log.snapshot.segments) == 1
    assert expire(directory, log, batches.now_ms + 10**6, high_watermark=end - 1) == []
    assert len(expire(directory, log, batches.now_ms + 10**6)) == 1
    assert (log.log_start_offset, log.log_end_offset, log.snapshot.size_bytes) == (end, end, 0)
    assert expire(directory, log, batches.now_ms + 10**7) == []
    info = batches.append(log, batches.make(1))
    assert info.base_offset == end
    directory.close()
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    assert directory.logs[NAME].log_start_offset == end
    assert directory.logs[NAME].log_end_offset == end + 1
    directory.close()


def test_size_keeps_at_least_what_was_asked_for(tmp_path: Path, batches: Batches) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    log = filled(directory, batches)
    log.config = LogConfig(segment_bytes=700, retention_ms=None, retention_bytes=1000)
    assert expire(directory, log, batches.now_ms)
    assert 1000 <= log.snapshot.size_bytes < 1700
    log.config = LogConfig(segment_bytes=700, retention_bytes=0, retention_ms=0, deletes=False)
    assert expire(directory, log, batches.now_ms + 10**9) == []
    directory.close()


def test_a_reader_of_a_deleted_segment_reads_on(tmp_path: Path, batches: Batches) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms, BRIEF)
    filled(directory, batches)
    directory.close()
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms, BRIEF)  # nothing is opened yet
    log = directory.logs[NAME]
    region = log.read(Offset(0), 10_000, log.log_end_offset).region
    headers = log.headers(Offset(0))
    snapshot = log.snapshot.segments[:2]
    assert next(headers).base_offset == 0
    assert len(expire(directory, log, batches.now_ms + 10**6)) > 3
    directory.flush_due(batches.now_ms + 10**7)
    assert not list((tmp_path / "logs" / "a-0").glob("*.deleted"))
    assert len(os.pread(region.file.fileno(), region.size, region.position)) == region.size
    for segment in snapshot:
        place = segment.locate(segment.base_offset + 1)
        assert place is not None
        assert place.base_offset == segment.base_offset
        assert position_before(segment, batches.now_ms) == 0
    assert [header.base_offset for header in headers] == list(range(2, 24, 2))
    assert not [path for path in (tmp_path / "logs" / "a-0").iterdir() if path.name < f"{log.log_start_offset:020d}"]
    directory.close()


def test_records_can_be_deleted_within_a_segment(tmp_path: Path, batches: Batches) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    log = filled(directory, batches)
    base = log.snapshot.segments[1].base_offset
    assert log.delete_records(Offset(base + 1)) == base + 1
    assert log.delete_records(Offset(1)) == base + 1
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(Offset(log.log_end_offset + 1))
    with pytest.raises(OffsetOutOfRangeError):
        log.read(Offset(base), 1, log.log_end_offset)
    assert batches.read(log, base + 1)[0].base_offset == base
    assert to_end(log.offset_for_timestamp(0)) == (batches.now_ms + base // 2 * 100 + 1, base + 1)
    assert expire(directory, log, batches.now_ms) == [0]
    directory.close()
    for clean in (True, False):
        directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
        log = directory.logs[NAME]
        assert log.log_start_offset == base + 1
        assert to_end(log.offset_for_timestamp(0)) == (batches.now_ms + base // 2 * 100 + 1, base + 1)
        directory.close() if clean else directory.release()
    log.delete_records(log.log_end_offset)
    assert to_end(log.offset_for_timestamp(0)) is None


def test_a_log_that_lost_its_end_starts_where_records_were_deleted(tmp_path: Path, batches: Batches) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    log = filled(directory, batches)
    end = log.log_end_offset
    log.delete_records(end)
    directory.close()
    (tmp_path / "logs" / ".kafka_cleanshutdown").unlink()
    paths = sorted((tmp_path / "logs" / "a-0").glob("*.log"))
    paths[-1].write_bytes(b"")
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    log = directory.logs[NAME]
    assert (log.log_start_offset, log.log_end_offset, len(log.snapshot.segments)) == (end, end, 1)
    assert batches.append(log, batches.make(1)).base_offset == end
    directory.close()


def test_a_new_log_of_an_old_name_starts_at_zero(tmp_path: Path, batches: Batches) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    filled(directory, batches).delete_records(Offset(7))
    directory.checkpoint_log_start_offsets()
    assert read_offsets(DiskFiles(), tmp_path / "logs" / LOG_START_OFFSETS) == {NAME: 7}
    directory.delete(NAME, batches.now_ms)
    batches.append(directory.create(NAME, now_ms=batches.now_ms), batches.make(9))
    directory.release()
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    assert directory.logs[NAME].log_start_offset == 0
    directory.close()


def test_a_failed_rename_takes_the_directory_offline(tmp_path: Path, batches: Batches) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    directory = open_directory(tmp_path / "logs", files, batches.now_ms, BRIEF)
    log = filled(directory, batches)
    directory.checkpoint_log_start_offsets()
    segments = take_expired(log, log.log_end_offset, batches.now_ms + 10**6)
    files.fail_rename_in = 3
    with pytest.raises(StorageError):
        directory.delete_segments({log: segments}, batches.now_ms)
    assert directory.failure is not None
    files.lose_power()
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    assert batches.read_all(directory.logs[NAME]) == []
    directory.close()


def test_a_log_deleted_while_its_segments_are_is_no_failure_of_the_disk(tmp_path: Path, batches: Batches) -> None:
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms, BRIEF)
    log = filled(directory, batches)
    segments = take_expired(log, log.log_end_offset, batches.now_ms + 10**6)
    directory.delete(NAME, batches.now_ms)
    directory.delete_segments({log: segments}, batches.now_ms)
    assert directory.failure is None
    directory.close()


@pytest.mark.parametrize("deleted_by", ["time", "request"])
def test_a_full_disk_lets_segments_go(tmp_path: Path, batches: Batches, deleted_by: str) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    directory = open_directory(tmp_path / "logs", files, batches.now_ms, BRIEF if deleted_by == "time" else KEEP)
    log = filled(directory, batches)
    files.capacity_bytes = files.used_bytes
    with pytest.raises(DiskFullError):
        batches.append(log, batches.make(20, size=100))
    now_ms = batches.now_ms
    if deleted_by == "time":
        now_ms = log.snapshot.segments[-1].max_timestamp + 1000
    else:
        log.delete_records(Offset(log.snapshot.segments[-1].base_offset))
    assert len(expire(directory, log, now_ms)) > 1
    names = [path.name for path in sorted((tmp_path / "logs" / "a-0").glob("*.log"))]
    assert names == [log.snapshot.segments[-1].path.name]
    with suppress(DiskFullError):
        directory.flush_due(now_ms + 3_600_000)
    assert files.used_bytes < files.capacity_bytes
    batches.append(log, batches.make(20, size=100))
    directory.flush_due(now_ms + 7_200_000)
    directory.close()
    directory = open_directory(tmp_path / "logs", DiskFiles(), now_ms)
    assert [header.base_offset for header in batches.read_all(directory.logs[NAME])][-1] == log.log_end_offset - 20
    directory.close()


def test_segments_that_no_file_could_be_opened_for_go_later(tmp_path: Path, batches: Batches) -> None:
    refused = 3

    class Files(DiskFiles):
        def rename(self, source: Path, target: Path) -> None:
            nonlocal refused
            if target.name.endswith(".deleted") and (refused := refused - 1) == 0:
                raise DiskFullError(str(source), "Too many open files")
            super().rename(source, target)

    directory = open_directory(tmp_path / "logs", Files(), batches.now_ms, BRIEF)
    log = filled(directory, batches)
    with pytest.raises(DiskFullError):
        expire(directory, log, batches.now_ms + 10**6)
    assert directory.failure is None
    for later_ms in (10**7, 10**8):
        directory.flush_due(batches.now_ms + later_ms)
    left = {path.name for path in (tmp_path / "logs" / "a-0").iterdir() if path.suffix in {".log", ".deleted"}}
    assert left == {log.snapshot.segments[-1].path.name}
    directory.close()


def test_a_crash_at_every_step_of_deletions_on_a_full_disk_leaves_no_hole(tmp_path: Path, batches: Batches) -> None:
    for change in range(1, 200):
        rng = random.Random(change)
        files = FaultyFiles(DiskFiles(), rng)
        directory = open_directory(tmp_path / str(change), files, batches.now_ms, BRIEF)
        log = filled(directory, batches, 10)
        log.flush()
        everything = batches.read_all(log)
        files.capacity_bytes = files.used_bytes
        files.crash_in = change
        has_finished = False
        with suppress(Crash):
            expire(directory, log, batches.now_ms + 1600)
            has_finished = True
        moved = log.log_start_offset
        files.lose_power()
        directory = open_directory(tmp_path / str(change), FaultyFiles(DiskFiles(), rng), batches.now_ms, BRIEF)
        assert not directory.failed
        log = directory.logs[NAME]
        assert log.log_start_offset <= moved and (log.log_start_offset == moved or not has_finished)
        assert batches.read_all(log) == [header for header in everything if header.last_offset >= log.log_start_offset]
        directory.close()
        if has_finished:
            break
    assert change > 10


def run_until(path: Path, batches: Batches, change: int, seed: int) -> bool:
    """Retention and deletions, stopped at the n-th change. False: the run ended before."""
    rng = random.Random(f"{change} {seed}")
    files = FaultyFiles(DiskFiles(), rng)
    directory = open_directory(path, files, batches.now_ms, BRIEF)
    log = filled(directory, batches, 10)
    log.flush()
    everything = batches.read_all(log)
    promised, finished = 0, False
    files.crash_in = change
    try:
        log.delete_records(Offset(5))
        directory.checkpoint_log_start_offsets()
        promised = 5
        expire(directory, log, batches.now_ms + 1600)
        promised = log.log_start_offset
        directory.flush_due(batches.now_ms + 100_000)
        expire(directory, log, batches.now_ms + 1700)
        promised = log.log_start_offset
        finished = True
    except Crash:
        pass
    moved = log.log_start_offset
    files.lose_power()
    directory = open_directory(path, FaultyFiles(DiskFiles(), rng), batches.now_ms, BRIEF)
    assert not directory.failed
    log = directory.logs[NAME]
    assert promised <= log.log_start_offset <= moved
    assert log.log_end_offset == everything[-1].next_offset
    assert batches.read_all(log) == [header for header in everything if header.last_offset >= log.log_start_offset]
    batches.check_indexes(log)
    directory.close()
    return not finished


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_every_step_deletes_a_beginning_and_no_more(tmp_path: Path, batches: Batches, seed: int) -> None:
    change = 1
    while run_until(tmp_path / str(change), batches, change, seed):
        change += 1
    assert change > 20
