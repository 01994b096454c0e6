"""The promise that nothing is acknowledged before it is on the disk, and what it tells after a loss of power."""

import random
import uuid
from pathlib import Path

import pytest

from pipeline.log.checkpoint import FLUSHED_FIRST
from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.log.flush_promise import promise_flushes
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, TopicPartition
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.conftest import NOW_MS, Batches

NAME = TopicPartition("events", 0)


def opened(files: FaultyFiles, path: Path, *, boot: str = "first") -> LogDirectory:
    files.boot = boot
    return open_log_directory(
        path,
        files,
        LogConfig(segment_bytes=500),
        broker_id=BrokerId(1),
        cluster_id="c",
        rng=random.Random(1),
        now_ms=NOW_MS,
    )


def test_a_log_with_the_promise_lacks_nothing_after_another_boot(tmp_path: Path, batches: Batches) -> None:
    directory = opened(FaultyFiles(DiskFiles(), random.Random(1)), tmp_path)
    for number in range(2):
        log = directory.create(TopicPartition("events", number), now_ms=NOW_MS)
        batches.append(log, batches.make(2))
    promise_flushes(directory.logs[NAME], is_promised=True)
    directory.release()
    found = opened(FaultyFiles(DiskFiles(), random.Random(1)), tmp_path, boot="second").logs
    assert [found[TopicPartition("events", number)].may_lack_tail for number in range(2)] == [False, True]
    assert found[NAME].is_flushed_first


def test_a_promise_that_ended_is_gone_after_another_boot(tmp_path: Path, batches: Batches) -> None:
    directory = opened(FaultyFiles(DiskFiles(), random.Random(1)), tmp_path)
    log = directory.create(NAME, now_ms=NOW_MS)
    batches.append(log, batches.make(2))
    promise_flushes(log, is_promised=True)
    promise_flushes(log, is_promised=False)
    directory.release()
    assert not (tmp_path / "events-0" / FLUSHED_FIRST).exists()
    assert opened(FaultyFiles(DiskFiles(), random.Random(1)), tmp_path, boot="second").logs[NAME].may_lack_tail


@pytest.mark.parametrize("seed", range(8))
def test_unflushed_records_of_a_killed_process_are_flushed_before_they_count(
    tmp_path: Path, batches: Batches, seed: int
) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(seed))
    log = opened(files, tmp_path).create(NAME, now_ms=NOW_MS)
    promise_flushes(log, is_promised=True)
    batches.append(log, batches.make(2))
    files = files.end_process()
    log = opened(files, tmp_path).logs[NAME]
    assert (log.log_end_offset, log.recovery_point, log.is_flushed_first) == (2, 0, True)
    promise_flushes(log, is_promised=True)
    assert log.recovery_point == 2
    files.lose_power()
    found = opened(FaultyFiles(DiskFiles(), random.Random(seed)), tmp_path, boot="second").logs[NAME]
    assert (found.log_end_offset, found.may_lack_tail) == (2, False)


def test_flush_ms_holds_for_what_a_killed_process_left(tmp_path: Path, batches: Batches) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    batches.append(opened(files, tmp_path).create(NAME, now_ms=NOW_MS), batches.make(2))
    directory = opened(files.end_process(), tmp_path)
    log = directory.logs[NAME]
    log.config = LogConfig(flush_ms=1000)
    directory.flush_due(NOW_MS + 999)
    assert log.recovery_point == 0
    directory.flush_due(NOW_MS + 1000)
    assert log.recovery_point == 2


@pytest.mark.parametrize("seed", range(60))
def test_acknowledged_records_of_a_log_with_the_promise_survive_every_loss_of_power(
    tmp_path: Path, batches: Batches, seed: int
) -> None:
    rng = random.Random(seed)
    files = FaultyFiles(DiskFiles(), rng)
    directory = opened(files, tmp_path)
    log = directory.create(NAME, now_ms=NOW_MS, topic_id=uuid.UUID(int=7))
    log.flush()
    history = _History(log, batches, rng)
    files.crash_in = rng.randint(1, 60)
    try:
        for _ in range(25):
            history.step()
    except Crash:
        pass
    files.lose_power()
    found = opened(FaultyFiles(DiskFiles(), rng), tmp_path, boot="second").logs[NAME]
    assert found.may_lack_tail or found.log_end_offset >= history.acknowledged_end
    if history.has_promised and not found.may_lack_tail:
        assert found.is_flushed_first


class _History:
    """Appends to a log, acknowledges as a broker does, and changes what is promised."""

    def __init__(self, log: UnifiedLog, batches: Batches, rng: random.Random) -> None:
        self.acknowledged_end = 0
        self.has_promised = False
        self._log = log
        self._batches = batches
        self._rng = rng
        self._flushes_first = False

    def step(self) -> None:
        if self._rng.random() < 0.2:
            self._change_promise()
            return
        self._batches.append(self._log, self._batches.make(self._rng.randint(1, 3), size=60))
        if self._flushes_first:
            self._log.flush()
        self.acknowledged_end = self._log.log_end_offset

    def _change_promise(self) -> None:
        is_promised = not self._log.is_flushed_first
        self._flushes_first = True
        self.has_promised = False
        promise_flushes(self._log, is_promised=is_promised)
        self._flushes_first = self.has_promised = is_promised
