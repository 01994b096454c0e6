"""Sums by window over all commits, as a property of a table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from pipeline.hadoop.commit.manifest import Manifest
from pipeline.hadoop.commit.table_state import COUNTS_KEPT_MS
from pipeline.hadoop.iceberg.history import read_iceberg_history
from pipeline.hadoop.iceberg.store import IcebergStore
from pipeline.hadoop.iceberg.window_totals import WindowTotals, WindowTotalsError
from pipeline.records.tally import Counts
from tests.support.iceberg_commits import FIRST_HOUR_MS, commit_rows, manifest_of

WINDOW_MS = 600_000
KEY = (0, FIRST_HOUR_MS)


def manifest(counts: Any) -> Manifest:
    store = IcebergStore("file:///nowhere", "visits", {})
    head = type("Head", (), {"offsets": {}, "next_sequence": 1, "sha256": None})
    return replace(manifest_of(store, head, None, "r", records=1), counts=counts)


def test_totals_survive_their_property() -> None:
    first = manifest({KEY: Counts(5, 70, 1, 2**64 - 1), (3, FIRST_HOUR_MS + WINDOW_MS): Counts(1, 7, 1, 5)})
    totals = WindowTotals().after([first, manifest({KEY: Counts(2, 30, 1, 3)})])
    found = WindowTotals.decode(totals.encode(first))
    assert found == totals
    assert found.counts[KEY] == Counts(7, 100, 2, 2)
    assert found.knows(0)
    with pytest.raises(WindowTotalsError):
        WindowTotals.decode("rubbish")


def test_old_windows_and_those_without_room_are_known_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    new = FIRST_HOUR_MS + COUNTS_KEPT_MS + WINDOW_MS
    last = replace(manifest({}), created_ms=new)
    totals = WindowTotals().after([manifest({KEY: Counts(5, 70, 1, 1), (0, new): Counts(1, 7, 1, 1)})])
    found = WindowTotals.decode(totals.encode(last))
    assert found.counts == {(0, new): Counts(1, 7, 1, 1)}
    assert (found.knows(FIRST_HOUR_MS), found.knows(new)) == (False, True)
    monkeypatch.setattr("pipeline.hadoop.iceberg.window_totals.MAX_BYTES", 400)
    many = {(0, FIRST_HOUR_MS + number * WINDOW_MS): Counts(number, number**3, 1, number**9) for number in range(50)}
    totals = WindowTotals().after([manifest(many)])
    text = totals.encode(last := replace(last, created_ms=max(start for _, start in many)))
    found = WindowTotals.decode(text)
    assert len(text) <= 400
    assert 0 < len(found.counts) < 50
    assert found.since_ms == min(start for _, start in found.counts)
    again = WindowTotals.decode(found.after([manifest({KEY: Counts(1, 1, 1, 1)})]).encode(last))
    assert not again.knows(FIRST_HOUR_MS)
    assert KEY not in again.counts


def test_totals_outlive_the_snapshots_and_follow_a_table_that_is_set_back(tmp_path: Path) -> None:
    store = IcebergStore(tmp_path.as_uri(), "visits", {})

    def records() -> Any:
        history = read_iceberg_history(IcebergStore(store.root, "visits", {}))
        assert history is not None
        return history.totals.counts[KEY].records if history.totals.knows(FIRST_HOUR_MS) else None

    def table() -> Any:
        uri = f"sqlite:///{tmp_path}/_catalog.db"
        return load_catalog("pipeline", type="sql", uri=uri).load_table(("pipeline", "visits"))

    for count in (1, 2, 4):
        commit_rows(store, count)
    first, second, _ = (snapshot.snapshot_id for snapshot in table().metadata.snapshots)
    assert records() == 7
    table().maintenance.expire_snapshots().by_id(first).commit()
    assert records() == 7
    commit_rows(store, 8)
    assert records() == 15
    table().manage_snapshots().set_current_snapshot(second).commit()
    assert records() is None  # the first commit has expired, and the sums are those of a commit that was taken back
    commit_rows(store, 4)
    assert records() is None
