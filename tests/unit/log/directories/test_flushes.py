"""Flushes and checkpoints of the logs of a log dir, and the files that logs hold open between them."""

import gc
import os
import threading
import uuid
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from pipeline.log.checkpoint import RECOVERY_POINTS, read_offsets
from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import CHECKPOINT_INTERVAL_MS
from pipeline.log.directories.displacement import find_logs
from pipeline.log.files import DiskFile, DiskFiles
from pipeline.log.held_files import release_files
from pipeline.log.leader_epochs import LEADER_EPOCHS
from pipeline.model import LeaderEpoch, Offset, TopicPartition
from tests.support.descriptors import no_descriptor_left
from tests.unit.log.conftest import Batches
from tests.unit.log.directories.conftest import OpenDirectory


def test_flush_due_flushes_and_checkpoints(open_directory: OpenDirectory, batches: Batches, tmp_path: Path) -> None:
    directory = open_directory(LogConfig(flush_ms=10))
    name = TopicPartition("a", 0)
    log = directory.create(name, now_ms=batches.now_ms)
    batches.append(log, batches.make(3))
    directory.flush_due(batches.now_ms + 9)
    assert log.recovery_point == 0
    directory.flush_due(batches.now_ms + 10)
    assert log.recovery_point == 3
    assert read_offsets(DiskFiles(), tmp_path / "logs" / RECOVERY_POINTS) == {}
    directory.flush_due(batches.now_ms + CHECKPOINT_INTERVAL_MS)
    assert read_offsets(DiskFiles(), tmp_path / "logs" / RECOVERY_POINTS) == {name: 3}
    directory.close()


def test_logs_may_come_while_a_thread_looks_at_all_of_them(open_directory: OpenDirectory, batches: Batches) -> None:
    """A garbage collection, which any new object may cause, lets other threads go on wherever it happens."""
    directory = open_directory()
    names = [TopicPartition("a", number) for number in range(100)]
    made = iter(names)
    for _ in range(50):
        directory.create(next(made), now_ms=batches.now_ms)
    spare = [directory.create(name, now_ms=batches.now_ms) for name in made]
    logs = directory._logs
    for log in spare:
        del logs[log.topic_partition]

    def add(phase: str, _: object) -> None:
        if phase == "start" and spare:
            log = spare.pop()
            logs[log.topic_partition] = log

    usual = gc.get_threshold()
    gc.callbacks.append(add)
    gc.set_threshold(1)
    try:
        while spare:
            directory.flush_due(batches.now_ms + CHECKPOINT_INTERVAL_MS)
            find_logs(directory)
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(add)
    assert {held.name.topic_partition for held in find_logs(directory)} == set(names)
    directory.close()


def test_files_are_open_only_while_they_are_needed(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    def open_files() -> int:
        paths = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
        return sum(path.startswith(str(tmp_path)) and path.endswith((".log", "index")) for path in paths)

    directory = open_directory(LogConfig(segment_bytes=700, index_interval_bytes=1))
    logs = [directory.create(TopicPartition("a", number), now_ms=batches.now_ms) for number in range(10)]
    for log in logs:
        for _ in range(8):
            batches.append(log, batches.make(1, size=200))
    directory.flush_due(batches.now_ms)
    assert open_files() == 0
    for log in logs:
        batches.append(log, batches.make(1))
        release_files(log)
    assert open_files() >= 10  # each has data that was not synced
    directory.close()
    directory = open_directory()
    assert open_files() == 0
    region = directory.logs[TopicPartition("a", 0)].read(Offset(0), 100, Offset(1)).region
    directory.flush_due(batches.now_ms)
    assert len(os.pread(region.file.fileno(), region.size, region.position)) == region.size
    directory.close()


def test_a_file_that_is_just_written_to_is_not_let_go(open_directory: OpenDirectory, batches: Batches) -> None:
    threads = []

    class LettingGo(DiskFiles):
        """Lets go of all files right after a write to the log."""

        def open(self, path: Path, *, create: bool = False) -> Any:
            file = LettingGoFile(path, create=create)
            file.is_log = path.suffix == ".log"
            return file

    class LettingGoFile(DiskFile):
        is_log = False

        def write_at(self, data: Any, position: int) -> None:
            super().write_at(data, position)
            if self.is_log:
                threads.append(threading.Thread(target=release_files, args=[log]))
                threads[-1].start()
                threads[-1].join(0.05)

    directory = open_directory(files=LettingGo())
    log = directory.create(TopicPartition("a", 0), now_ms=batches.now_ms)
    batches.append(log, batches.make(1))
    threads[-1].join()
    assert log.snapshot.segments[-1].is_open
    directory.close()


def test_a_flush_under_way_writes_nothing_into_a_log_made_anew_under_the_name(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    place = tmp_path / "logs" / "a-0"
    syncing, may_sync = threading.Event(), threading.Event()

    class SlowFiles(DiskFiles):
        def sync_directory(self, directory: Path) -> None:
            if directory == place and threading.current_thread().name == "flush":
                syncing.set()
                assert may_sync.wait(60)
            super().sync_directory(directory)

    name, former, present = TopicPartition("a", 0), uuid.UUID(int=1), uuid.UUID(int=2)
    directory = open_directory(files=SlowFiles())
    log = directory.create(name, topic_id=former, now_ms=batches.now_ms)
    log.begin_epoch(LeaderEpoch(7))
    batches.append(log, batches.make(3))

    def recreate() -> None:
        directory.delete(name, batches.now_ms, former)
        directory.create(name, topic_id=present, now_ms=batches.now_ms)

    flushing = threading.Thread(target=log.flush, name="flush")
    recreating = threading.Thread(target=recreate)
    flushing.start()
    assert syncing.wait(60)
    recreating.start()
    recreating.join(0.05)
    may_sync.set()
    flushing.join()
    recreating.join()
    assert directory.logs[name].topic_id == present
    assert not (place / LEADER_EPOCHS).exists()
    directory.close()


def test_a_log_that_there_was_no_descriptor_to_flush_is_flushed_later_and_not_called_offline(
    open_directory: OpenDirectory, batches: Batches
) -> None:
    directory = open_directory(LogConfig(flush_ms=1000, segment_bytes=1024))
    log = directory.create(TopicPartition("a", 0), topic_id=uuid.uuid4(), now_ms=batches.now_ms)
    for _ in range(20):
        batches.append(log, batches.make(3))
    release_files(log)
    with no_descriptor_left(), capture_logs() as logged:
        directory.flush_due(batches.now_ms + 2000)
    assert [line["event"] for line in logged] == ["log_not_flushed"]
    assert log.failure is None
    assert log.recovery_point == 0
    directory.flush_due(batches.now_ms + 2001)
    assert log.recovery_point == 60
    directory.close()
