"""Which partitions the cleaner has given up, and what it leaves alone for now."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from pipeline.broker.compaction.cleaner import MAX_FAILURES, LogCleaner
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.log.compaction.jobs import CleaningJob, Failed
from pipeline.log.config import LogConfig
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.expiry import take_expired
from pipeline.log.files import DiskFiles, Files
from pipeline.log.held_files import release_files
from pipeline.log.segment_names import LOG_SUFFIX
from pipeline.log.truncation import truncate_to
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import validate_for_append
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.broker_in_process import NOW_MS, TIMEOUT_S, batch

NAME = TopicPartition("compacted", 0)
HANG_S = 5.0


def test_a_partition_that_was_given_up_is_tried_again_when_the_bound_of_its_batches_changes(tmp_path: Path) -> None:
    unused: Any = None
    partition: Any = SimpleNamespace(
        settings=SimpleNamespace(max_message_bytes=1 << 20),
        log=SimpleNamespace(directory=tmp_path / "compacted-0", failure=None),
    )
    cleaner = LogCleaner(unused, {NAME: partition}, unused, unused, lambda: 0, random.Random(1))

    def fail(times: Any) -> None:
        for _ in range(times):
            cleaner._failed(NAME, partition.log, "holds too much")

    fail(MAX_FAILURES - 1)
    assert not cleaner.uncleanable
    fail(1)
    assert cleaner.uncleanable == {NAME: tmp_path}

    partition.settings.max_message_bytes = 2 << 20
    assert cleaner.uncleanable == {NAME: tmp_path}, "batches may hold no more than before"
    partition.settings.max_message_bytes = 8 << 20
    assert not cleaner.uncleanable
    fail(MAX_FAILURES - 1)
    assert not cleaner.uncleanable
    fail(1)
    assert cleaner.uncleanable == {NAME: tmp_path}


class _Jobs:
    """A cleaner process that begins jobs, during which something happens, and fails them."""

    running = True

    def __init__(self, happens: Callable[[], None], count: int) -> None:
        self.jobs: list[CleaningJob] = []
        self._happens = happens
        self._count = count

    async def begin(self, job: CleaningJob) -> None:
        self.jobs.append(job)
        self._happens()

    async def report(self) -> Failed:
        if len(self.jobs) > self._count:
            await trio.sleep_forever()
        return Failed(reason="No such file or directory", is_full=False)

    async def end(self) -> None:
        pass


class _Table:
    """The log of a compacted topic, in a broker's log dir, with a cleaner."""

    def __init__(self, path: Path, files: Files | None = None, **changed: str) -> None:
        broker = BrokerConfig.from_settings(
            {"broker.id": 1, "log.dirs": str(path), "zookeeper.connect": "z:1", "log.cleaner.backoff.ms": 1}
        )
        changed = {key.replace("_", "."): value for key, value in changed.items()}
        settings = topic_settings({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"} | changed, broker)
        self.directories = LogDirectories.open(
            [path],
            files or DiskFiles(),
            LogConfig(segment_bytes=100),
            broker_id=BrokerId(1),
            cluster_id="c",
            rng=random.Random(1),
            now_ms=NOW_MS,
        )
        self.log = self.directories.create(NAME, is_new=True, now_ms=NOW_MS)
        for _ in range(MAX_FAILURES + 4):
            records = batch(b"x" * 100, timestamp_ms=NOW_MS - 1000)
            headers = validate_for_append(records, max_batch_bytes=1 << 20)
            self.log.append(records, headers, LeaderEpoch(0), NOW_MS)
        self._partition: Any = SimpleNamespace(
            topic_partition=NAME,
            settings=settings,
            log=self.log,
            high_watermark=self.log.log_end_offset,
            upkeep=SimpleNamespace(disks=DiskThreads()),
        )
        self._broker = broker

    def cleaner(self, child: Any) -> LogCleaner:
        partitions = {NAME: self._partition}
        return LogCleaner(
            self._broker, partitions, self.directories, DiskFiles(), lambda: NOW_MS, random.Random(1), lambda _: child
        )


async def _run_until(cleaner: LogCleaner, is_reached: Callable[[], bool]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.run)
        with trio.fail_after(TIMEOUT_S):
            while not is_reached():
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_partition_whose_segments_go_while_they_are_read_is_not_given_up(
    tmp_path: Path, is_deleted: bool
) -> None:
    table = _Table(tmp_path / "logs")
    table.log.flush()

    def delete_first() -> None:
        if is_deleted:
            table.log.delete_records(table.log.snapshot.closed_segments()[0][1])
            table.directories.delete_segments({table.log: take_expired(table.log, table.log.log_end_offset, 0)}, 0)

    child = _Jobs(delete_first, MAX_FAILURES)
    cleaner = table.cleaner(child)
    await _run_until(cleaner, lambda: len(child.jobs) > MAX_FAILURES or bool(cleaner.uncleanable))
    assert (NAME in cleaner.uncleanable) is not is_deleted


async def test_a_partition_that_is_truncated_while_it_is_read_is_not_given_up(tmp_path: Path) -> None:
    table = _Table(tmp_path / "logs")
    table.log.flush()
    removing, removed = threading.Event(), threading.Event()

    class Slow(DiskFiles):
        """Removes the first file of a log only when a cleaner has failed."""

        def unlink(self, path: Path) -> None:
            super().unlink(path)
            if path.suffix == LOG_SUFFIX:
                removing.set()
                assert removed.wait(TIMEOUT_S)

    child = _Jobs(lambda: None, MAX_FAILURES)
    cleaner = table.cleaner(child)
    for segment, _ in table.log.snapshot.closed_segments():
        segment.files = Slow()
    end_offset = table.log.log_end_offset
    thread = threading.Thread(target=truncate_to, args=[table.log, Offset(end_offset - 2)])

    async def begin(job: CleaningJob) -> None:
        child.jobs.append(job)
        if not removing.is_set():
            thread.start()
            await trio.to_thread.run_sync(removing.wait, TIMEOUT_S)

    child.begin = begin  # type: ignore[method-assign]
    try:
        await _run_until(cleaner, lambda: bool(child.jobs) and not cleaner._being_cleaned)
        assert not cleaner._trouble
    finally:
        removed.set()
        thread.join()
    assert table.log.log_end_offset == end_offset - 2


async def test_records_that_are_not_on_disk_are_not_cleaned(tmp_path: Path) -> None:
    table = _Table(tmp_path / "logs")
    child = _Jobs(lambda: None, MAX_FAILURES)
    cleaner = table.cleaner(child)
    assert cleaner._choose() is None
    table.log.flush()
    await _run_until(cleaner, lambda: bool(child.jobs))
    assert child.jobs[0].segments[-1].end_offset == table.log.snapshot.closed_segments()[-1][1]


async def test_a_disk_that_hangs_while_ages_of_segments_are_read_holds_up_nobody(tmp_path: Path) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    table = _Table(tmp_path / "logs", files, max_compaction_lag_ms="500", min_cleanable_dirty_ratio="1.0")
    table.log.flush()
    release_files(table.log)
    child = _Jobs(lambda: None, 0)
    files.hangs_below, files.hangs_in = table.log.directory, {"opening"}
    release = threading.Timer(HANG_S, files.released.set)
    release.start()
    try:
        cleaner = table.cleaner(child)
        await _run_until(cleaner, lambda: files.hanging > 0 or files.released.is_set())
        assert not files.released.is_set(), "the event loop waited"
    finally:
        release.cancel()
        files.released.set()
    await _run_until(cleaner, lambda: bool(child.jobs))
