"""The file of old hours: bytes come back as they were put, room is used again, and a disk that fails costs memory."""

import os
from pathlib import Path
from random import Random

import pytest

from pipeline.audit.collecting.file_shelf import FileShelf, ShelfError, shelves_in
from pipeline.errors import ConfigurationError


@pytest.mark.parametrize("seed", range(5))
def test_bytes_come_back_and_room_is_used_again(tmp_path: Path, seed: int) -> None:
    random, shelf = Random(seed), FileShelf(tmp_path, 4_000)
    kept: dict[int, bytes] = {}
    refused = 0
    for _ in range(300):
        if kept and random.random() < 0.5:
            place = random.choice(list(kept))
            shelf.drop(place, len(kept.pop(place)))
        else:
            data = random.randbytes(random.randrange(1, 700))
            found = shelf.put(data)
            if found is None:
                refused += 1
            else:
                kept[found] = data
        for place, data in kept.items():
            assert shelf.get(place, len(data)) == data
            assert (
                shelf.get(place + len(data) // 2, 1 if len(data) > 1 else 0) == data[len(data) // 2 :][: len(data) > 1]
            )
        assert sum(map(len, kept.values())) <= 4_000
    assert refused > 0
    for place, data in kept.items():
        shelf.drop(place, len(data))
    assert shelf.put(bytes(4_000)) == 0


def test_no_file_is_left_behind(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path, 100)
    assert shelf.put(b"rows") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_keeps_rows_in_memory(tmp_path: Path) -> None:
    assert FileShelf(tmp_path / "none", 100).put(b"rows") is None


def test_a_full_disk_keeps_rows_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = FileShelf(tmp_path, 100)

    def pwrite(_descriptor: int, _data: bytes, _place: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite)
    assert shelf.put(b"rows") is None
    monkeypatch.undo()
    assert shelf.put(b"more") == 0


def test_a_disk_that_lost_bytes_raises_an_error(tmp_path: Path) -> None:
    shelf = FileShelf(tmp_path, 100)
    assert shelf.put(b"rows") == 0
    with pytest.raises(ShelfError, match="too short"):
        shelf.get(2, 10)


def test_a_folder_is_created_but_not_those_above_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be created"):
        shelves_in(str(tmp_path / "none" / "folder"), 100)
    assert shelves_in(str(tmp_path / "new"), 100)().put(b"rows") == 0
    assert shelves_in(str(tmp_path), 100)().put(b"rows") == 0
    assert shelves_in("", 100)().put(b"rows") == 0
