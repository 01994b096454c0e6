from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.log.files import DiskFiles
from pipeline.log.index import OFFSET_ENTRY, TIME_ENTRY, Index


@given(
    keys=st.lists(st.integers(0, 10_000), unique=True, max_size=1500),
    probes=st.lists(st.integers(-5, 10_010), max_size=30),
    spills=st.sets(st.integers(0, 1500), max_size=4),
    entry=st.sampled_from([OFFSET_ENTRY, TIME_ENTRY]),
)
def test_floor_is_the_last_entry_not_above(
    tmp_path_factory: pytest.TempPathFactory,
    keys: Any,
    probes: Any,
    spills: Any,
    entry: Any,
) -> None:
    path = tmp_path_factory.mktemp("index") / "0.index"
    index = Index(DiskFiles(), path, entry)
    keys.sort()
    for number, key in enumerate(keys):
        index.append(key, number)
        if number in spills:
            index.spill()
    assert len(index) == len(keys)

    def expected(probe: int) -> tuple[int, ...] | None:
        number = bisect_right(keys, probe) - 1
        return None if number < 0 else (keys[number], number)

    assert [index.floor(probe) for probe in probes] == [expected(probe) for probe in probes]
    index.spill()
    assert path.stat().st_size == len(keys) * entry.size
    loaded = Index.load(DiskFiles(), path, entry)
    assert loaded is not None
    assert loaded.last == ((keys[-1], len(keys) - 1) if keys else None)
    assert [loaded.floor(probe) for probe in probes] == [expected(probe) for probe in probes]


def test_a_key_that_does_not_rise_is_passed_over(tmp_path: Path) -> None:
    index = Index(DiskFiles(), tmp_path / "0.timeindex", TIME_ENTRY)
    for key in (5, 5, 4, 6):
        index.append(key, key)
    index.spill()
    assert (tmp_path / "0.timeindex").read_bytes() == TIME_ENTRY.pack(5, 5) + TIME_ENTRY.pack(6, 6)


@pytest.mark.parametrize("content", [b"\0" * 7, OFFSET_ENTRY.pack(5, 0) + OFFSET_ENTRY.pack(5, 9)])
def test_a_damaged_index_is_not_loaded(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "0.index"
    assert Index.load(DiskFiles(), path, OFFSET_ENTRY) is None
    path.write_bytes(content)
    assert Index.load(DiskFiles(), path, OFFSET_ENTRY) is None
