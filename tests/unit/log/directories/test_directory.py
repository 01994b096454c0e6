import gc
import os
import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipeline.errors import ConfigurationError, DiskFullError, StorageError
from pipeline.log.checkpoint import RECOVERY_POINTS, encode_id, encode_partition_metadata, read_offsets
from pipeline.log.config import LogConfig
from pipeline.log.directories.broker_directories import LogDirectories, create_each, find_directory_ids
from pipeline.log.directories.directory import CHECKPOINT_INTERVAL_MS, LogDirectory
from pipeline.log.directories.displacement import find_logs, is_displaced, make_way, may_be_displaced
from pipeline.log.directories.logs_set_aside import LogName
from pipeline.log.directories.settlement import settle_tails
from pipeline.log.directories.shutdown import LOGS_PER_CLOSING_THREAD
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.directories.tails import assign_topic_id
from pipeline.log.files import DiskFile, DiskFiles
from pipeline.log.held_files import hold_end_open, release_files
from pipeline.log.leader_epochs import LEADER_EPOCHS
from pipeline.log.loader import NewLog
from pipeline.log.partition_files import is_deleted, parse_directory_name
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.descriptors import no_descriptor_left
from tests.unit.log.conftest import Batches


class CountingFiles(DiskFiles):
    """Counts the files that were opened."""

    opened = 0

    def open(self, path: Path, *, create: bool = False) -> Any:
        self.opened += 1
        return super().open(path, create=create)


@pytest.fixture
def open_directory(tmp_path: Path, batches: Batches) -> Callable[..., Any]:
    def open_it(
        config: LogConfig | None = None, *, broker_id: int = 1, cluster_id: str = "c", files: Any = None
    ) -> LogDirectory:
        return open_log_directory(
            tmp_path / "logs",
            files or DiskFiles(),
            config or LogConfig(),
            broker_id=BrokerId(broker_id),
            cluster_id=cluster_id,
            rng=random.Random(1),
            now_ms=batches.now_ms,
        )

    return open_it


def test_logs_come_back_with_their_topic_ids(open_directory: Callable[..., Any], batches: Batches) -> None:
    directory = open_directory()
    topic_id = uuid.uuid4()
    names = [TopicPartition("a-b.c", 0), TopicPartition("a-b.c", 11)]
    for name in names:
        batches.append(directory.create(name, topic_id=topic_id, now_ms=batches.now_ms), batches.make(3))
    directory.close()
    directory = open_directory()
    assert sorted(directory.logs) == names
    for name in names:
        log = directory.logs[name]
        assert (log.log_end_offset, log.recovery_point, log.topic_id) == (3, 3, topic_id)
    directory.close()


def test_without_a_clean_shutdown_the_logs_are_checked(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory()
    name = TopicPartition("a", 0)
    batches.append(directory.create(name, topic_id=uuid.uuid4(), now_ms=batches.now_ms), batches.make(3))
    directory.close()
    marker = tmp_path / "logs" / ".kafka_cleanshutdown"
    assert marker.exists()
    path = tmp_path / "logs" / "a-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes() + bytes(500))
    directory = open_directory()
    assert not marker.exists()
    assert directory.logs[name].log_end_offset == 3
    directory._lock.release()
    path.write_bytes(path.read_bytes()[:-1])
    directory = open_directory()
    assert directory.logs[name].log_end_offset == 0
    directory.close()


def test_a_mark_of_zeros_vouches_for_nothing_and_keeps_nothing_closed(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory()
    name = TopicPartition("a", 0)
    batches.append(directory.create(name, topic_id=uuid.uuid4(), now_ms=batches.now_ms), batches.make(3))
    directory.close()
    (tmp_path / "logs" / ".kafka_cleanshutdown").write_bytes(bytes(20))
    (tmp_path / "logs" / "boot-id").write_text("another boot")
    directory = open_directory()
    assert directory.failed == {}
    assert (directory.logs[name].log_end_offset, directory.logs[name].may_lack_tail) == (3, True)
    directory.close()


def test_a_second_opener_is_refused(open_directory: Callable[..., Any]) -> None:
    directory = open_directory()
    with pytest.raises(ConfigurationError, match="another process"):
        open_directory()
    directory.close()
    open_directory().close()


@pytest.mark.parametrize("other", [{"broker_id": 2}, {"cluster_id": "d"}])
def test_the_directory_of_another_broker_is_refused(open_directory: Callable[..., Any], other: Any) -> None:
    open_directory().close()
    with pytest.raises(ConfigurationError, match="belongs to"):
        open_directory(**other)
    open_directory().close()


@pytest.mark.parametrize("content", ["", "version=0\n", "broker.ie=1\ncluster.id=c\n"])
def test_a_directory_that_names_no_broker_is_refused_with_what_to_do(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path, content: str
) -> None:
    directory = open_directory()
    batches.append(directory.create(TopicPartition("a", 0), now_ms=batches.now_ms), batches.make(2))
    directory.close()
    (tmp_path / "logs" / "meta.properties").write_text(content)
    with pytest.raises(ConfigurationError, match=r"write broker\.id=1 into it"):
        open_directory()
    (tmp_path / "logs" / "meta.properties").write_text("broker.id=1\ncluster.id=c\n")
    assert open_directory().logs[TopicPartition("a", 0)].log_end_offset == 2


def test_a_deleted_log_is_gone_and_its_regions_stay(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
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
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory()
    directory.create(TopicPartition("a", 0), now_ms=batches.now_ms)
    directory.close()
    (tmp_path / "logs" / "a-0").rename(tmp_path / "logs" / f"a-0.{uuid.uuid4().hex}-delete")
    directory = open_directory()
    assert not directory.logs
    assert not list((tmp_path / "logs").glob("*-delete"))
    directory.close()


def test_one_unreadable_partition_leaves_the_others_alone(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
) -> None:
    directory = open_directory()
    for number in range(2):
        log = directory.create(TopicPartition("a", number), now_ms=batches.now_ms, topic_id=uuid.uuid4())
        batches.append(log, batches.make(1))
    directory.close()
    (tmp_path / "logs" / "a-0" / "partition.metadata").write_text("nonsense")
    directory = open_directory()
    assert set(directory.logs) == {TopicPartition("a", 1)}
    assert set(directory.failed) == {TopicPartition("a", 0)}
    directory.delete(TopicPartition("a", 0), batches.now_ms)
    assert not directory.failed
    directory.close()


def test_flush_due_flushes_and_checkpoints(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
) -> None:
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


def test_logs_may_come_while_a_thread_looks_at_all_of_them(
    open_directory: Callable[..., Any], batches: Batches
) -> None:
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


def test_a_clock_that_was_set_back_keeps_nothing_from_the_disk_and_no_deleted_file(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
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


def test_files_are_open_only_while_they_are_needed(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
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


def test_a_file_that_is_just_written_to_is_not_let_go(open_directory: Callable[..., Any], batches: Batches) -> None:
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
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
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


def test_a_directory_has_an_id_for_life(open_directory: Callable[..., Any], tmp_path: Path) -> None:
    directory = open_directory()
    directory.close()
    again = open_directory()
    assert again.id == directory.id
    again.close()
    path = tmp_path / "logs" / "meta.properties"
    assert f"directory.id={encode_id(directory.id)}\n" in path.read_text()
    path.write_text("# of Kafka 3\nversion=0\nbroker.id=1\ncluster.id=c\nmore=1\n")
    assert find_directory_ids([tmp_path / "logs", tmp_path / "none"], DiskFiles()) == []
    given = open_directory()
    given.close()
    assert path.read_text() == f"broker.id=1\ncluster.id=c\ndirectory.id={encode_id(given.id)}\nmore=1\nversion=0\n"
    assert find_directory_ids([tmp_path / "logs", tmp_path / "none"], DiskFiles()) == [given.id]
    path.write_text("broker.id=1\ncluster.id=c\ndirectory.id=AAAA\n")
    assert find_directory_ids([tmp_path / "logs"], DiskFiles()) == []
    with pytest.raises(StorageError, match="which is no id"):
        open_directory()


def test_names_of_directories() -> None:
    assert parse_directory_name("a-b-0") == TopicPartition("a-b", 0)
    for name in ("a", "-0", "a-", "a-x", "a-01", "a-0.f-delete", "a-٣", ".lock", "my backup-3", ".-0", f"a-{2**31}"):
        assert parse_directory_name(name) is None


def test_many_logs_are_closed_at_once_and_only_those_with_anything_to_bring_to_disk(
    open_directory: Callable[..., Any], batches: Batches
) -> None:
    files = CountingFiles()
    names = [TopicPartition("many", number) for number in range(4 * LOGS_PER_CLOSING_THREAD)]
    directory = open_directory(files=files)
    for name in names:
        directory.create(name, topic_id=uuid.uuid4(), now_ms=batches.now_ms)
    files.opened = 0
    directory.close()
    assert files.opened < 10
    directory = open_directory(files=files)
    for name in names:
        batches.append(directory.logs[name], batches.make(name.partition % 3 + 1))
    directory.close()
    directory = open_directory(files=files)
    assert [directory.logs[name].log_end_offset for name in names] == [name.partition % 3 + 1 for name in names]
    assert [directory.logs[name].recovery_point for name in names] == [name.partition % 3 + 1 for name in names]
    directory.close()


def test_one_of_many_that_cannot_be_closed_leaves_no_mark(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(0))
    directory = open_directory(files=files)
    for number in range(2 * LOGS_PER_CLOSING_THREAD):
        batches.append(directory.create(TopicPartition("many", number), now_ms=batches.now_ms), batches.make())
    files.fail_sync_in = 50
    with pytest.raises(StorageError):
        directory.close()
    assert not (tmp_path / "logs" / ".kafka_cleanshutdown").exists()


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
    directories.opened[0]._take_offline(StorageError("one", "gone"))
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
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
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
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path, free_bytes: int
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
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path, left: int
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


def test_a_log_that_there_was_no_descriptor_to_flush_is_flushed_later_and_not_called_offline(
    open_directory: Callable[..., Any], batches: Batches
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


def test_a_log_that_there_was_no_room_to_repair_is_opened_once_there_is(
    open_directory: Callable[..., Any], batches: Batches
) -> None:
    name, topic_id = TopicPartition("a", 0), uuid.uuid4()
    faulty = FaultyFiles(DiskFiles(), random.Random(1))
    directory = open_directory(files=faulty)
    log = directory.create(name, topic_id=topic_id, now_ms=batches.now_ms)
    batches.append(log, batches.make(2))
    log.flush()
    batches.append(log, batches.make(3))
    faulty.fail_sync_in = 1
    with pytest.raises(StorageError):
        log.flush()
    faulty = faulty.end_process()
    faulty.capacity_bytes = faulty.used_bytes
    directory = open_directory(files=faulty)
    assert isinstance(directory.failed[name], DiskFullError)
    make_way(directory, name, topic_id, batches.now_ms)
    assert isinstance(directory.failed[name], DiskFullError)
    faulty.capacity_bytes = None
    assert is_displaced(directory, LogName(name, topic_id))
    make_way(directory, name, topic_id, batches.now_ms)
    assert not directory.failed
    assert directory.logs[name].log_end_offset == 5
    directory.close()


def test_a_log_dir_that_is_named_twice_by_a_link_is_told_of(tmp_path: Path, batches: Batches) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to("logs")
    with pytest.raises(ConfigurationError, match=r"link is .* named twice, once by a link"):
        LogDirectories.open(
            [tmp_path / "logs", tmp_path / "link"],
            DiskFiles(),
            LogConfig(),
            broker_id=BrokerId(1),
            cluster_id="c",
            rng=random.Random(1),
            now_ms=batches.now_ms,
        )


def test_as_many_new_logs_are_made_as_there_is_room_for(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
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
    open_directory: Callable[..., Any], batches: Batches, ends_cleanly: bool
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
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
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


def test_a_log_that_had_no_room_to_be_deleted_is_opened_again_when_its_replica_comes_back(
    open_directory: Callable[..., Any], batches: Batches, monkeypatch: pytest.MonkeyPatch
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
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path
) -> None:
    directory, name = open_directory(), TopicPartition("a", 0)
    log = directory.create(name, topic_id=uuid.uuid4(), now_ms=batches.now_ms)
    hold_end_open(log)
    batches.append(log, batches.make(3))
    log.flush()
    release_files(log)
    assert _open_below(tmp_path, "a-0") == [f"{0:020d}.log"]
    directory.delete(name, batches.now_ms, log.topic_id)
    assert _open_below(tmp_path, "a-0") == []
    directory.close()


@pytest.mark.parametrize("length", [213, 214, 249])
def test_a_topic_with_a_long_name_is_deleted(
    open_directory: Callable[..., Any], batches: Batches, tmp_path: Path, length: int
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


def _open_below(path: Path, directory: str) -> Any:
    opened = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link.name for link in opened if str(link).startswith(str(path / "logs" / directory))]
