"""Random walks over a table: see `tests/support/table_walk.py`."""

from pathlib import Path

import pytest

from tests.support.table_walk import TableWalk


@pytest.mark.long
@pytest.mark.parametrize("seed", [518, 524])
def test_a_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    TableWalk(tmp_path, seed, monkeypatch).walk(40)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(1000, 1100, 20))
def test_many_walks(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 20):
        with pytest.MonkeyPatch.context() as monkeypatch:
            TableWalk(tmp_path / str(seed), seed, monkeypatch).walk(60)
