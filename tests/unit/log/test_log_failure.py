"""Errors that nobody foresaw: one log ends, its log dir and the other logs there go on."""

import os
import random
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from pipeline.errors import LogFailedError, OddEntryError, StorageError
from pipeline.log import log_failure
from pipeline.log.checkpoint import CLEAN_SHUTDOWN, LOG_START_OFFSETS, TAIL_LOST
from pipeline.log.config import LogConfig
from pipeline.log.directories.settlement import settle_tails
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.expiry import take_expired
from pipeline.log.files import DiskFiles
from pipeline.log.index import Index
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.records.batch import read_header, write_header
from tests.unit.log.conftest import Batches, Opener

FAILING, OTHER = TopicPartition("failing", 0), TopicPartition("other", 0)
DAY_MS = 24 * 60 * 60 * 1000


def open_directory(tmp_path: Path, batches: Batches) -> Any:
    return open_log_directory(
        tmp_path / "logs",
        DiskFiles(),
        LogConfig(),
        broker_id=BrokerId(1),
        cluster_id="c",
        rng=random.Random(1),
        now_ms=batches.now_ms,
    )


@pytest.fixture
def directory(tmp_path: Path, batches: Batches) -> Any:
    directory = open_directory(tmp_path, batches)
    for name in (FAILING, OTHER):
        batches.append(directory.create(name, now_ms=batches.now_ms), batches.make(3))
    return directory


def explode(*_: object, **__: object) -> None:
    raise struct.error("nobody foresaw this")


def check_others_go_on(directory: Any, batches: Batches, tmp_path: Path) -> None:
    """And that all that was taken before is there after a restart."""
    log = directory.logs[FAILING]
    assert isinstance(log.failure, LogFailedError)
    with pytest.raises(StorageError, match="until the broker is started again"):
        batches.append(log, batches.make())
    assert directory.failure is None
    batches.append(directory.logs[OTHER], batches.make())
    directory.flush_due(batches.now_ms)
    directory.close()
    assert (directory.path / CLEAN_SHUTDOWN).read_text() == f"{FAILING}\n"
    again = open_directory(tmp_path, batches)
    ends = {name: log.log_end_offset for name, log in again.logs.items()}
    assert ends == {FAILING: 3, OTHER: 4}
    assert not any(log.may_lack_tail for log in again.logs.values())
    batches.append(again.logs[FAILING], batches.make())
    again.close()
    assert (directory.path / CLEAN_SHUTDOWN).exists()


@pytest.mark.parametrize(
    ("kind", "method"), [(Segment, "note"), (Segment, "would_span_more"), (UnifiedLog, "_append_info")]
)
def test_an_append_leaves_nothing_behind_the_end(
    directory: Any, batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, method: Any
) -> None:
    log = directory.logs[FAILING]
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, explode)
        with pytest.raises(LogFailedError, match="nobody foresaw this"):
            batches.append(log, batches.make(2))
    if method == "_append_info":  # it was in the log by then
        assert log.log_end_offset == 5
        return
    assert (log.directory / f"{0:020d}.log").stat().st_size == log.snapshot.size_bytes
    check_others_go_on(directory, batches, tmp_path)


def test_batches_beyond_the_reach_of_a_segment_that_pass_all_checks_leave_nothing(
    directory: Any, batches: Batches, tmp_path: Path
) -> None:
    log, lying = directory.logs[FAILING], batches.make(size=5000)
    write_header(lying, read_header(lying)._replace(record_count=2**31 - 1, last_offset_delta=2**31 - 2))
    with pytest.raises(LogFailedError):
        log.append(lying * 3, [read_header(lying)] * 3, batches.epoch, batches.now_ms)
    assert log.log_end_offset == 3
    check_others_go_on(directory, batches, tmp_path)


def test_retention_ends_one_log(
    directory: Any, batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Index, "append", explode)
        with pytest.raises(LogFailedError):
            take_expired(directory.logs[FAILING], Offset(3), batches.now_ms + 8 * DAY_MS)
    check_others_go_on(directory, batches, tmp_path)


def test_a_close_ends_one_log(
    directory: Any, batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, failing = Segment.seal, directory.logs[FAILING].snapshot.segments[-1]

    def seal_others(segment: Any) -> Any:
        return explode() if segment is failing else seal(segment)

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "seal", seal_others)
        directory.close()
    assert (directory.path / CLEAN_SHUTDOWN).read_text() == f"{FAILING}\n"
    again = open_directory(tmp_path, batches)
    assert {name: log.log_end_offset for name, log in again.logs.items()} == {FAILING: 3, OTHER: 3}


def test_a_tail_mark_that_the_disk_does_not_let_be_ends_one_log(
    directory: Any, batches: Batches, tmp_path: Path
) -> None:
    directory.close()
    (directory.path / str(FAILING) / TAIL_LOST).mkdir()
    again = open_directory(tmp_path, batches)
    assert again.logs[FAILING].may_lack_tail
    settle_tails(again, {again.id}, dict.fromkeys((FAILING, OTHER), uuid.UUID(int=1)))
    assert isinstance(again.logs[FAILING].failure, LogFailedError)
    assert TAIL_LOST in str(again.logs[FAILING].failure)
    assert again.failure is None
    batches.append(again.logs[OTHER], batches.make())
    (directory.path / str(FAILING) / TAIL_LOST).rmdir()
    again.close()
    assert not open_directory(tmp_path, batches).failed


def test_an_epoch_noted_during_a_flush_keeps_its_mark(
    open_log: Opener, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    batches.append_copied(log, batches.copied(epoch=1, base_offset=0))
    sync_directory = DiskFiles.sync_directory

    def append_meanwhile(files: Any, path: Any) -> None:
        sync_directory(files, path)
        if log.last_epoch == 1 and (path / "leader-epoch-checkpoint").exists():
            batches.append_copied(log, batches.copied(epoch=2, base_offset=1))

    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "sync_directory", append_meanwhile)
        log.flush()
    assert log.last_epoch == 2
    log.flush()
    assert (log.directory / "leader-epoch-checkpoint").read_text().split() == ["0", "2", "1", "0", "2", "1"]


def test_a_pipe_in_the_place_of_a_log_file_fails_one_log(directory: Any, batches: Batches, tmp_path: Path) -> None:
    directory.close()
    path = directory.path / str(FAILING) / f"{0:020d}.log"
    path.unlink()
    os.mkfifo(path)
    again = open_directory(tmp_path, batches)
    assert "is no file" in str(again.failed[FAILING])
    batches.append(again.logs[OTHER], batches.make())
    again.flush_due(batches.now_ms)
    assert again.failure is None


@pytest.fixture
def default_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands configure logging for their process, and a logger that was used before keeps what held then."""
    configured = structlog.get_config()
    structlog.reset_defaults()
    monkeypatch.setattr(log_failure, "logger", structlog.get_logger())
    yield
    structlog.configure(**configured)


def test_a_log_that_failed_alone_is_told_of_once(
    directory: Any, batches: Batches, tmp_path: Path, default_logging: Any
) -> None:
    directory.close()
    (directory.path / str(FAILING) / TAIL_LOST).mkdir()
    with capture_logs() as logs:
        again = open_directory(tmp_path, batches)
        for _ in range(3):
            settle_tails(again, {again.id}, dict.fromkeys((FAILING, OTHER), uuid.UUID(int=1)))
    assert [entry["event"] for entry in logs].count("log_failed") == 1


def test_an_odd_entry_in_a_partition_that_runs_ends_one_log(directory: Any, batches: Batches, tmp_path: Path) -> None:
    log = directory.logs[FAILING]
    odd = log.directory / "leader-epoch-checkpoint.tmp"
    odd.mkdir()
    with pytest.raises(OddEntryError, match="is no file"):
        log.flush()
    odd.rmdir()
    check_others_go_on(directory, batches, tmp_path)


def test_an_odd_entry_in_a_log_dir_that_runs_ends_no_log(directory: Any, batches: Batches, tmp_path: Path) -> None:
    odd = directory.path / f"{LOG_START_OFFSETS}.tmp"
    odd.mkdir()
    directory.logs[OTHER].delete_records(Offset(1))
    with pytest.raises(OddEntryError):
        directory.checkpoint_log_start_offsets()
    assert directory.failure is None
    for log in directory.logs.values():
        batches.append(log, batches.make())
        log.flush()
    odd.rmdir()
    directory.checkpoint_log_start_offsets()
    directory.close()
    assert {log.log_end_offset for log in open_directory(tmp_path, batches).logs.values()} == {4}
