"""A log's files looked at from outside: whole ones are well, each kind of damage is said where it is."""

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.log.config import LogConfig
from pipeline.log.directories.startup import open_log_directory
from pipeline.log.files import DiskFiles
from pipeline.log.inspection.files import Batch, Problem, read_batches
from pipeline.log.inspection.verification import Verifier, log_bytes
from pipeline.model import BrokerId, TopicPartition
from tests.unit.log.conftest import NOW_MS, Batches

T0 = TopicPartition("t", 0)
FIRST = "00000000000000000000"
Damage = Callable[[Path], object]


def write_whole(path: Path, whole: bytes) -> None:
    path.write_bytes(whole)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log dir with a partition of several segments, closed in order."""
    path = tmp_path_factory.mktemp("logs")
    config = LogConfig(segment_bytes=4000, index_interval_bytes=300)
    directory = open_log_directory(
        path, DiskFiles(), config, broker_id=BrokerId(1), cluster_id="c", rng=random.Random(1), now_ms=NOW_MS
    )
    log, batches = directory.create(T0, now_ms=NOW_MS), Batches()
    for number in range(60):
        timestamp = NOW_MS + (number if number % 7 else -number)
        batches.append(log, batches.make(3, timestamp=timestamp, producer_id=5, epoch=0, sequence=3 * number))
    directory.close()
    return path


@pytest.fixture
def logs(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "logs"))


def verify(directory: Path) -> tuple[Verifier, list[Problem]]:
    seen: list[Any] = []
    verifier = Verifier(seen.append, lambda: None)
    problems = list(verifier.verify(directory))
    if not problems:
        assert sum(seen) == log_bytes(directory)
    return verifier, problems


def test_a_sound_log_is_well(logs: Path) -> None:
    for directory in (logs, logs / "t-0"):
        verifier, problems = verify(directory)
        assert problems == []
        assert verifier.segments > 2
        assert verifier.batches == 60


def flip(position: int) -> Damage:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[position] ^= 0xFF
        path.write_bytes(content)

    return damage


def cut(size: int) -> Damage:
    return lambda path: path.write_bytes(path.read_bytes()[:-size])


def write(text: str) -> Damage:
    return lambda path: path.write_text(text)


@pytest.mark.parametrize(
    ("name", "damage", "said", "where"),
    [
        (f"t-0/{FIRST}.log", flip(80), "checksum", 0),
        (f"t-0/{FIRST}.log", flip(16), "format", 0),
        (f"t-0/{FIRST}.log", cut(5), "bytes into a batch", None),
        (f"t-0/{FIRST}.index", flip(3), "where a batch ends with offset", 0),
        (f"t-0/{FIRST}.index", flip(7), "", 0),
        (f"t-0/{FIRST}.index", cut(3), "into an entry", None),
        (f"t-0/{FIRST}.index", Path.unlink, "is missing", None),
        (f"t-0/{FIRST}.timeindex", flip(7), "", None),
        (f"t-0/{FIRST}.timeindex", cut(1), "into an entry", None),
        ("t-0/leader-epoch-checkpoint", write("0\n2\n7 0\n3 9\n"), "does not come after", None),
        ("t-0/leader-epoch-checkpoint", write("0\n1\n7 0\n"), "of leader epoch 3 contradicts", 0),
        ("t-0/leader-epoch-checkpoint", write("no\n"), "not a checkpoint of leader epochs", None),
        ("recovery-point-offset-checkpoint", write("0\n1\nt 0 500\n"), "its log ends at 180", None),
        ("recovery-point-offset-checkpoint", write("0\n"), "", None),
        ("replication-offset-checkpoint", write("0\n1\nt 0 500\n"), "its log ends at 180", None),
        ("replication-offset-checkpoint", write("no\n"), "", None),
        ("t-0/partition.metadata", write(""), "holds no topic id", None),
        ("t-0/partition.metadata", write("version: 0\ntopic_id: x\n"), "holds no topic id", None),
    ],
)
def test_damage_is_said_where_it_is(logs: Path, name: str, damage: Damage, said: str, where: int | None) -> None:
    damage(logs / name)
    found = [problem for problem in verify(logs)[1] if said in problem.reason]
    if "contradicts" in said:
        assert {problem.path.suffix for problem in found} == {".log"}
    else:
        assert found[0].path == logs / name
    if where is not None:
        assert found[0].position == where


def test_a_missing_segment_between_others_is_said(logs: Path) -> None:
    names = sorted(path.stem for path in (logs / "t-0").glob("*.log"))
    for path in (logs / "t-0").glob(f"{names[1]}.*"):
        path.unlink()
    (problem,) = verify(logs)[1]
    assert problem.path == logs / "t-0" / f"{names[2]}.log"
    assert "records are lost" in problem.reason


def test_a_damaged_snapshot_is_said(logs: Path) -> None:
    path = sorted((logs / "t-0").glob("*.snapshot"))[-1]
    flip(20)(path)
    (problem,) = verify(logs)[1]
    assert (problem.path, problem.reason) == (path, "a producer snapshot with a wrong checksum")


def test_a_snapshot_of_what_comes_later_is_said(logs: Path) -> None:
    path = sorted((logs / "t-0").glob("*.snapshot"))[-1]
    path.rename(path.with_name("00000000000000000003.snapshot"))
    assert "tells of offset" in verify(logs)[1][0].reason


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(logs: Path) -> None:
    path = logs / "t-0" / f"{FIRST}.log"
    whole = path.read_bytes()
    expected = [batch.header.base_offset for batch in read_batches(path) if isinstance(batch, Batch)]
    path.write_bytes(whole[:-100])
    found = list(read_batches(path, partial(write_whole, path, whole)))
    assert [batch.header.base_offset for batch in found if isinstance(batch, Batch)] == expected
    assert len(found) == len(expected)


def test_room_at_the_end_of_an_index_of_apache_kafka_is_no_damage(logs: Path) -> None:
    for suffix in ("index", "timeindex"):
        path = logs / "t-0" / f"{FIRST}.{suffix}"
        entry = 8 if suffix == "index" else 12
        path.write_bytes(path.read_bytes() + bytes(entry * 1000))
    assert verify(logs)[1] == []


@pytest.mark.parametrize("pattern", ["{1}.*", "{0}.index", "{1}.timeindex"])
def test_a_segment_that_is_being_swapped_is_no_damage(logs: Path, tmp_path: Path, pattern: str) -> None:
    names = sorted(path.stem for path in (logs / "t-0").glob("*.log"))
    away = tmp_path / "away"
    away.mkdir()
    for path in (logs / "t-0").glob(pattern.format(*names)):
        path.rename(away / path.name)

    def bring_back() -> None:
        for path in away.iterdir():
            path.rename(logs / "t-0" / path.name)

    assert list(Verifier(lambda _: None, bring_back).verify(logs)) == []
    assert list(away.iterdir()) == []


def test_a_snapshot_that_is_being_written_is_no_damage(logs: Path) -> None:
    path = sorted((logs / "t-0").glob("*.snapshot"))[-1]
    whole = path.read_bytes()
    cut(10)(path)
    assert list(Verifier(lambda _: None, partial(write_whole, path, whole)).verify(logs)) == []
