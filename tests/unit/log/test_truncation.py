import random
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DiskFullError, OffsetOutOfRangeError, OffsetOverlapError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories.shutdown import close_log
from pipeline.log.expiry import take_expired
from pipeline.log.files import DiskFile, DiskFiles
from pipeline.log.held_files import release_files
from pipeline.log.leader_epochs import EpochStart
from pipeline.log.replacement import note_cleaned
from pipeline.log.truncation import restart_at, truncate_to
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import LeaderEpoch, Offset
from pipeline.records.batch import BatchHeader, read_header
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.wire import content_of
from tests.unit.log.conftest import Batches, Opener

EPOCHS = [3, 3, 4, 4, 4, 6, 6, 7]


def fill(log: UnifiedLog, batches: Batches, count: int = 8, size: int = 200) -> list[BatchHeader]:
    """Two records a batch, in the epochs of EPOCHS; returns the headers."""
    headers: list[Any] = []
    for number in range(count):
        batch = batches.copied(2, size=size, base_offset=log.log_end_offset, epoch=EPOCHS[number % len(EPOCHS)])
        headers += batches.append_copied(log, batch).headers
    return headers


def test_a_copied_batch_keeps_its_offset_and_its_epoch(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    headers = fill(log, batches)
    batch = batches.copied(2, base_offset=100, epoch=9)
    batches.append_copied(log, batch)
    assert batches.read_all(log) == [*headers, read_header(batch)]
    assert (log.last_epoch, log.epoch_start(LeaderEpoch(6)), log.log_end_offset) == (9, 10, 102)
    assert log.epoch_start(LeaderEpoch(5)) is None
    for base_offset in (0, 99, 101):
        with pytest.raises(OffsetOverlapError):
            batches.append_copied(log, batches.copied(1, base_offset=base_offset, epoch=9))


def test_a_log_without_records_has_no_last_epoch(open_log: Opener, batches: Batches) -> None:
    log = open_log()
    log.begin_epoch(LeaderEpoch(4))
    assert log.last_epoch == -1
    fill(log, batches)
    log.begin_epoch(LeaderEpoch(9))
    assert log.last_epoch == 7
    log.delete_records(log.log_end_offset)
    assert log.last_epoch == -1


@pytest.mark.parametrize("segment_bytes", [1, 1000, 1 << 20])
@pytest.mark.parametrize("flushed", [False, True])
def test_truncation_leaves_the_batches_before(
    open_log: Opener, batches: Batches, segment_bytes: int, flushed: bool
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=1)
    for offset in (0, 1, 2, 7, 10, 15, 16):
        log = open_log(config)
        restart_at(log, Offset(0))
        headers = fill(log, batches)
        if flushed:
            log.flush()
        assert truncate_to(log, Offset(offset)) is (offset < 16)
        left = headers[: offset // 2]
        assert batches.read_all(log) == left
        assert log.log_end_offset == 2 * len(left)
        assert log.recovery_point <= log.log_end_offset
        assert log.last_epoch == (left[-1].partition_leader_epoch if left else -1)
        assert log.end_offset_for(LeaderEpoch(9)) == EpochStart(LeaderEpoch(-1), Offset(-1))
        batches.check_indexes(log)
        again = fill(log, batches, 3)
        assert batches.read_all(log) == left + again
        batches.check_indexes(log)
        close_log(log)
        log = open_log(config, clean=True)
        assert batches.read_all(log) == left + again
        batches.check_indexes(log)
        assert not truncate_to(log, log.log_end_offset)


def test_a_log_starts_again_anywhere(open_log: Opener, batches: Batches, small_segments: LogConfig) -> None:
    for offset in (0, 7, 8, 1000, 2**40):
        log = open_log(small_segments)
        restart_at(log, Offset(0))
        fill(log, batches)
        log.delete_records(Offset(5))
        restart_at(log, Offset(offset))
        assert (log.log_start_offset, log.log_end_offset, log.snapshot.size_bytes) == (offset, offset, 0)
        assert (log.last_epoch, log.producers.active()) == (-1, [])
        with pytest.raises(OffsetOutOfRangeError):
            log.read(Offset(offset - 1), 1, log.log_end_offset)
        headers = fill(log, batches, 2)
        assert headers[0].base_offset == offset
        close_log(log)
        log = open_log(small_segments, clean=True)
        assert batches.read_all(log) == headers


def test_a_truncation_before_the_log_start_offset_empties_the_log(
    open_log: Opener, batches: Batches, small_segments: LogConfig
) -> None:
    for offset, start in ((0, 0), (3, 3), (4, 4), (5, 5), (6, 5), (7, 5)):
        log = open_log(small_segments)
        restart_at(log, Offset(0))
        batches.append_copied(log, batches.copied(2, base_offset=0, epoch=3))
        batches.append_copied(log, batches.copied(6, base_offset=2, epoch=3))
        log.delete_records(Offset(5))
        assert truncate_to(log, Offset(offset))
        assert (log.log_start_offset, log.log_end_offset, log.snapshot.size_bytes) == (start, start, 0)


def test_gaps_are_cut_where_the_batches_end(open_log: Opener, batches: Batches) -> None:
    bases = [0, 10, 11, 50, 2**33, 2**33 + 5, 2**40]
    rng = random.Random(1)
    for _ in range(20):
        log = open_log(LogConfig(segment_bytes=rng.choice([1, 250, 1 << 20]), index_interval_bytes=1))
        restart_at(log, Offset(0))
        headers: list[Any] = []
        for base in bases:
            headers += batches.append_copied(log, batches.copied(1, base_offset=base, epoch=2)).headers
        for _ in range(3):
            offset = rng.choice(bases) + rng.randint(0, 2)
            end = log.log_end_offset
            assert truncate_to(log, Offset(offset)) is (offset < end)
            headers = [header for header in headers if header.last_offset < offset]
            assert batches.read_all(log) == headers
            assert log.log_end_offset == (headers[-1].next_offset if headers else 0)
            batches.check_indexes(log)
        log = open_log(log.config)
        assert batches.read_all(log) == headers
        headers += batches.append_copied(log, batches.copied(1, base_offset=2**41, epoch=2)).headers
        assert batches.read_all(open_log(log.config)) == headers


def test_a_region_that_was_cut_ends_and_shows_nothing_else(open_log: Opener, batches: Batches) -> None:
    log = open_log(LogConfig(index_interval_bytes=1))
    fill(log, batches)
    regions = [log.read(Offset(offset), 1, log.log_end_offset).region for offset in range(0, 16, 2)]
    before = [content_of(region) for region in regions]
    truncate_to(log, Offset(8))
    fill(log, batches)
    after = [content_of(region) for region in regions]
    assert after == before[:4] + [b""] * 4


def test_appends_are_refused_where_a_truncated_log_had_no_room_for_a_new_segment(
    open_log: Opener, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(LogConfig(index_interval_bytes=1))
    headers = fill(log, batches)
    regions = [log.read(Offset(offset), 1, log.log_end_offset).region for offset in range(0, 16, 2)]
    before = [content_of(region) for region in regions]
    with monkeypatch.context() as patch:
        patch.setattr(log, "create_segment", refuse_to_open)
        with pytest.raises(DiskFullError):
            truncate_to(log, Offset(8))
        assert (log.failure, log.log_end_offset) == (None, 8)
        with pytest.raises(DiskFullError):
            fill(log, batches)
    headers = headers[:4] + fill(log, batches, 4)
    after = [content_of(region) for region in regions]
    assert after == before[:4] + [b""] * 4
    assert batches.read_all(log) == headers
    batches.check_indexes(log)
    close_log(log)
    log = open_log(log.config, clean=True)
    assert batches.read_all(log) == headers
    batches.check_indexes(log)


def test_a_disk_that_fails_while_truncating_takes_the_log_offline(
    open_log: Opener, batches: Batches, faulty: FaultyFiles
) -> None:
    for number in range(1, 4):
        log = open_log(files=faulty)
        restart_at(log, Offset(0))
        fill(log, batches)
        faulty.fail_sync_in = number
        with pytest.raises(StorageError, match="Input/output"):
            truncate_to(log, Offset(7))
        with pytest.raises(StorageError, match="Input/output"):
            batches.append_copied(log, batches.copied(1, base_offset=100, epoch=9))


def test_segments_do_not_expire_while_their_log_is_truncated(open_log: Opener, batches: Batches) -> None:
    log = open_log(LogConfig(segment_bytes=1, retention_ms=0))
    fill(log, batches)
    found = []

    def expire(log: UnifiedLog) -> None:
        found.append(take_expired(log, log.log_end_offset, batches.now_ms + 10**9))

    log.on_moving_back = expire
    truncate_to(log, Offset(9))
    assert found == [(), ()]
    assert log.log_start_offset == 0
    assert len(take_expired(log, Offset(5), batches.now_ms + 10**9)) == 2
    assert (log.log_start_offset, log.log_end_offset) == (4, 8)


def test_a_full_disk_leaves_the_log_as_it_was_or_truncates_it(
    open_log: Opener, batches: Batches, faulty: FaultyFiles
) -> None:
    config = LogConfig(index_interval_bytes=1)
    for capacity in (0, 10, 100, 150):
        log = open_log(config, files=faulty)
        restart_at(log, Offset(0))
        headers = fill(log, batches)
        faulty.capacity_bytes = faulty.used_bytes + capacity
        try:
            truncate_to(log, Offset(9))
        except DiskFullError:
            assert log.failure is None
        faulty.capacity_bytes = None
        truncate_to(log, Offset(9))
        headers = headers[:4] + fill(log, batches, 2)
        assert batches.read_all(log) == headers
        batches.check_indexes(log)
        log.flush()
        faulty.lose_power()
        assert batches.read_all(open_log(config)) == headers
        faulty = FaultyFiles(DiskFiles(), random.Random(capacity))


def test_a_cleaning_that_ends_while_the_log_is_truncated_is_not_noted(open_log: Opener, batches: Batches) -> None:
    threads: list[Any] = []
    noted: list[Any] = []

    class Ending(DiskFiles):
        """Ends a cleaning while the first file is removed."""

        def unlink(self, path: Path) -> None:
            if not threads and path.suffix == ".log":
                threads.append(
                    threading.Thread(target=lambda: noted.append(note_cleaned(log, Offset(14), truncations_then)))
                )
                threads[0].start()
                threads[0].join(0.05)
            super().unlink(path)

    log = open_log(LogConfig(segment_bytes=1), files=Ending())
    fill(log, batches)
    truncations_then = log.truncations
    assert note_cleaned(log, Offset(12), truncations_then)
    truncate_to(log, Offset(6))
    threads[0].join()
    assert noted == [False]
    assert log.clean_offset == 6
    fill(log, batches)
    assert log.clean_offset == 6
    assert note_cleaned(log, Offset(10), log.truncations)
    assert log.clean_offset == 10


def test_a_lack_of_open_files_half_way_ends_this_log_alone(
    open_log: Opener, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    log = open_log(LogConfig(segment_bytes=1))
    fill(log, batches)
    log.flush()
    log.on_failure = told.append
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(log, "create_segment", refuse_to_open)
        truncate_to(log, Offset(0))
    with pytest.raises(StorageError, match="Too many open files"):
        log.flush()
    assert not told
    assert batches.read_all(open_log()) == []


def test_a_lack_of_open_files_for_what_is_cut_off_leaves_the_log_as_it_was(open_log: Opener, batches: Batches) -> None:
    class FewOpenFiles(DiskFiles):
        left: int | None = None

        def open(self, path: Path, *, create: bool = False) -> DiskFile:
            if self.left is not None and path.parent == log.directory and not create:
                self.left -= 1
                if self.left < 0:
                    raise DiskFullError(str(path), "Too many open files")
            return super().open(path, create=create)

    config = LogConfig(segment_bytes=1, index_interval_bytes=1)
    for left in range(100):
        files = FewOpenFiles()
        log = open_log(config, files=files)
        restart_at(log, Offset(0))
        headers = fill(log, batches)
        log.flush()
        release_files(log)
        files.left = left
        is_enough = True
        try:
            truncate_to(log, Offset(0))
        except DiskFullError:
            is_enough = False
            files.left = None
            assert batches.read_all(log) == headers
            truncate_to(log, Offset(0))
        files.left = None
        headers = fill(log, batches, 2)
        assert batches.read_all(log) == headers
        batches.check_indexes(log)
        assert batches.read_all(open_log(config)) == headers
        if is_enough:
            break
    assert is_enough and left > 5


def refuse_to_open(*_: int) -> None:
    raise DiskFullError("a segment", "Too many open files")
