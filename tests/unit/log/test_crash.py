"""The machine stops at every single change of the disk; what comes back is checked against what was appended."""

import errno
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.checkpoint import read_offsets
from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.shutdown import close_log
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles, Files
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.conftest import Batches, Opener

NAME = TopicPartition("a", 0)
OTHER = TopicPartition("b", 0)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=1, flush_ms=10)


@dataclass
class Run:
    """What a run did until it was stopped."""

    attempted: list[BatchHeader] = field(default_factory=list)
    acknowledged: int = 0
    flushed: int = 0
    deleted: bool = False


def open_directory(path: Path, files: Files, now_ms: int) -> LogDirectory:
    return open_log_directory(
        path, files, CONFIG, broker_id=BrokerId(1), cluster_id="c", rng=random.Random(1), now_ms=now_ms
    )


def scenario(directory: LogDirectory, batches: Batches, run: Run) -> None:
    """Appends, rolls, flushes, a checkpoint, a deletion and a clean shutdown."""
    now_ms = batches.now_ms
    log = directory.create(NAME, now_ms=now_ms)
    other = directory.create(OTHER, now_ms=now_ms)
    for number in range(12):
        sequence = len(run.attempted) * 2
        batch = batches.make(2, size=50 + number * 10, producer_id=5, epoch=0, sequence=sequence)
        expected = batches.expected(batch, log.log_end_offset)
        run.attempted.append(expected)
        info = batches.append(log, batch)
        assert list(info.headers) == [expected]
        run.acknowledged += 1
        batches.append(other, batch)
        if number % 5 == 4:
            now_ms += 30_000
            directory.flush_due(now_ms)
            run.flushed = log.recovery_point
            assert run.flushed == log.log_end_offset
        if number == 8:
            run.deleted = True
            directory.delete(OTHER, batches.now_ms)
            other = directory.create(OTHER, now_ms=now_ms)
    directory.close()
    run.flushed = run.attempted[-1].next_offset


def check(directory: LogDirectory, batches: Batches, run: Run) -> None:
    log = directory.logs.get(NAME)
    if log is None:
        assert run.flushed == 0
        assert not directory.failed
        return
    found = batches.read_all(log)
    assert found == run.attempted[: len(found)]
    assert log.log_end_offset >= run.flushed
    assert log.log_end_offset == (found[-1].next_offset if found else 0)
    assert found == list(log.headers(Offset(0)))
    batches.check_indexes(log)
    if found:
        last = found[-1]
        again = batches.make(2, size=50 + (len(found) - 1) * 10, producer_id=5, epoch=0, sequence=last.base_sequence)
        info = batches.append(log, again)
        assert (info.duplicate, info.base_offset) == (True, last.base_offset)
    info = batches.append(log, batches.make(1, size=2000))
    assert batches.read_all(log) == [*found, *info.headers]


def run_until(tmp_path: Path, batches: Batches, change: int, seed: int) -> bool:
    """Stops at the n-th change, loses power, recovers, and once more during and after the recovery. False: the run
    ended before.
    """
    path = tmp_path / f"{change}-{seed}"
    rng = random.Random(f"{change} {seed}")
    files = FaultyFiles(DiskFiles(), rng)
    files.crash_in = change
    run = Run()
    finished = False
    try:
        scenario(open_directory(path, files, batches.now_ms), batches, run)
        finished = True
    except Crash:
        pass
    files.lose_power()
    files = FaultyFiles(DiskFiles(), rng)
    files.crash_in = rng.randint(1, 12)
    try:
        log = open_directory(path, files, batches.now_ms).logs.get(NAME)
        assert log is None or batches.read_all(log) == run.attempted[: len(batches.read_all(log))]
    except Crash:
        pass
    files.lose_power()
    files = FaultyFiles(DiskFiles(), rng)
    directory = open_directory(path, files, batches.now_ms)
    check(directory, batches, run)
    directory.close()
    directory = open_directory(path, files, batches.now_ms)
    for log in directory.logs.values():
        batches.check_indexes(log)
    directory.close()
    return not finished


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_a_crash_at_every_step_loses_only_what_was_not_flushed(tmp_path: Path, batches: Batches, seed: int) -> None:
    change = 1
    while run_until(tmp_path, batches, change, seed):
        change += 1
    assert change > 100


def test_a_failed_sync_takes_the_log_offline(open_log: Opener, batches: Batches) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    log = open_log(files=files)
    batches.append(log, batches.make(1))
    log.flush()
    batches.append(log, batches.make(1))
    files.fail_sync_in = 1
    with pytest.raises(StorageError, match="Input/output"):
        log.flush()
    assert log.recovery_point == 1
    for action in (log.flush, lambda: close_log(log), lambda: batches.append(log, batches.make(1))):
        with pytest.raises(StorageError, match="Input/output"):
            action()
    assert log.recovery_point == 1
    files.lose_power()
    assert open_log().log_end_offset in (1, 2)


def test_a_sync_that_finds_no_space_is_a_failed_sync(
    open_log: Opener, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(files=DiskFiles())
    batches.append(log, batches.make(1))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space"):
        patch.setattr(os, "fdatasync", full)
        log.flush()
    with pytest.raises(StorageError, match="No space"):
        log.flush()
    assert log.recovery_point == 0


def test_a_directory_that_could_not_be_synced_for_want_of_descriptors_is_synced_by_the_next_flush(
    open_log: Opener, batches: Batches
) -> None:
    class Files(DiskFiles):
        synced = 0

        def sync_directory(self, path: Path) -> None:
            self.synced += 1
            if self.synced == 1:
                raise DiskFullError(str(path), "Too many open files")

    files = Files()
    log = open_log(files=files)
    files.synced = 0
    batches.append(log, batches.make(1))
    with pytest.raises(DiskFullError):
        log.flush()
    log.flush()
    assert files.synced > 1
    assert log.recovery_point == 1


def test_a_failed_sync_leaves_no_mark_of_a_clean_shutdown(tmp_path: Path, batches: Batches) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    directory = open_directory(tmp_path / "logs", files, batches.now_ms)
    batches.append(directory.create(NAME, now_ms=batches.now_ms), batches.make(1))
    files.fail_sync_in = 1
    with pytest.raises(StorageError):
        directory.close()
    assert not (tmp_path / "logs" / ".kafka_cleanshutdown").exists()
    open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms).close()


def test_a_failing_rename_of_the_checkpoint_takes_the_directory_offline_and_keeps_the_old_one(
    tmp_path: Path, batches: Batches
) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    directory = open_directory(tmp_path / "logs", files, batches.now_ms)
    log = directory.create(NAME, now_ms=batches.now_ms)
    batches.append(log, batches.make(1))
    directory.flush_due(batches.now_ms + 60_000)
    batches.append(log, batches.make(1))
    files.fail_rename_in = 1
    with pytest.raises(StorageError):
        directory.flush_due(batches.now_ms + 120_000)
    assert "Input/output" in str(directory.failure)
    for action in (log.flush, lambda: directory.create(OTHER, now_ms=0), lambda: directory.delete(NAME, 0)):
        with pytest.raises(StorageError):
            action()
    directory.flush_due(batches.now_ms + 180_000)
    assert read_offsets(DiskFiles(), tmp_path / "logs" / "recovery-point-offset-checkpoint") == {NAME: 1}
    with pytest.raises(StorageError):
        directory.close()
    directory = open_directory(tmp_path / "logs", DiskFiles(), batches.now_ms)
    assert directory.logs[NAME].log_end_offset == 2
    directory.close()


def test_a_full_disk_refuses_appends_and_the_log_goes_on_when_there_is_room(open_log: Opener, batches: Batches) -> None:
    for capacity in range(0, 4000, 193):
        files = FaultyFiles(DiskFiles(), random.Random(capacity))
        log = open_log(LogConfig(segment_bytes=700, index_interval_bytes=1), files=files)
        start = log.log_end_offset
        files.capacity_bytes = files.used_bytes + capacity
        done = 0
        for _ in range(20):
            try:
                batches.append(log, batches.make(1, size=150))
                done += 1
            except DiskFullError:
                assert log.failure is None
        assert log.log_end_offset == start + done
        files.capacity_bytes = None
        batches.append(log, batches.make(1, size=150))
        assert [header.base_offset for header in batches.read_all(log)] == list(range(log.log_end_offset))
        batches.check_indexes(log)
        close_log(log)
        log = open_log(clean=True)
        assert log.log_end_offset == start + done + 1
        batches.check_indexes(log)


def test_a_wide_gap_that_did_not_fit_on_the_disk_leaves_no_trace(open_log: Opener, batches: Batches) -> None:
    for capacity in (0, 5, 30, 100):
        files = FaultyFiles(DiskFiles(), random.Random(capacity))
        log = open_log(files=files)
        end = log.log_end_offset
        batches.append(log, batches.make(1))
        files.capacity_bytes = files.used_bytes + capacity
        with pytest.raises(DiskFullError):
            batches.append_keeping(log, batches.make(1, size=200, base_offset=end + 2**40))
        files.capacity_bytes = None
        assert log.log_end_offset == end + 1
        assert open_log().log_end_offset == end + 1
        batches.append(log, batches.make(1))
        assert len(batches.read_all(log)) == end + 2
        assert open_log().log_end_offset == end + 2
