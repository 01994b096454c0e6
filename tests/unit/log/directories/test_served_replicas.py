"""Notes of the replicas that a log directory ever served."""

import random
import uuid
from pathlib import Path

import pytest

from pipeline.log.directories import served_replicas
from pipeline.log.directories.served_replicas import SERVED_REPLICAS, ReplicaId, ServedReplicas
from pipeline.log.files import DiskFiles
from pipeline.testing.faulty_files import Crash, FaultyFiles

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)
REPLICAS = [ReplicaId(uuid.UUID(int=9), number) for number in range(2000)]


def notes(path: Path) -> ServedReplicas:
    return ServedReplicas(DiskFiles(), path)


def settled(path: Path, *directories: uuid.UUID) -> ServedReplicas:
    made = notes(path)
    made.settle(directories or [ONE])
    return made


def test_noted_replicas_are_known_to_the_next_process(tmp_path: Path) -> None:
    settled(tmp_path).add(REPLICAS[:3])
    again = notes(tmp_path)
    again.add(REPLICAS[2:5])
    again.discard(REPLICAS[:1])
    found = notes(tmp_path)
    assert [number for number, replica in enumerate(REPLICAS) if replica in found] == [0, 1, 2, 3, 4]
    assert found.is_complete([ONE])


def test_notes_are_complete_only_with_all_log_dirs_that_the_broker_had(tmp_path: Path) -> None:
    assert not notes(tmp_path).is_complete([ONE])
    settled(tmp_path, ONE, TWO)
    found = notes(tmp_path)
    assert found.is_complete([TWO, ONE, uuid.UUID(int=3)])
    assert not found.is_complete([ONE])
    found.add(REPLICAS[:1])
    found.settle([ONE])
    assert notes(tmp_path).is_complete([ONE])
    assert REPLICAS[0] in notes(tmp_path)


def test_notes_without_settling_do_not_count(tmp_path: Path) -> None:
    made = notes(tmp_path)
    made.add(REPLICAS[:1])
    assert not (tmp_path / SERVED_REPLICAS).exists()
    made.settle([ONE])
    assert REPLICAS[0] in notes(tmp_path)


@pytest.mark.parametrize("content", [b"", b"0\n", b"1\n\n", b"0\nx\n", b"0\n\nx 1\n", b"0\n\n\xff\n", b"\0" * 50])
def test_damaged_notes_are_not_complete_until_they_are_settled_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SERVED_REPLICAS).write_bytes(content)
    found = notes(tmp_path)
    assert not found.is_complete([ONE])
    found.add(REPLICAS[:1])
    assert (tmp_path / SERVED_REPLICAS).read_bytes() == content
    found.settle([ONE])
    assert notes(tmp_path).is_complete([ONE])
    assert REPLICAS[0] in notes(tmp_path)


def test_a_note_that_was_not_written_whole_does_not_count_and_does_not_damage_the_next(tmp_path: Path) -> None:
    settled(tmp_path).add(REPLICAS[:1])
    with (tmp_path / SERVED_REPLICAS).open("ab") as file:
        file.write(b"AAAAAAAAAAAAAAAAAAAAAA")
    found = notes(tmp_path)
    assert found.is_complete([ONE])
    found.add(REPLICAS[1:2])
    again = notes(tmp_path)
    assert again.is_complete([ONE])
    assert [replica in again for replica in REPLICAS[:3]] == [True, True, False]


def test_notes_of_deleted_replicas_go_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_replicas, "MIN_LINES_TO_SHORTEN", 20)
    made = settled(tmp_path)
    for replica in REPLICAS:
        made.add([replica])
        made.discard([replica])
    assert len((tmp_path / SERVED_REPLICAS).read_bytes().splitlines()) <= 2 + 20
    assert REPLICAS[-1] in notes(tmp_path)


@pytest.mark.parametrize("seed", range(30))
def test_no_loss_of_power_takes_a_note_that_was_made(tmp_path: Path, seed: int) -> None:
    settled(tmp_path).add(REPLICAS[:10])
    files = FaultyFiles(DiskFiles(), random.Random(seed))
    files.crash_in = 1 + seed % 8
    made = ServedReplicas(files, tmp_path)
    done = 10
    with pytest.raises(Crash):
        while True:
            made.add(REPLICAS[done : done + 10])
            done += 10
    files.lose_power()
    found = notes(tmp_path)
    assert not found.is_complete([ONE]) or all(replica in found for replica in REPLICAS[:done])
