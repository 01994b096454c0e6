"""A log dir whose disk hangs: no call there returns, and the other log dirs go on."""

import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from pipeline.broker.replication.partition import Partition
from pipeline.broker.runtime.disk_threads import THREADS_PER_LOG_DIR, DiskThreads
from pipeline.errors import RollDueError, StorageError
from pipeline.log.checkpoint import CLEAN_SHUTDOWN, HIGH_WATERMARKS, read_offsets
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.testing.faulty_files import HANG_LIMIT_S, FaultyFiles
from tests.support.broker_in_process import NOW_MS, Broker, Start, batch

MANY = 50
"""More than trio has threads by default."""
QUICK_S = HANG_LIMIT_S / 2
"""What hangs goes on by itself after HANG_LIMIT_S."""
WAIT_S = 60
STALLED_S = 3.0
"""Longer than any call of a disk that is merely busy."""
DAY_MS = 24 * 3600 * 1000
FAST = {
    "replica_high_watermark_checkpoint_interval_ms": 20,
    "log_retention_check_interval_ms": 20,
    "log_segment_bytes": 1024,
}


async def _until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_S):
        while not is_so():
            await trio.sleep(0.01)


def _partitions(broker: Broker, log_dir: Path) -> list[Partition]:
    found = broker.handle.replicas.partitions.values()
    return [partition for partition in found if partition.log.directory.parent == log_dir]


async def _append(partition: Partition, timestamp_ms: int = 1) -> None:
    records = batch(bytes(900), timestamp_ms=timestamp_ms)
    headers = partition.validate(memoryview(records), keep_offsets=False)
    while True:
        try:
            partition.append_valid(memoryview(records), headers, keep_offsets=False, now_ms=NOW_MS)
        except RollDueError as due:
            await partition.roll(due, NOW_MS)
        else:
            return


def _checkpointed(log_dir: Path) -> dict[TopicPartition, int]:
    return dict(read_offsets(DiskFiles(), log_dir / HIGH_WATERMARKS))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.broker.runtime.disk_threads.STALLED_S", STALLED_S)


@asynccontextmanager
async def _hung(start: Start, tmp_path: Path) -> AsyncIterator[tuple[Broker, FaultyFiles, list[Path]]]:
    """A broker with partitions in two log dirs; flushes of more partitions than there are threads hang in the first."""
    files, dirs = FaultyFiles(DiskFiles(), random.Random(1)), [tmp_path / "a", tmp_path / "b"]
    async with start(files=files, log_dirs=",".join(map(str, dirs)), **FAST) as broker:
        await broker.create("t", partitions=2 * MANY, retention_ms="1", min_insync_replicas="1")
        await _until(lambda: all(len(_partitions(broker, log_dir)) == MANY for log_dir in dirs))  # a log may come late
        async with trio.open_nursery() as nursery:
            try:
                for partition in _partitions(broker, dirs[0]):
                    await _append(partition, NOW_MS + DAY_MS)
                files.hangs_below = dirs[0]  # all at once: a log dir that has stalled is given no further threads
                for partition in _partitions(broker, dirs[0]):
                    nursery.start_soon(partition.flush_up_to, partition.log.log_end_offset)
                await _until(lambda: broker.handle.replicas.disks.is_stalled(dirs[0]))
                await _until(lambda: files.hanging == THREADS_PER_LOG_DIR)
                yield broker, files, dirs
            finally:
                files.released.set()


async def test_a_log_dir_that_hangs_takes_no_thread_of_another() -> None:
    hung, well, disks = Path("hung"), Path("well"), DiskThreads()
    files = FaultyFiles(DiskFiles(), random.Random(1))
    files.hangs_below = hung
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(10 * THREADS_PER_LOG_DIR):
                nursery.start_soon(disks.run, hung, lambda: files.hang(hung, "sync"))
            await _until(lambda: files.hanging == THREADS_PER_LOG_DIR)
            with trio.fail_after(WAIT_S):
                assert await disks.run(well, lambda: 1) == 1
            assert files.hanging == THREADS_PER_LOG_DIR
            assert disks.waiting_s(hung) > 0
            assert disks.waiting_s(well) == 0
            files.released.set()
        assert disks.waiting_s(hung) == 0
    finally:
        files.released.set()


async def test_a_call_that_waits_for_a_thread_is_no_call_that_the_disk_does_not_answer() -> None:
    log_dir, disks, ends = Path("slow"), DiskThreads(), [threading.Event() for _ in range(THREADS_PER_LOG_DIR + 1)]
    try:
        async with trio.open_nursery() as nursery:
            for end in ends[:-1]:
                nursery.start_soon(disks.run, log_dir, end.wait)
            await _until(lambda: disks.waiting_s(log_dir) > 0)
            nursery.start_soon(disks.run, log_dir, ends[-1].wait)
            await _until(lambda: disks.waiting_s(log_dir) > 0.2)
            answered_s = trio.current_time()
            for end in ends[:-1]:
                end.set()
            await _until(lambda: 0 < disks.waiting_s(log_dir) <= trio.current_time() - answered_s)
            ends[-1].set()
        assert disks.waiting_s(log_dir) == 0
    finally:
        for end in ends:
            end.set()


async def test_an_error_of_a_call_reaches_its_caller_and_the_disk_has_answered() -> None:
    def fail() -> None:
        raise ValueError("of the call")

    disks = DiskThreads()
    with pytest.raises(ValueError, match="of the call"):
        await disks.run(Path("x"), fail)
    assert disks.waiting_s(Path("x")) == 0


async def test_the_other_log_dir_is_written_flushed_checkpointed_and_cleaned_up(start: Start, tmp_path: Path) -> None:
    async with _hung(start, tmp_path) as (broker, files, dirs):
        well = _partitions(broker, dirs[1])
        assert len(well) == MANY
        with trio.fail_after(QUICK_S):
            found = await broker.produce("t", batch(b"x"), partition=well[0].topic_partition.partition, acks=-1)
        assert found.error_code == 0
        for partition in well:
            await _append(partition)
            await partition.flush_up_to(partition.log.log_end_offset)
            await _append(partition)
        ends = {partition.topic_partition: partition.log.log_end_offset for partition in well}
        await _until(lambda: _checkpointed(dirs[1]) == ends)
        await _until(lambda: all(partition.log.log_start_offset > 0 for partition in well[1:]))
        assert files.hanging >= THREADS_PER_LOG_DIR
        hung = _partitions(broker, dirs[0])
        files.released.set()
        await _until(lambda: all(partition.log.recovery_point == 1 for partition in hung))


async def test_a_new_topic_is_led_in_the_other_log_dir(start: Start, tmp_path: Path) -> None:
    async with _hung(start, tmp_path) as (broker, files, dirs):
        with trio.fail_after(QUICK_S):
            await broker.create("new", partitions=4)
            found = await broker.produce("new", batch(b"x"), acks=-1)
        assert found.error_code == 0
        new = [found for found in _partitions(broker, dirs[1]) if found.topic_partition.topic == "new"]
        assert len(new) == 4
        assert files.hanging >= THREADS_PER_LOG_DIR


async def test_a_log_dir_that_does_not_answer_is_reported(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _hung(start, tmp_path) as (broker, files, dirs):
        replicas = broker.handle.replicas
        assert replicas.problems() == []  # a disk may be slow
        monkeypatch.setattr("pipeline.broker.replicas.replicas.HUNG_S", STALLED_S)
        (problem,) = replicas.problems()
        assert problem.startswith(f"the disk of log dir {dirs[0]} has not answered for ")
        waiting = {path: _waiting_s(broker, path) for path in dirs}
        assert waiting[dirs[0]] > STALLED_S > waiting[dirs[1]]
        files.released.set()
        await _until(lambda: replicas.problems() == [])


def _waiting_s(broker: Broker, log_dir: Path) -> float:
    found = broker.metrics.get_sample_value("pipeline_log_dir_waiting_seconds", {"log_dir": str(log_dir)})
    assert found is not None
    return found


async def test_a_log_dir_that_hangs_holds_up_a_stop_for_a_bounded_time_and_no_mark_of_another(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.broker.server.CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr("pipeline.broker.server.MARK_TIMEOUT_S", 0.2)
    files, dirs = FaultyFiles(DiskFiles(), random.Random(1)), [tmp_path / "a", tmp_path / "b"]
    with trio.fail_after(WAIT_S), pytest.raises(StorageError, match=r"longer than 0\.2 s"):
        async with start(files=files, log_dirs=",".join(map(str, dirs))) as broker:
            await broker.create("t", partitions=4)
            for partition in broker.handle.replicas.partitions.values():
                await _append(partition)
            files.hangs_below = dirs[0]
    marked = [path for path in dirs if (path / CLEAN_SHUTDOWN).exists()]
    files.released.set()
    assert marked == dirs[1:]
