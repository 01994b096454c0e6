"""Creation of logs: many at once, in crashes, on full disks."""

import random
import uuid
from pathlib import Path

import pytest

from pipeline.errors import DiskFullError, StorageError
from pipeline.log.checkpoint import RECOVERY_POINTS, encode_partition_metadata
from pipeline.log.config import LogConfig
from pipeline.log.directories.broker_directories import LogDirectories, create_each
from pipeline.log.directories.settlement import settle_tails
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.directories.tails import assign_topic_id
from pipeline.log.files import DiskFiles
from pipeline.log.loader import NewLog
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, TopicPartition
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.descriptors import no_descriptor_left
from tests.unit.log.conftest import Batches
from tests.unit.log.directories.conftest import OpenDirectory


def test_many_logs_are_made_at_once(tmp_path: Path, batches: Batches) -> None:
    def open_all() -> LogDirectories:
        return LogDirectories.open(
            [tmp_path / "one", tmp_path / "two"],
            DiskFiles(),
            LogConfig(),
            broker_id=BrokerId(1),
            cluster_id="c",
            rng=random.Random(1),
            now_ms=batches.now_ms,
        )

    directories = open_all()
    new = [NewLog(topic_partition=TopicPartition("a", number), topic_id=uuid.uuid4()) for number in range(7)]
    made = directories.create_all(new, batches.now_ms)
    assert sorted(len(directory.logs) for directory in directories.opened) == [3, 4]
    for wanted in new:
        log = made[wanted.topic_partition]
        assert directories.get(wanted.topic_partition) is log
        batches.append(log, batches.make(1))
    with pytest.raises(ValueError, match="a-3"):
        directories.create_all(new[3:4], batches.now_ms)
    directories.close()
    directories = open_all()
    assert {name: log.topic_id for name, log in directories.logs.items()} == {
        wanted.topic_partition: wanted.topic_id for wanted in new
    }
    with pytest.raises(StorageError, match="gone"), directories.opened[0].noticing_failure():
        raise StorageError("one", "gone")
    names = [TopicPartition("b", number) for number in range(2)]
    made = directories.create_all(
        [NewLog(topic_partition=name, is_new=bool(name.partition)) for name in names], batches.now_ms
    )
    assert isinstance(made[names[0]], StorageError)
    assert made[names[1]] is directories.get(names[1])


def test_a_creation_that_a_crash_cut_off_is_undone_or_done(tmp_path: Path, batches: Batches) -> None:
    """Without a flush a log may be gone; if it has records, or its id, it has both or says that it knows no id."""
    name, topic_id = TopicPartition("a", 0), uuid.uuid4()
    seen = set()
    for seed in range(60):
        rng = random.Random(seed)
        path = tmp_path / str(seed)
        files = FaultyFiles(DiskFiles(), rng)
        for number in range(2):
            directory = open_log_directory(
                path, files, LogConfig(), broker_id=BrokerId(1), cluster_id="c", rng=rng, now_ms=batches.now_ms
            )
            assert not directory.failed
            log = directory.logs.get(name)
            if number:
                seen.add((log is not None, log is not None and log.topic_id is not None))
                assert seed % 3 or (log is not None and (log.topic_id, log.log_end_offset) == (topic_id, 1))
                assert log is None or log.topic_id == topic_id or log.log_end_offset
            else:
                log = directory.create(name, topic_id=topic_id, now_ms=batches.now_ms)
                batches.append(log, batches.make(1))
                if seed % 3 == 0:
                    log.flush()
            files.lose_power()
            files = FaultyFiles(DiskFiles(), rng)
    assert seen >= {(False, False), (True, True)}


def test_the_rest_of_a_creation_that_was_cut_off_is_made_anew(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory()
    name, topic_id = TopicPartition("a", 0), uuid.uuid4()
    directory.create(name, topic_id=topic_id, now_ms=batches.now_ms)
    directory.close()
    (tmp_path / "logs" / "a-0" / "partition.metadata").write_bytes(b"")
    (tmp_path / "logs" / RECOVERY_POINTS).write_text("0\n1\na 0 7\n")
    directory = open_directory()
    assert not directory.failed
    assert not (tmp_path / "logs" / "a-0").exists()
    log = directory.create(name, topic_id=topic_id, now_ms=batches.now_ms)
    batches.append(log, batches.make(2))
    directory.close()
    assert open_directory().logs[name].topic_id == topic_id


@pytest.mark.parametrize("free_bytes", [0, 10, 70])
def test_a_full_disk_leaves_nothing_of_logs_that_could_not_be_made(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path, free_bytes: int
) -> None:
    faulty = FaultyFiles(DiskFiles(), random.Random(1))
    directory = open_directory(files=faulty)
    new = [NewLog(topic_partition=TopicPartition("a", number), topic_id=uuid.uuid4()) for number in range(2)]
    faulty.capacity_bytes = faulty.used_bytes + free_bytes
    with pytest.raises(DiskFullError):
        directory.create_all(new, batches.now_ms)
    assert not list((tmp_path / "logs").glob("a-*"))
    assert directory.failure is None
    faulty.capacity_bytes = None
    assert len(directory.create_all(new, batches.now_ms)) == 2
    directory.close()


@pytest.mark.parametrize("left", range(8))
def test_logs_that_there_were_no_descriptors_to_make_are_made_later(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path, left: int
) -> None:
    directory = open_directory()
    new = [NewLog(topic_partition=TopicPartition("a", number), topic_id=uuid.uuid4()) for number in range(3)]
    for wanted in new:
        create_each(directory, [wanted], batches.now_ms)
        directory.delete(wanted.topic_partition, batches.now_ms, wanted.topic_id)  # all modules are loaded now
    with no_descriptor_left(but=left):
        first = create_each(directory, new, batches.now_ms)
        again = [wanted for wanted in new if not isinstance(first[wanted.topic_partition], UnifiedLog)]
        assert all(isinstance(first[wanted.topic_partition], DiskFullError) for wanted in again)
        second = create_each(directory, again, batches.now_ms)
        again = [wanted for wanted in again if not isinstance(second[wanted.topic_partition], UnifiedLog)]
        assert all(isinstance(second[wanted.topic_partition], DiskFullError) for wanted in again)
    assert directory.failure is None
    made = create_each(directory, again, batches.now_ms)
    assert all(isinstance(log, UnifiedLog) for log in made.values())
    for log in directory.logs.values():
        batches.append(log, batches.make(3))
    directory.close()
    assert [log.log_end_offset for log in open_directory().logs.values()] == [3, 3, 3]


def test_new_logs_are_created_as_far_as_there_is_room(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    faulty = FaultyFiles(DiskFiles(), random.Random(1))
    directory = open_directory(files=faulty)
    new = [NewLog(topic_partition=TopicPartition("a", number), topic_id=uuid.uuid4()) for number in range(5)]
    room_bytes = sum(len(encode_partition_metadata(wanted.topic_id)) for wanted in new[:2] if wanted.topic_id)
    faulty.capacity_bytes = faulty.used_bytes + room_bytes
    made = create_each(directory, new, batches.now_ms)
    assert [isinstance(log, DiskFullError) for log in made.values()] == [False, False, True, True, True]
    assert sorted(path.name for path in (tmp_path / "logs").glob("a-*")) == ["a-0", "a-1"]
    faulty.capacity_bytes = None
    assert all(isinstance(log, UnifiedLog) for log in create_each(directory, new[2:], batches.now_ms).values())
    directory.close()


@pytest.mark.parametrize("ends_cleanly", [False, True])
def test_a_topic_id_that_the_process_before_did_not_flush_outlives_the_power(
    open_directory: OpenDirectory, batches: Batches, ends_cleanly: bool
) -> None:
    name, topic_id = TopicPartition("a", 0), uuid.uuid4()
    for seed in range(6):
        faulty = FaultyFiles(DiskFiles(), random.Random(seed))
        directory = open_directory(files=faulty)
        log = directory.create(name, topic_id=topic_id, now_ms=batches.now_ms)
        if ends_cleanly:
            directory.close()
        faulty = faulty.end_process()
        directory = open_directory(files=faulty)
        log = directory.logs[name]
        batches.append(log, batches.make(2))
        log.flush()
        directory.checkpoint_log_start_offsets()
        settle_tails(directory, {directory.id}, {})
        faulty.lose_power()
        directory = open_directory()
        assert directory.logs[name].topic_id == topic_id
        directory.delete(name, batches.now_ms, topic_id)
        directory.flush_due(batches.now_ms + 60_000)
        directory.close()


def test_a_topic_id_that_was_lost_before_the_first_flush_is_assigned_again(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory()
    name, topic_id = TopicPartition("a", 0), uuid.uuid4()
    batches.append(directory.create(name, topic_id=topic_id, now_ms=batches.now_ms), batches.make(2))
    directory.release()
    (tmp_path / "logs" / "a-0" / "partition.metadata").write_bytes(b"nonsense")
    directory = open_directory()
    assert directory.logs[name].topic_id is None
    directory.close()
    directory = open_directory()
    assert directory.logs[name].recovery_point == 2
    assign_topic_id(directory.logs[name], topic_id)
    directory.release()
    assert open_directory().logs[name].topic_id == topic_id
