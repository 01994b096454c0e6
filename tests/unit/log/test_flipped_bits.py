"""Each bit of a small log dir is flipped, one at a time: no start fails, nothing intact goes, nothing is made up."""

import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipeline.errors import ConfigurationError, CorruptBatchError, PipelineError, StorageError
from pipeline.log.config import LogConfig
from pipeline.log.directories.directory import LogDirectory
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.records.batch import validate_for_append, verify_crc
from pipeline.testing.faulty_files import FaultyFiles
from tests.support.wire import content_of
from tests.unit.log.conftest import Batches

NAME, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)
TOPIC_ID = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=1)
SAMPLE = 200
SHARES = 8
MAY_FAIL = (".log", ".gap", "partition.metadata")


@dataclass
class Image:
    """A log dir, and what its logs held."""

    path: Path
    files: dict[Path, bytes]
    batches: dict[TopicPartition, list[tuple[int, bytes]]]
    """All that were ever appended, with their offsets."""
    log_start_offset: int
    boot: str

    def bits(self) -> Any:
        return [(path, bit) for path, content in sorted(self.files.items()) for bit in range(8 * len(content))]

    def restore(self) -> None:
        """Put back what a start has changed."""
        for path in sorted(self.path.rglob("*"), reverse=True):
            if path.is_dir() and not any(path in file.parents for file in self.files):
                path.rmdir()
            elif path.is_file() and path not in self.files:
                path.unlink()
        for path, content in self.files.items():
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)


@pytest.fixture(autouse=True)
def no_logging() -> Iterator[None]:
    """Thousands of tracebacks take longer than the starts that they tell of."""
    with capture_logs():
        yield


def open_directory(path: Path, now_ms: int, boot: str = "boot") -> LogDirectory:
    files = FaultyFiles(DiskFiles(), random.Random(1))
    files.boot = boot
    return open_log_directory(
        path, files, CONFIG, broker_id=BrokerId(1), cluster_id="c", rng=random.Random(1), now_ms=now_ms
    )


def fill(log: UnifiedLog, batches: Batches) -> list[tuple[int, bytes]]:
    """Two epochs, a producer, and a gap that is too wide for one segment."""
    for number in range(8):
        epoch = LeaderEpoch(3 + number // 5)
        if number == 6:
            batches.append_keeping(log, batches.make(1, base_offset=log.log_end_offset + 2**33))
            continue
        made = batches.make(
            2, size=10, producer_id=7, epoch=0, sequence=2 * (number - number // 7), timestamp=batches.now_ms + number
        )
        log.append(memoryview(made), validate_for_append(made, max_batch_bytes=1 << 20), epoch, batches.now_ms)
    return [(header.base_offset, raw) for header, raw in zip(batches.read_all(log), batches.raw(log), strict=True)]


@pytest.fixture(params=["clean", "killed"])
def image(request: Any, tmp_path: Path, batches: Batches) -> Image:
    path = tmp_path / "logs"
    directory = open_directory(path, batches.now_ms)
    logs = {name: directory.create(name, topic_id=TOPIC_ID, now_ms=batches.now_ms) for name in (NAME, OTHER)}
    held = {name: fill(log, batches) for name, log in logs.items()}
    for log in logs.values():
        log.flush()
        log.delete_records(Offset(3))
        log.clean_offset = Offset(4)
    directory.checkpoint_high_watermarks({name: log.log_end_offset for name, log in logs.items()})
    directory.checkpoint_clean_offsets()
    directory.flush_due(batches.now_ms + 60_000)
    if request.param == "clean":
        directory.close()
    else:
        directory.release()
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return Image(path, files, held, 3, "boot")


def readable(log: UnifiedLog, batches: Batches) -> list[tuple[int, bytes]]:
    """The batches that a reader gets, as far as the damage lets it."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1, log.log_end_offset)
        data = content_of(piece.region)
        header = batches.header(data)
        verify_crc(data, 0, header)
        found.append((header.base_offset, bytes(data[: header.size_bytes])))
        offset = Offset(header.next_offset)
    return found


def judge(image: Image, flipped: Path, position: int, batches: Batches) -> None:
    """Open the log dir with one damaged file."""
    try:
        directory = open_directory(image.path, batches.now_ms, image.boot)
    except (ConfigurationError, StorageError) as error:
        assert flipped.name == "meta.properties", error
        assert "meta.properties" in str(error)
        return
    assert not directory.foreign
    for name in image.batches:
        own = flipped.parent.name == str(name)
        if name in directory.failed:
            assert own
            assert flipped.name.endswith(MAY_FAIL), directory.failed[name]
            assert "restore the file" in str(directory.failed[name])
            for file, content in image.files.items():
                if file.suffix == ".log" and file.parent.name == str(name):
                    assert len(file.read_bytes()) == len(content)
            continue
        judge_log(image, directory.logs[name], flipped, position, batches)
    directory.release()


def judge_log(image: Image, log: UnifiedLog, flipped: Path, position: int, batches: Batches) -> None:
    """A log that was opened, with the damage in one of its files or elsewhere."""
    held, is_damaged = image.batches[log.topic_partition], flipped.parent == log.directory and flipped.suffix == ".log"
    assert log.topic_id == TOPIC_ID
    if log.log_end_offset < batches.next_offset(held[-1][1]):
        assert is_damaged
        judge_cut(image, log, flipped, position, batches)
    try:
        found = readable(log, batches)
        batches.append(log, batches.make(1))
    except (CorruptBatchError, StorageError):
        assert is_damaged
        return
    if not is_damaged:
        kept = [(offset, raw) for offset, raw in held if batches.next_offset(raw) > image.log_start_offset]
        assert found[-len(kept) :] == kept
        assert {*found} <= {*held}


def judge_cut(image: Image, log: UnifiedLog, flipped: Path, position: int, batches: Batches) -> None:
    """What lies before the damage stays, and the loss is noted."""
    end = 0
    for offset, raw in image.batches[log.topic_partition]:
        if offset >= int(flipped.stem):
            position -= len(raw)
        if position < 0:
            break
        end = batches.next_offset(raw)
    assert log.log_end_offset >= end
    assert log.may_lack_tail


def flip_and_judge(image: Image, path: Path, bit: int, batches: Batches) -> None:
    content = bytearray(image.files[path])
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    try:
        judge(image, path, bit // 8, batches)
    except BaseException as error:
        error.add_note(f"bit {bit} of {path}")
        raise
    finally:
        image.restore()


@pytest.mark.long
def test_a_sample_of_flipped_bits(image: Image, batches: Batches) -> None:
    bits = random.Random(5).sample(image.bits(), SAMPLE)
    for path, bit in bits:
        flip_and_judge(image, path, bit, batches)


@pytest.mark.long
@pytest.mark.parametrize("share", range(SHARES))
def test_a_flipped_bit_anywhere_is_noticed_or_harmless(image: Any, batches: Batches, share: Any) -> None:
    for path, bit in image.bits()[share::SHARES]:
        flip_and_judge(image, path, bit, batches)


def replace_by_directory(path: Path, _content: bytes) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path, bytes], object]] = {
    "empty": lambda path, content: path.write_bytes(b""),
    "half": lambda path, content: path.write_bytes(content[: len(content) // 2]),
    "without its last byte": lambda path, content: path.write_bytes(content[:-1]),
    "zeros": lambda path, content: path.write_bytes(bytes(len(content))),
    "zeros behind": lambda path, content: path.write_bytes(content + bytes(200)),
    "twice": lambda path, content: path.write_bytes(2 * content),
    "garbage": lambda path, content: path.write_bytes(random.Random(1).randbytes(len(content))),
    "missing": lambda path, content: path.unlink(),
    "a directory": replace_by_directory,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_a_partition_leave_the_directory_and_the_others_alone(
    image: Image, batches: Batches, damage: str
) -> None:
    for path, content in image.files.items():
        if path.parent == image.path:
            continue
        DAMAGES[damage](path, content)
        directory = open_directory(image.path, batches.now_ms, image.boot)
        for name, held in image.batches.items():
            if name in directory.failed:
                assert path.parent.name == str(name)
                assert isinstance(directory.failed[name], PipelineError)
            elif path.parent.name != str(name):
                assert readable(directory.logs[name], batches)[-1] == held[-1]
        directory.release()
        if path.is_dir():
            shutil.rmtree(path)
        image.restore()


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "a directory"])
def test_damaged_files_of_a_log_dir_lose_no_record(image: Image, batches: Batches, damage: str) -> None:
    for path, content in image.files.items():
        if path.parent != image.path or path.name in {"meta.properties", ".kafka_cleanshutdown", ".lock"}:
            continue
        DAMAGES[damage](path, content)
        directory = open_directory(image.path, batches.now_ms, image.boot)
        assert not directory.failed
        for name, held in image.batches.items():
            found = readable(directory.logs[name], batches)
            assert found[-1] == held[-1]
            assert {*found} <= {*held}
        directory.release()
        image.restore()
