"""Logs whose name another topic has taken: set aside, taken back, removed, by the broker or by an operator."""

import random
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.checkpoint import PARTITION_METADATA
from pipeline.log.config import LogConfig
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.directories.logs_set_aside import LogName
from pipeline.log.directories.served_replicas import SERVED_REPLICAS
from pipeline.log.directories.settlement import note_served, settle_tails
from pipeline.log.files import DiskFiles, Files
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.conftest import NOW_MS, Batches

NAME = TopicPartition("t", 0)
OLD, NEW = uuid.UUID(int=1, version=4), uuid.UUID(int=2, version=4)
DELAY_MS = 1000


def opened(*paths: Path, files: Files | None = None) -> LogDirectories:
    return LogDirectories.open(
        paths,
        files or DiskFiles(),
        LogConfig(delete_delay_ms=DELAY_MS, segment_bytes=400),
        broker_id=BrokerId(1),
        cluster_id="c",
        rng=random.Random(1),
        now_ms=NOW_MS,
    )


def make(directories: LogDirectories, batches: Batches, topic_id: uuid.UUID, count: int) -> UnifiedLog:
    log = directories.create(NAME, is_new=True, topic_id=topic_id, now_ms=NOW_MS)
    for _ in range(count):
        batches.append(log, batches.make(2, size=50))
    log.flush()
    return log


def end(directories: LogDirectories) -> Offset:
    log = directories.get(NAME)
    assert log is not None
    return log.log_end_offset


def test_a_log_that_is_set_aside_in_two_log_dirs_is_served_from_neither(tmp_path: Path, batches: Batches) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    directories = opened(first, second)
    make(directories, batches, OLD, 5)
    directories.make_way(NAME, NEW, NOW_MS)
    directories.close()
    directories = opened(second)  # the other disk is away while the topic comes back
    make(directories, batches, OLD, 1)
    directories.close()
    directories = opened(first, second)
    directories.make_way(NAME, OLD, NOW_MS)
    with pytest.raises(StorageError, match="as well; move one of the two away"):
        directories.get(NAME)
    directories.make_way(NAME, NEW, NOW_MS)
    assert directories.get(NAME) is None
    directories.close()


@pytest.mark.parametrize("where", ["in place", "set aside", "deleted"])
def test_a_log_that_an_operator_removes_before_the_broker_does_costs_no_log_dir(
    tmp_path: Path, batches: Batches, where: str
) -> None:
    directories = opened(tmp_path)
    directory = make(directories, batches, OLD, 5).directory
    if where == "set aside":
        directories.make_way(NAME, NEW, NOW_MS)
        (directory,) = tmp_path.glob("*-stray")
    if where == "deleted":
        directories.delete_all([LogName(NAME, OLD)], NOW_MS)
        (directory,) = tmp_path.glob("*-delete")
    shutil.rmtree(directory)
    directories.delete_all([LogName(NAME, OLD)], NOW_MS)
    directories.flush_due(NOW_MS + DELAY_MS)
    assert (directories.offline, directories.held()) == ({}, [])
    make(directories, batches, NEW, 1)
    directories.close()


def test_files_that_an_operator_keeps_beside_logs_set_aside_stay(tmp_path: Path, batches: Batches) -> None:
    directories = opened(tmp_path)
    make(directories, batches, OLD, 5)
    directories.make_way(NAME, NEW, NOW_MS)
    directories.close()
    (stray,) = tmp_path.glob("*-stray")
    (stray / "copies-1").mkdir()
    kept = [stray / "notes-1", stray / "copies-1" / "precious"]
    for path in kept:
        path.write_text("an operator's")
    directories = opened(tmp_path)
    assert [found.name for found in directories.held()] == [LogName(NAME, OLD)]
    directories.delete_all([LogName(TopicPartition(topic, 1), OLD) for topic in ("notes", "copies")], NOW_MS)
    directories.delete_all([LogName(NAME, OLD)], NOW_MS)
    directories.flush_due(NOW_MS + DELAY_MS)
    assert (directories.offline, directories.held()) == ({}, [])
    assert [path.read_text() for path in kept] == ["an operator's"] * 2
    directories.close()


class FullAtDeletion(DiskFiles):
    """A disk without room for the names of deleted logs."""

    is_full = True

    def rename(self, source: Path, target: Path) -> None:
        if self.is_full and target.name.endswith("-delete"):
            raise DiskFullError(str(source), "No space left on device")
        super().rename(source, target)


@pytest.mark.parametrize("is_set_aside", [False, True])
def test_a_log_that_a_full_disk_keeps_from_its_deletion_is_deleted_later(
    tmp_path: Path, batches: Batches, *, is_set_aside: bool
) -> None:
    directories = opened(tmp_path, files=(files := FullAtDeletion()))
    make(directories, batches, OLD, 5)
    if is_set_aside:
        directories.make_way(NAME, NEW, NOW_MS)
    name = LogName(NAME, OLD)
    with pytest.raises(DiskFullError):
        directories.delete_all([name], NOW_MS)
    assert [(found.name, found.is_set_aside) for found in directories.held()] == [(name, is_set_aside)]
    directories.make_way(NAME, NEW, NOW_MS)
    assert end_of_new(directories, batches) == 2
    files.is_full = False
    directories.delete_all([name], NOW_MS)
    assert [found.name for found in directories.held()] == [LogName(NAME, NEW)]
    directories.flush_due(NOW_MS + DELAY_MS)
    assert not list(tmp_path.glob("*-stray"))
    directories.close()


def end_of_new(directories: LogDirectories, batches: Batches) -> Offset:
    make(directories, batches, NEW, 1)
    return end(directories)


def test_a_log_that_failed_keeps_its_start_while_it_is_set_aside(tmp_path: Path, batches: Batches) -> None:
    directories = opened(tmp_path)
    log = make(directories, batches, OLD, 5)
    log.delete_records(Offset(1))
    directories.checkpoint_log_start_offset(log)
    directories.close()
    segment = sorted(log.directory.glob("*.log"))[0]
    segment.rename(tmp_path / "elsewhere")
    segment.mkdir()
    directories = opened(tmp_path)
    with pytest.raises(StorageError):
        directories.get(NAME)
    directories.make_way(NAME, NEW, NOW_MS)
    assert end_of_new(directories, batches) == 2
    (aside,) = tmp_path.glob("*-stray/t-0")
    (aside / segment.name).rmdir()
    (tmp_path / "elsewhere").rename(aside / segment.name)
    directories.make_way(NAME, OLD, NOW_MS)
    found = directories.get(NAME)
    assert found is not None
    assert (found.topic_id, found.log_start_offset, found.log_end_offset) == (OLD, 1, 10)
    directories.close()


def swap_names(directories: LogDirectories, batches: Batches, written: dict[uuid.UUID, int]) -> None:
    """Two topics have one name in turn; `written`: how many records of each are on the disk."""
    for topic_id in (OLD, NEW, OLD):
        directories.make_way(NAME, topic_id, NOW_MS)
        log = directories.get(NAME)
        if log is None:
            log = directories.create(NAME, is_new=True, topic_id=topic_id, now_ms=NOW_MS)
        for _ in range(3):
            batches.append(log, batches.make(2, size=50))
        log.flush()
        written[topic_id] = log.log_end_offset
        if topic_id == OLD:
            log.delete_records(Offset(3))
            directories.checkpoint_log_start_offset(log)
            written[STARTED] = 3


STARTED = uuid.UUID(int=3, version=4)


@pytest.mark.long
@pytest.mark.parametrize("loses_power", [False, True])
def test_a_crash_at_any_step_of_setting_aside_and_taking_back_loses_nothing(
    tmp_path: Path, batches: Batches, *, loses_power: bool
) -> None:
    has_crashed, crash_in = True, 0
    while has_crashed:
        crash_in += 1
        root = tmp_path / str(crash_in)
        files = FaultyFiles(DiskFiles(), random.Random(crash_in))
        directories = opened(root, files=files)
        for directory in directories.begin_settling():
            settle_tails(directory, directories.ids, {})
        written: dict[uuid.UUID, int] = {}
        files.crash_in = crash_in
        try:
            swap_names(directories, batches, written)
            has_crashed = False
        except Crash:
            after = files.end_process()
            if loses_power:
                after.lose_power()
        files.end_process()
        check_whole(root, batches, written)
    assert crash_in > 50


def check_whole(root: Path, batches: Batches, written: dict[uuid.UUID, int]) -> None:
    directories = opened(root, files=FaultyFiles(DiskFiles(), random.Random(1)))
    assert directories.offline == {}
    for topic_id in (NEW, OLD, NEW):
        if topic_id in written:
            directories.make_way(NAME, topic_id, NOW_MS)
            log = directories.get(NAME)
            assert log is not None
            assert log.topic_id == topic_id
            assert log.log_end_offset >= written[topic_id]
            assert sum(header.last_offset_delta + 1 for header in batches.read_all(log)) >= log.log_end_offset - 4
            if topic_id == OLD:
                assert log.log_start_offset == written.get(STARTED, log.log_start_offset)
            else:
                assert log.log_start_offset == 0
    directories.close()


def settle(directories: LogDirectories, judged: Mapping[TopicPartition, uuid.UUID]) -> None:
    for directory in directories.begin_settling():
        settle_tails(directory, directories.ids, judged)


def serve_and_lose_id(root: Path, batches: Batches, *, ends: str = "power lost", knows_served: bool = True) -> Files:
    """A broker serves a log of OLD, whose topic id is not on the disk at the next start; returns the files of that."""
    files = FaultyFiles(DiskFiles(), random.Random(1))
    directories = opened(root, files=files)
    settle(directories, {})
    log = directories.create(NAME, is_new=True, topic_id=OLD, now_ms=NOW_MS)
    note_served(directories.opened[0], [log])
    batches.append(log, batches.make(2))
    if ends == "clean":
        directories.close()
    files.end_process()
    (root / "t-0" / PARTITION_METADATA).unlink()
    if not knows_served:
        (root / SERVED_REPLICAS).unlink()
    after = FaultyFiles(DiskFiles(), random.Random(2))
    after.boot = files.boot if ends == "killed" else "second"
    return after


@pytest.mark.parametrize("is_judged", [False, True])
def test_a_log_that_lost_its_topic_id_with_the_power_is_not_taken_for_the_log_of_another_topic(
    tmp_path: Path, batches: Batches, *, is_judged: bool
) -> None:
    files = serve_and_lose_id(tmp_path, batches)
    directories = opened(tmp_path, files=files)
    settle(directories, {NAME: NEW} if is_judged else {})
    directories.close()
    directories = opened(tmp_path, files=files)  # in the same boot, after a clean stop
    directories.make_way(NAME, NEW, NOW_MS)
    assert directories.get(NAME) is None
    (aside,) = directories.held()
    assert aside.is_set_aside
    assert end_of_new(directories, batches) == 2
    directories.close()


def test_a_log_that_lost_its_topic_id_with_the_power_remains_the_log_of_its_topic(
    tmp_path: Path, batches: Batches
) -> None:
    directories = opened(tmp_path, files=serve_and_lose_id(tmp_path, batches))
    log = directories.get(NAME)
    assert log is not None
    assert log.may_lack_tail
    settle(directories, {NAME: OLD})
    assert (log.topic_id, log.may_lack_tail) == (OLD, False)
    directories.make_way(NAME, OLD, NOW_MS)
    assert directories.get(NAME) is log
    directories.close()
    directories = opened(tmp_path, files=FaultyFiles(DiskFiles(), random.Random(3)))
    directories.make_way(NAME, NEW, NOW_MS)
    assert directories.get(NAME) is None
    directories.close()


@pytest.mark.parametrize(("ends", "knows_served"), [("clean", True), ("killed", True), ("power lost", False)])
def test_a_log_of_a_version_without_topic_ids_is_the_log_of_any_topic(
    tmp_path: Path, batches: Batches, ends: str, *, knows_served: bool
) -> None:
    directories = opened(tmp_path, files=serve_and_lose_id(tmp_path, batches, ends=ends, knows_served=knows_served))
    settle(directories, {NAME: NEW})
    directories.make_way(NAME, NEW, NOW_MS)
    assert end(directories) == 2
    directories.close()
