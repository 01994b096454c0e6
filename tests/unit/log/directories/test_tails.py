"""Which logs may have lost records that were acknowledged: `may_lack_tail`."""

import itertools
import random
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories.settlement import settle_tails
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.log.truncation import truncate_to
from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.testing.faulty_files import Crash, FaultyFiles
from tests.unit.log.conftest import Batches

TOPIC_ID = uuid.UUID(int=1)
NAMES = [TopicPartition("a", number) for number in range(3)]


class Machine:
    """A log directory, opened in one process and one boot after the other."""

    def __init__(self, tmp_path: Path, batches: Batches) -> None:
        self.path = tmp_path / "logs"
        self.batches = batches
        self.boot = "first"
        self.open()

    def open(self, crash_in: int | None = None) -> None:
        self.files = FaultyFiles(DiskFiles(), random.Random(1))
        self.files.boot = self.boot
        self.files.crash_in = crash_in
        self.directory = open_log_directory(
            self.path,
            self.files,
            LogConfig(segment_bytes=500),
            broker_id=BrokerId(1),
            cluster_id="c",
            rng=random.Random(1),
            now_ms=self.batches.now_ms,
        )

    def fill(self) -> None:
        for name in NAMES:
            log = self.directory.logs.get(name)
            log = log or self.directory.create(name, topic_id=TOPIC_ID, now_ms=self.batches.now_ms)
            for _ in range(6):
                self.batches.append(log, self.batches.make(2, size=100))

    def settle(self, *names: TopicPartition) -> None:
        judged = dict.fromkeys(names, TOPIC_ID)
        settle_tails(self.directory, {self.directory.id}, judged)

    def kill(self) -> None:
        self.directory.release()

    def lacking(self) -> Any:
        return [name.partition for name, log in sorted(self.directory.logs.items()) if log.may_lack_tail]

    def log_file(self, number: int, base_offset: int) -> Path:
        return self.path / f"a-{number}" / f"{base_offset:020d}.log"


@pytest.fixture
def machine(tmp_path: Path, batches: Batches) -> Machine:
    machine = Machine(tmp_path, batches)
    machine.fill()
    return machine


def test_no_log_lacks_its_tail_after_a_clean_stop(machine: Machine) -> None:
    for boot in ("first", "second"):
        machine.directory.close()
        machine.boot = boot
        machine.open()
        assert machine.lacking() == []
    machine.kill()
    machine.open()
    assert machine.lacking() == []


def test_a_damaged_log_keeps_the_mark_of_a_clean_stop_from_itself_alone(machine: Machine) -> None:
    machine.settle(*NAMES)
    machine.directory.close()
    closed = sorted((machine.path / "a-1").glob("*.log"))[0]
    content = closed.read_bytes()
    closed.write_bytes(content[:-1])
    machine.open()
    assert list(machine.directory.failed) == [NAMES[1]]
    machine.directory.close()
    closed.write_bytes(content)
    machine.boot = "second"
    machine.open()
    assert machine.lacking() == [1]
    machine.kill()
    machine.open()
    assert machine.lacking() == [1]
    machine.settle(*NAMES)
    machine.directory.close()
    machine.boot = "third"
    machine.open()
    assert machine.lacking() == []


@pytest.mark.parametrize("room", [2000, 3000, 4000])
def test_a_log_that_has_no_room_to_be_closed_keeps_the_mark_from_itself_alone(machine: Machine, room: int) -> None:
    for producer_id in range(100):
        batch = machine.batches.make(1, producer_id=producer_id, epoch=0, sequence=0)
        machine.batches.append(machine.directory.logs[NAMES[1]], batch)
    machine.files.capacity_bytes = machine.files.used_bytes + room
    with pytest.raises(DiskFullError):
        machine.directory.close()
    assert machine.directory.failure is None
    machine.boot = "second"
    machine.open()
    assert machine.lacking() == [1]


def test_a_disk_that_is_too_slow_for_a_stop_vouches_for_the_logs_that_it_took(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = itertools.count()
    monkeypatch.setattr("pipeline.log.directories.shutdown.time.monotonic", lambda: next(clock_s))
    with pytest.raises(StorageError, match="longer than 2 s for 2 of 3 logs"):
        machine.directory.close(timeout_s=2)
    monkeypatch.undo()
    machine.boot = "second"
    machine.open()
    assert len(machine.lacking()) == 2


def test_a_killed_process_loses_nothing_but_the_batch_that_it_was_writing(machine: Machine) -> None:
    machine.kill()
    for number, end in ((0, 1), (1, 70), (2, 200)):
        path = sorted((machine.path / f"a-{number}").glob("*.log"))[-1]
        path.write_bytes(path.read_bytes()[:-end])
    machine.open()
    assert machine.lacking() == []
    assert {log.log_end_offset for log in machine.directory.logs.values()} == {10}


def test_all_logs_may_lack_their_tail_after_another_boot(machine: Machine) -> None:
    machine.kill()
    machine.boot = "second"
    for _ in range(2):
        machine.open()
        assert machine.lacking() == [0, 1, 2]
        machine.kill()
    machine.open()
    machine.settle(*NAMES)
    assert machine.lacking() == []
    machine.kill()
    machine.open()
    assert machine.lacking() == []


@pytest.mark.parametrize("ends", ["clean", "killed"])
def test_a_log_whose_topic_was_unknown_lacks_its_tail_until_the_topic_is_back(machine: Machine, ends: str) -> None:
    machine.kill()
    (machine.path / "a-2" / "00000000000000000000.log").rename(machine.path / "elsewhere")
    (machine.path / "a-2" / "00000000000000000000.log").mkdir()
    machine.boot = "second"
    machine.open()
    assert list(machine.directory.failed) == [NAMES[2]]
    machine.settle(NAMES[0])
    assert machine.lacking() == [1]
    if ends == "clean":
        with suppress(StorageError):
            machine.directory.close()
    machine.kill()
    (machine.path / "a-2" / "00000000000000000000.log").rmdir()
    (machine.path / "elsewhere").rename(machine.path / "a-2" / "00000000000000000000.log")
    machine.open()
    assert machine.lacking() == [1, 2]
    machine.settle(*NAMES)
    machine.kill()
    machine.open()
    assert machine.lacking() == []


def test_a_directory_of_an_older_version_counts_as_one_of_another_boot(machine: Machine) -> None:
    machine.kill()
    (machine.path / "boot-id").unlink()
    machine.open()
    assert machine.lacking() == [0, 1, 2]


def test_a_copy_of_a_directory_in_use_may_lack_what_was_written_since(machine: Machine) -> None:
    shutil.copytree(machine.path, machine.path.with_name("backup"))
    machine.fill()
    machine.kill()
    shutil.rmtree(machine.path)
    machine.path.with_name("backup").rename(machine.path)
    machine.open()
    assert machine.lacking() == [0, 1, 2]
    machine.settle(*NAMES)
    machine.kill()
    machine.open()
    assert machine.lacking() == []


def test_a_directory_that_was_stopped_cleanly_may_be_copied_to_another_disk(machine: Machine) -> None:
    machine.directory.close()
    shutil.copytree(machine.path, machine.path.with_name("copy"))
    shutil.rmtree(machine.path)
    machine.path.with_name("copy").rename(machine.path)
    machine.open()
    assert machine.lacking() == []
    machine.kill()
    machine.open()
    assert machine.lacking() == []


def test_a_boot_that_an_older_version_noted_counts(machine: Machine) -> None:
    machine.kill()
    (machine.path / "boot-id").write_text(machine.boot)
    machine.open()
    assert machine.lacking() == []
    machine.directory.close()
    machine.open()
    assert (machine.path / "boot-id").read_text() != machine.boot


def test_a_boot_that_the_kernel_does_not_tell_counts_as_another(machine: Machine) -> None:
    machine.directory.close()
    machine.boot = ""
    machine.open()
    assert machine.lacking() == []
    machine.kill()
    machine.open()
    assert machine.lacking() == [0, 1, 2]


def test_damage_is_remembered_until_somebody_took_care(machine: Machine) -> None:
    machine.kill()
    path = machine.log_file(1, 4)
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    for crash_in in range(1, 12):  # the first starts do not live to tell anybody
        try:
            machine.open(crash_in)
        except Crash:
            machine.files.end_process()
        else:
            machine.kill()
    machine.open()
    assert machine.lacking() == [1]
    assert machine.directory.logs[NAMES[1]].log_end_offset == 4
    machine.settle(*NAMES)
    machine.kill()
    machine.open()
    assert machine.lacking() == []


def test_a_closed_segment_that_ends_early_is_damage(machine: Machine) -> None:
    machine.kill()
    path = machine.log_file(2, 4)
    path.write_bytes(path.read_bytes()[:-1])
    machine.open()
    assert machine.lacking() == [2]


def test_a_log_that_ends_before_what_was_known_to_be_there_lacks_it(machine: Machine) -> None:
    for name in NAMES[:2]:
        machine.directory.logs[name].flush()
    machine.directory.flush_due(machine.batches.now_ms + 60_000)
    machine.directory.checkpoint_high_watermarks({NAMES[2]: Offset(12), TopicPartition("b", 0): Offset(1)})
    machine.kill()
    for number in (0, 2):
        path = sorted((machine.path / f"a-{number}").glob("*.log"))[-1]
        path.write_bytes(path.read_bytes()[:-1])
    machine.open()
    assert machine.lacking() == [0, 2]
    directory = machine.directory
    assert [directory.high_watermark(directory.logs[name]) for name in NAMES] == [0, 0, 10]
    machine.kill()
    machine.open()
    assert machine.lacking() == [0, 2]
    machine.settle(*NAMES)
    machine.kill()
    machine.open()
    assert machine.lacking() == []


def test_truncated_records_are_not_missing(machine: Machine) -> None:
    directory = machine.directory
    directory.checkpoint_high_watermarks(dict.fromkeys(NAMES, Offset(12)))
    for name in NAMES:
        directory.logs[name].flush()
        truncate_to(directory.logs[name], Offset(5))
    assert directory.high_watermark(directory.logs[NAMES[0]]) == 4
    machine.kill()
    machine.open()
    assert machine.lacking() == []
    assert {log.log_end_offset for log in machine.directory.logs.values()} == {4}


def test_a_log_that_lost_its_end_is_not_taken_for_clean_where_it_grows_again(machine: Machine) -> None:
    name = NAMES[0]
    log = machine.directory.logs[name]
    log.clean_offset = Offset(12)
    machine.directory.checkpoint_clean_offsets()
    machine.kill()
    for path in sorted((machine.path / "a-0").glob("*.log"))[1:]:
        path.unlink()
    machine.open()
    end = machine.directory.logs[name].log_end_offset
    assert end < 12
    machine.settle(*NAMES)
    machine.fill()
    assert machine.directory.logs[name].log_end_offset > 12
    machine.kill()
    machine.open()
    assert machine.directory.logs[name].clean_offset == end
