"""Opening and closing of a log dir."""

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigurationError, DiskFullError, StorageError
from pipeline.log.checkpoint import encode_id
from pipeline.log.config import LogConfig
from pipeline.log.directories.broker_directories import LogDirectories, find_directory_ids
from pipeline.log.directories.displacement import is_displaced, make_way
from pipeline.log.directories.logs_set_aside import LogName
from pipeline.log.directories.shutdown import LOGS_PER_CLOSING_THREAD
from pipeline.log.files import DiskFiles
from pipeline.log.partition_files import parse_directory_name
from pipeline.model import BrokerId, TopicPartition
from pipeline.testing.faulty_files import FaultyFiles
from tests.unit.log.conftest import Batches
from tests.unit.log.directories.conftest import CountingFiles, OpenDirectory


def test_logs_come_back_with_their_topic_ids(open_directory: OpenDirectory, batches: Batches) -> None:
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


def test_logs_are_checked_after_an_unclean_shutdown(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
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
    directory.release()
    path.write_bytes(path.read_bytes()[:-1])
    directory = open_directory()
    assert directory.logs[name].log_end_offset == 0
    directory.close()


def test_a_mark_of_zeros_vouches_for_nothing_and_keeps_nothing_closed(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
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


def test_a_second_opener_is_refused(open_directory: OpenDirectory) -> None:
    directory = open_directory()
    with pytest.raises(ConfigurationError, match="another process"):
        open_directory()
    directory.close()
    open_directory().close()


@pytest.mark.parametrize("other", [{"broker_id": 2}, {"cluster_id": "d"}])
def test_the_directory_of_another_broker_is_refused(open_directory: OpenDirectory, other: Any) -> None:
    open_directory().close()
    with pytest.raises(ConfigurationError, match="belongs to"):
        open_directory(**other)
    open_directory().close()


@pytest.mark.parametrize("content", ["", "version=0\n", "broker.ie=1\ncluster.id=c\n"])
def test_a_directory_that_names_no_broker_is_refused_with_what_to_do(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path, content: str
) -> None:
    directory = open_directory()
    batches.append(directory.create(TopicPartition("a", 0), now_ms=batches.now_ms), batches.make(2))
    directory.close()
    (tmp_path / "logs" / "meta.properties").write_text(content)
    with pytest.raises(ConfigurationError, match=r"write broker\.id=1 into it"):
        open_directory()
    (tmp_path / "logs" / "meta.properties").write_text("broker.id=1\ncluster.id=c\n")
    assert open_directory().logs[TopicPartition("a", 0)].log_end_offset == 2


def test_an_unreadable_partition_leaves_the_others_alone(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
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


def test_a_directory_has_an_id_for_life(open_directory: OpenDirectory, tmp_path: Path) -> None:
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
    open_directory: OpenDirectory, batches: Batches
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


def test_a_log_that_cannot_be_closed_leaves_no_mark_of_a_clean_shutdown(
    open_directory: OpenDirectory, batches: Batches, tmp_path: Path
) -> None:
    files = FaultyFiles(DiskFiles(), random.Random(0))
    directory = open_directory(files=files)
    for number in range(2 * LOGS_PER_CLOSING_THREAD):
        batches.append(directory.create(TopicPartition("many", number), now_ms=batches.now_ms), batches.make())
    files.fail_sync_in = 50
    with pytest.raises(StorageError):
        directory.close()
    assert not (tmp_path / "logs" / ".kafka_cleanshutdown").exists()


def test_a_log_that_there_was_no_room_to_repair_is_opened_once_there_is(
    open_directory: OpenDirectory, batches: Batches
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
