"""Deletion of logs."""

import os
import uuid
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.checkpoint import RECOVERY_POINTS, read_offsets
from pipeline.log.config import LogConfig
from pipeline.log.directories.displacement import is_displaced, make_way, may_be_displaced
from pipeline.log.directories.logs_set_aside import LogName
from pipeline.log.files import DiskFiles
from pipeline.log.held_files import hold_end_open, release_files
from pipeline.log.partition_files import is_deleted, parse_directory_name
from pipeline.model import Offset, TopicPartition
from tests.unit.log.conftest import Batches
from tests.unit.log.directories.conftest import OpenDirectory, open_below


def test_a_deleted_log_is_gone_and_its_regions_stay(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory()
    name = TopicPartition("a", 0)
    log = directory.create(name, now_ms=batches.now_ms)
    batches.append(log, batches.make(3))
    region = log.read(Offset(0), 1000, Offset(3)).region
    directory.delete(name, batches.now_ms)
    directory.delete(name, batches.now_ms)
    assert not directory.logs
    assert [path.name[-7:] for path in (tmp_path / "logs").glob("a-0*")] == ["-delete"]
    directory.flush_due(batches.now_ms + 59_999)
    assert list((tmp_path / "logs").glob("a-0*"))
    directory.flush_due(batches.now_ms + 60_000)
    assert not list((tmp_path / "logs").glob("a-0*"))
    assert len(os.pread(region.file.fileno(), region.size, region.position)) == region.size
    with pytest.raises(StorageError, match="deleted"):
        log.read(Offset(0), 1, Offset(3))
    assert directory.create(name, now_ms=batches.now_ms).log_end_offset == 0
    directory.close()


def test_a_deletion_that_was_cut_off_is_finished(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory()
    directory.create(TopicPartition("a", 0), now_ms=batches.now_ms)
    directory.close()
    (tmp_path / "logs" / "a-0").rename(tmp_path / "logs" / f"a-0.{uuid.uuid4().hex}-delete")
    directory = open_directory()
    assert not directory.logs
    assert not list((tmp_path / "logs").glob("*-delete"))
    directory.close()


def test_a_clock_that_was_set_back_keeps_nothing_from_the_disk_and_no_deleted_file(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory(LogConfig(flush_ms=10))
    name, deleted = TopicPartition("a", 0), TopicPartition("b", 0)
    log = directory.create(name, now_ms=batches.now_ms)
    directory.create(deleted, now_ms=batches.now_ms)
    batches.append(log, batches.make(3))
    directory.delete(deleted, batches.now_ms)
    directory.flush_due(batches.now_ms - 600_000)
    assert log.recovery_point == 3
    assert read_offsets(DiskFiles(), tmp_path / "logs" / RECOVERY_POINTS) == {name: 3}
    assert [path.name for path in (tmp_path / "logs").iterdir() if path.is_dir()] == ["a-0"]
    directory.close()


def test_a_log_that_had_no_room_to_be_deleted_is_opened_again_when_its_replica_comes_back(
    open_directory: OpenDirectory, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, topic_id = open_directory(), uuid.uuid4()
    name = LogName(TopicPartition("a", 0), topic_id)
    log = directory.create(name.topic_partition, topic_id=topic_id, now_ms=batches.now_ms)
    batches.append(log, batches.make(3))

    def refuse(_files: DiskFiles, source: Path, _target: Path) -> None:
        raise DiskFullError(str(source), "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "rename", refuse)
        with pytest.raises(DiskFullError):
            directory.delete_all([name], batches.now_ms)
    assert isinstance(directory.failed[name.topic_partition], DiskFullError)
    assert may_be_displaced(directory, name)
    assert is_displaced(directory, name)
    make_way(directory, name.topic_partition, topic_id, batches.now_ms)
    assert not directory.failed
    again = directory.logs[name.topic_partition]
    assert (again.topic_id, again.log_end_offset) == (topic_id, 3)
    batches.append(again, batches.make(1))
    directory.close()
    assert open_directory().logs[name.topic_partition].log_end_offset == 4


def test_a_log_that_is_deleted_holds_no_files_open(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    directory, name = open_directory(), TopicPartition("a", 0)
    log = directory.create(name, topic_id=uuid.uuid4(), now_ms=batches.now_ms)
    hold_end_open(log)
    batches.append(log, batches.make(3))
    log.flush()
    release_files(log)
    assert open_below(tmp_path, "a-0") == [f"{0:020d}.log"]
    directory.delete(name, batches.now_ms, log.topic_id)
    assert open_below(tmp_path, "a-0") == []
    directory.close()


@pytest.mark.parametrize("length", [213, 214, 249])
def test_a_topic_with_a_long_name_is_deleted(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path, length: int
) -> None:
    directory, name = open_directory(), TopicPartition("n" * length, 4999)
    log = directory.create(name, topic_id=uuid.uuid4(), now_ms=batches.now_ms)
    batches.append(log, batches.make(3))
    directory.delete(name, batches.now_ms, log.topic_id)
    assert directory.failure is None
    assert not directory.logs
    (deleted,) = (path.name for path in (tmp_path / "logs").iterdir() if path.is_dir())
    assert parse_directory_name(deleted) is None
    assert is_deleted(deleted)
    directory.close()
    open_directory().close()
    assert not any(path.is_dir() for path in (tmp_path / "logs").iterdir())
