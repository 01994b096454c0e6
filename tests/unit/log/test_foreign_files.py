"""What operators keep in a log dir is theirs: a start and a deletion leave it alone."""

import os
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.log.checkpoint import RECOVERY_POINTS, SYNC_FAILED
from pipeline.log.config import LogConfig
from pipeline.log.directories.broker_directories import LogDirectories
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.served_replicas import SERVED_REPLICAS
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.log.inspection.verification import partition_directories
from pipeline.log.loader import NewLog
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition
from tests.unit.log.conftest import Batches

NAME = TopicPartition("a", 0)
KEPT = b"an operator's"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    path.mkdir()
    return path


def open_directory(path: Path, batches: Batches, config: LogConfig | None = None) -> LogDirectory:
    return open_log_directory(
        path,
        DiskFiles(),
        config or LogConfig(),
        broker_id=BrokerId(1),
        cluster_id="c",
        rng=random.Random(1),
        now_ms=batches.now_ms,
    )


def keep(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(KEPT)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "backup-2026",
        "snapshots-1",
        "please-do-not-delete",
        "a-0.copy-delete",
        f"a.{'0' * 32}-delete",
        f"a-0.{'0' * 31}g-delete",
        f"my backup-1.{'0' * 32}-delete",
    ],
)
def test_directories_that_no_broker_made_stay_and_are_named(path: Path, batches: Batches, name: str) -> None:
    files = [keep(path / name / "a-0" / "00000000000000000000.log"), keep(path / name / "notes.txt")]
    for _ in range(2):
        directory = open_directory(path, batches)
        assert not directory.logs
        assert not directory.failed
        assert directory.foreign == [path / name]
        directory.close()
    assert [file.read_bytes() for file in files] == [KEPT, KEPT]
    assert not partition_directories(path)


@pytest.mark.parametrize("name", ["a-0", "notes-delete", f"a-0.{'0' * 32}-delete", "a-0.txt"])
def test_files_named_like_directories_stay(path: Path, batches: Batches, name: str) -> None:
    file = keep(path / name)
    directory = open_directory(path, batches)
    assert not directory.failed
    directory.close()
    assert file.read_bytes() == KEPT


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_no_log_is_made_where_something_else_is(path: Path, batches: Batches, tmp_path: Path, kind: str) -> None:
    kept = keep({"file": path / "a-0", "directory": path / "a-0" / "notes.txt", "link": tmp_path / "notes.txt"}[kind])
    if kind == "link":
        (path / "a-0").symlink_to(tmp_path / "nowhere")
    directories = LogDirectories.open(
        [path],
        DiskFiles(),
        LogConfig(),
        broker_id=BrokerId(1),
        cluster_id="c",
        rng=random.Random(1),
        now_ms=batches.now_ms,
    )
    new = [NewLog(topic_partition=TopicPartition("a", number)) for number in range(2)]
    made = directories.create_all(new, batches.now_ms)
    error = made[NAME]
    assert isinstance(error, StorageError)
    assert "move it out of the log dir" in str(error)
    log = made[TopicPartition("a", 1)]
    assert isinstance(log, UnifiedLog)
    batches.append(log, batches.make())
    assert not directories.offline
    directories.close()
    assert kept.read_bytes() == KEPT


def test_remains_of_a_creation_are_removed_unless_foreign_files_are_with_them(path: Path, batches: Batches) -> None:
    for number in range(3):
        (path / f"a-{number}").mkdir()
    (path / "a-1" / "partition.metadata").touch()
    (path / "a-2" / "partition.metadata").touch()
    (path / "a-2" / "00000000000000000000.log").touch()
    kept = keep(path / "a-2" / "notes.txt")
    directory = open_directory(path, batches)
    assert list(directory.logs) == [TopicPartition("a", 2)]
    assert sorted(entry.name for entry in path.glob("a-*")) == ["a-2"]
    assert kept.read_bytes() == KEPT
    directory.close()


def test_files_among_those_of_a_log_stay(path: Path, batches: Batches, small_segments: LogConfig) -> None:
    directory = open_directory(path, batches, small_segments)
    log = directory.create(NAME, topic_id=uuid.uuid4(), now_ms=batches.now_ms)
    for _ in range(20):
        batches.append(log, batches.make(2))
    directory.release()
    names = [
        "2026.log",
        "debug.log",
        "old.index",
        "notes.deleted",
        "draft.cleaned",
        "draft.log.swap",
        "x.swap",
        "٣.snapshot",
        "12.txnindex",
        f"{2**64 - 1}.log",
        "0.gap",
    ]
    kept = [keep(path / "a-0" / name) for name in names]
    for is_marked in (False, True):
        if is_marked:
            (path / "a-0" / SYNC_FAILED).touch()
        directory = open_directory(path, batches, small_segments)
        assert not directory.failed
        assert directory.logs[NAME].log_end_offset == 40
        directory.release()
    assert [file.read_bytes() for file in kept] == [KEPT] * len(kept)


def test_a_partition_behind_a_link_is_deleted_by_its_link(path: Path, batches: Batches, tmp_path: Path) -> None:
    directory = open_directory(path, batches)
    topic_id = uuid.uuid4()
    batches.append(directory.create(NAME, topic_id=topic_id, now_ms=batches.now_ms), batches.make(2))
    directory.close()
    (path / "a-0").rename(tmp_path / "elsewhere")
    (path / "a-0").symlink_to(tmp_path / "elsewhere")
    directory = open_directory(path, batches)
    assert directory.logs[NAME].log_end_offset == 2
    directory.delete(NAME, batches.now_ms, topic_id)
    directory.flush_due(batches.now_ms + 60_000)
    assert directory.failure is None
    directory.close()
    assert not list(path.glob("a-0*"))


def test_the_checkpoints_of_a_partition_that_cannot_be_opened_stay(path: Path, batches: Batches) -> None:
    directory = open_directory(path, batches)
    other = TopicPartition("b", 0)
    for name in (NAME, other):
        log = directory.create(name, topic_id=uuid.uuid4(), now_ms=batches.now_ms)
        for _ in range(10):
            batches.append(log, batches.make(1))
        log.delete_records(Offset(6))
        log.clean_offset = Offset(7)
    directory.checkpoint_high_watermarks({NAME: Offset(9), other: Offset(9)})
    directory.checkpoint_clean_offsets()
    directory.close()
    metadata = path / "a-0" / "partition.metadata"
    content = metadata.read_bytes()
    metadata.write_bytes(bytes(len(content)))
    for _ in range(3):
        directory = open_directory(path, batches)
        assert list(directory.failed) == [NAME]
        directory.checkpoint_high_watermarks({other: Offset(10)})
        directory.logs[other].clean_offset = Offset(8)
        directory.checkpoint_clean_offsets()
        directory.close()
    metadata.write_bytes(content)
    directory = open_directory(path, batches)
    log = directory.logs[NAME]
    assert log.topic_id is not None
    assert (log.log_start_offset, log.clean_offset, directory.high_watermark(log)) == (6, 7, 9)
    assert directory.checkpoints.written("recovery-point-offset-checkpoint", NAME) == 10
    directory.close()


def test_a_partition_that_cannot_be_opened_and_loses_half_of_it_is_noticed_when_it_opens(
    path: Path, batches: Batches, small_segments: LogConfig
) -> None:
    directory = open_directory(path, batches, small_segments)
    log = directory.create(NAME, topic_id=uuid.uuid4(), now_ms=batches.now_ms)
    for _ in range(30):
        batches.append(log, batches.make(2))
    directory.close()
    metadata = path / "a-0" / "partition.metadata"
    content = metadata.read_bytes()
    metadata.write_bytes(b"")
    directory = open_directory(path, batches, small_segments)
    assert list(directory.failed) == [NAME]
    directory.close()
    metadata.write_bytes(content)
    for segment in sorted((path / "a-0").glob("*.log"))[3:]:
        segment.unlink()
    directory = open_directory(path, batches, small_segments)
    log = directory.logs[NAME]
    assert 0 < log.log_end_offset < 60
    assert log.may_lack_tail
    directory.close()


def test_a_partition_that_cannot_be_opened_and_is_deleted_leaves_no_checkpoint(path: Path, batches: Batches) -> None:
    directory = open_directory(path, batches)
    log = directory.create(NAME, topic_id=uuid.uuid4(), now_ms=batches.now_ms)
    batches.append(log, batches.make(5))
    log.delete_records(Offset(3))
    directory.close()
    (path / "a-0" / "partition.metadata").write_bytes(b"")
    directory = open_directory(path, batches)
    directory.delete(NAME, batches.now_ms)
    assert directory.create(NAME, topic_id=uuid.uuid4(), now_ms=batches.now_ms).log_start_offset == 0
    directory.release()
    assert "a 0" not in "".join(file.read_text() for file in path.glob("*-checkpoint"))


@pytest.mark.parametrize("name", [SERVED_REPLICAS, RECOVERY_POINTS])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_something_else_of_a_files_name_is_named_with_what_to_do(
    path: Path, batches: Batches, name: str, make: Callable[..., Any]
) -> None:
    make(path / name)
    with pytest.raises(StorageError, match=f"{name}: is no file, .* move it out of the way"):
        open_directory(path, batches)
