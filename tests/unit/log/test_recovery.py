import random
import struct
import zlib
from pathlib import Path

import pytest

from pipeline.errors import StorageError
from pipeline.log import recovery
from pipeline.log.config import LogConfig
from pipeline.log.directories.shutdown import close_log
from pipeline.log.files import DiskFiles
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset
from tests.unit.log.conftest import Batches, Opener


def log_file(tmp_path: Path, base_offset: int = 0) -> Path:
    return tmp_path / "events-0" / f"{base_offset:020d}.log"


def filled(
    open_log: Opener, batches: Batches, count: int = 10, config: LogConfig | None = None, size: int = 50
) -> UnifiedLog:
    log = open_log(config)
    for number in range(count):
        batches.append(log, batches.make(2, size=size, producer_id=1, epoch=0, sequence=number * 2))
    return log


@pytest.mark.parametrize("clean", [True, False])
def test_blocks_never_written(open_log: Opener, batches: Batches, tmp_path: Path, clean: bool) -> None:
    close_log(filled(open_log, batches))
    path = log_file(tmp_path)
    whole = path.read_bytes()
    size = len(whole) // 10
    for length in (*range(0, size * 2, 11), len(whole) - size, len(whole) - 1, len(whole)):
        path.write_bytes(whole[:length])
        log = open_log(clean=clean)
        assert log.log_end_offset == length // size * 2
        assert path.stat().st_size == length // size * size
        batches.check_indexes(log)


def test_blocks_without_meaning(open_log: Opener, batches: Batches, tmp_path: Path) -> None:
    close_log(filled(open_log, batches))
    path = log_file(tmp_path)
    whole = path.read_bytes()
    size = len(whole) // 10
    rng = random.Random(1)
    for _ in range(100):
        damaged = bytearray(whole)
        position = rng.randrange(len(whole))
        length = rng.choice([1, 10, 100, 512])
        junk = rng.choice([bytes(length), rng.randbytes(length)])
        damaged[position : position + length] = junk[: len(whole) - position]
        first = next((at for at in range(len(whole)) if damaged[at] != whole[at]), len(whole))
        path.write_bytes(damaged)
        log = open_log()
        batches.check_indexes(log)
        if first % size not in range(12, 16):  # the leader epoch is no part of the checksum
            good = min(first // size, 10)
            if first % size < 8 and log.log_end_offset > good * 2:
                continue  # nor is the base offset: a larger one reads as a gap
            assert log.log_end_offset == good * 2


def test_zeros_behind_the_end(open_log: Opener, batches: Batches, tmp_path: Path) -> None:
    close_log(filled(open_log, batches))
    path = log_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(8192))
    assert open_log().log_end_offset == 20
    assert path.read_bytes() == whole


def test_an_older_batch_behind_the_end_is_no_part_of_the_log(
    open_log: Opener, batches: Batches, tmp_path: Path
) -> None:
    close_log(filled(open_log, batches))
    path = log_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 10])
    assert open_log().log_end_offset == 20
    assert path.read_bytes() == whole


@pytest.mark.parametrize("offset", range(0, 20, 3))
def test_segments_behind_a_damaged_one_are_removed(
    open_log: Opener, batches: Batches, tmp_path: Path, small_segments: LogConfig, offset: int
) -> None:
    log = filled(open_log, batches, config=small_segments, size=200)
    segments = [segment.base_offset for segment in log.snapshot.segments]
    victim = max(base_offset for base_offset in segments if base_offset <= offset)
    place = next(s for s in log.snapshot.segments if s.base_offset == victim).locate(offset)
    assert place is not None
    content = bytearray(log_file(tmp_path, victim).read_bytes())
    content[place.position + 70] ^= 1
    log_file(tmp_path, victim).write_bytes(content)
    again = open_log(small_segments)
    assert again.log_end_offset == place.base_offset
    assert sorted(path.name for path in (tmp_path / "events-0").glob("*.log"))[-1] == log_file(tmp_path, victim).name
    batches.check_indexes(again)


def test_whole_batches_lost_at_the_end_of_a_segment_show(
    open_log: Opener, batches: Batches, tmp_path: Path, small_segments: LogConfig
) -> None:
    log = filled(open_log, batches, config=small_segments, size=200)
    first = log.snapshot.segments[0]
    *_, last = first.places()
    log_file(tmp_path).write_bytes(log_file(tmp_path).read_bytes()[: last.position])
    again = open_log(small_segments)
    assert (again.log_end_offset, len(again.snapshot.segments)) == (last.base_offset, 1)


def test_segments_before_the_recovery_point_are_not_read(
    open_log: Opener, batches: Batches, tmp_path: Path, small_segments: LogConfig
) -> None:
    log = filled(open_log, batches, config=small_segments, size=200)
    log.flush()
    content = bytearray(log_file(tmp_path).read_bytes())
    content[70] ^= 1
    log_file(tmp_path).write_bytes(content)
    assert open_log(small_segments, recovery_point=20).log_end_offset == 20
    assert open_log(small_segments, recovery_point=0).log_end_offset == 0


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "zeros", "ones", "wrong", "stale"])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_indexes_are_made_anew(
    open_log: Opener, batches: Batches, tmp_path: Path, suffix: str, damage: str, clean: bool
) -> None:
    config = LogConfig(segment_bytes=3000, index_interval_bytes=1)
    log = filled(open_log, batches, 60, config)
    close_log(log)
    expected = batches.read_all_offline(tmp_path)
    for path in sorted((tmp_path / "events-0").glob(f"*.{suffix}")):
        content = path.read_bytes()
        entry = 8 if suffix == "index" else 12
        if damage == "missing":
            path.unlink()
            continue
        if damage == "wrong" and suffix == "timeindex":
            continue  # times within an index are not checked against the log
        path.write_bytes(
            {
                "cut": content[:-3],
                "empty": b"" if suffix == "timeindex" else content[:-1],
                "zeros": bytes(len(content)),
                "ones": b"\xff" * len(content),
                "wrong": b"".join(
                    content[at : at + entry - 4]
                    + (int.from_bytes(content[at + entry - 4 : at + entry]) + 1).to_bytes(4)
                    for at in range(0, len(content), entry)
                ),
                "stale": content + content[-entry:] if suffix == "index" else content[: entry - 1],
            }[damage]
        )
    again = open_log(config, clean=clean, recovery_point=120)
    assert batches.read_all(again) == expected
    for offset in range(120):
        assert batches.read(again, offset)[0].base_offset == offset // 2 * 2
    batches.check_indexes(again)


def test_a_middle_entry_that_lies_is_noticed_when_it_is_used(
    open_log: Opener, batches: Batches, tmp_path: Path
) -> None:
    config = LogConfig(segment_bytes=3000, index_interval_bytes=1)
    close_log(filled(open_log, batches, 60, config))
    path = log_file(tmp_path).with_suffix(".index")
    content = bytearray(path.read_bytes())
    content[3 * 8 + 7] ^= 3
    path.write_bytes(content)
    log = open_log(config, clean=True)
    for offset in range(120):
        assert batches.read(log, offset)[0].base_offset == offset // 2 * 2
    batches.check_indexes(log)


def test_batches_larger_than_the_buffer(
    open_log: Opener, batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "CHUNK_BYTES", 1000)
    log = open_log()
    for size in (10, 3000, 500, 400, 900, 999, 1000, 20_000, 5):
        batches.append(log, batches.make(1, size=size))
    assert open_log().log_end_offset == 9
    content = bytearray(log_file(tmp_path).read_bytes())
    content[-500] ^= 1
    log_file(tmp_path).write_bytes(content)
    assert open_log().log_end_offset == 7
    log_file(tmp_path).write_bytes(log_file(tmp_path).read_bytes()[:-100])
    assert open_log().log_end_offset == 6


def test_files_that_belong_to_no_segment_are_removed(open_log: Opener, batches: Batches, tmp_path: Path) -> None:
    close_log(filled(open_log, batches))
    directory = tmp_path / "events-0"
    for name in ("00000000000000000777.index", "00000000000000000777.timeindex", "00000000000000000777.snapshot"):
        (directory / name).write_bytes(b"x")
    assert open_log().log_end_offset == 20
    assert not list(directory.glob("*777*"))


def test_gaps_within_and_between_segments_survive(
    open_log: Opener, batches: Batches, small_segments: LogConfig
) -> None:
    log = open_log(small_segments)
    for base_offset in (5, 100, 2000, 30_000, 10**11, 10**11 + 5, 10**13):
        batches.append_keeping(log, batches.make(2, size=200, base_offset=base_offset))
    expected = batches.read_all(log)
    again = open_log(small_segments)
    assert batches.read_all(again) == expected
    assert again.log_end_offset == 10**13 + 2
    assert list(again.headers(Offset(150))) == expected[2:]


def test_opening_twice_changes_nothing(
    open_log: Opener, batches: Batches, tmp_path: Path, small_segments: LogConfig
) -> None:
    close_log(filled(open_log, batches, config=small_segments, size=200))
    before = {path.name: path.read_bytes() for path in (tmp_path / "events-0").iterdir()}
    close_log(open_log(small_segments, clean=True))
    assert {path.name: path.read_bytes() for path in (tmp_path / "events-0").iterdir()} == before
    assert DiskFiles().names(tmp_path / "events-0") == sorted(before)


def old_message(
    offset: int, message_format: int, value: bytes, codec: int = 0, timestamp: int = 1_400_000_000_000
) -> bytes:
    """A message as Kafka before 0.11 wrote it (KIP-31, KIP-32); compressed, its value is a message set."""
    time = struct.pack(">q", timestamp) if message_format else b""
    body = struct.pack(">bb", message_format, codec) + time + struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("good", [0, 3])
@pytest.mark.parametrize(("message_format", "value", "codec"), [(0, b"", 0), (1, b"x" * 20, 0), (1, b"y" * 9000, 1)])
def test_messages_of_an_older_format_are_refused_and_kept(
    open_log: Opener,
    batches: Batches,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    message_format: int,
    value: bytes,
    codec: int,
    good: int,
    clean: bool,
) -> None:
    monkeypatch.setattr(recovery, "CHUNK_BYTES", 4096)
    close_log(filled(open_log, batches, good))
    content = log_file(tmp_path).read_bytes() + old_message(2 * good, message_format, value, codec)
    log_file(tmp_path).write_bytes(content)
    for _ in range(2):
        with pytest.raises(StorageError, match=f"holds a message of format {message_format} .* move the partition"):
            open_log(clean=clean)
        assert log_file(tmp_path).read_bytes() == content


def test_bytes_that_merely_look_like_an_older_message_are_damage(
    open_log: Opener, batches: Batches, tmp_path: Path
) -> None:
    close_log(filled(open_log, batches, 3))
    whole = log_file(tmp_path).read_bytes()
    message = old_message(6, 1, b"value")
    for damaged in (message[:-1], message[:-1] + b"!", message[:16] + b"\x03" + message[17:], message[:20]):
        log_file(tmp_path).write_bytes(whole + damaged)
        assert open_log(clean=False).log_end_offset == 6
        assert log_file(tmp_path).read_bytes() == whole
