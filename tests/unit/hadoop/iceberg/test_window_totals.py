"""Sums by window over all commits, as a property of a table."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from pipeline.hadoop.commit.manifest import Manifest
from pipeline.hadoop.commit.table_state import COUNTS_KEPT_MS
from pipeline.hadoop.iceberg.history import read_iceberg_history
from pipeline.hadoop.iceberg.snapshot_properties import SHA256, manifest_in, snapshot_properties, table_properties
from pipeline.hadoop.iceberg.store import IcebergStore
from pipeline.hadoop.iceberg.window_totals import WindowTotals, WindowTotalsError
from pipeline.records.content_sums import ContentSums
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


def content(batches: int = 1, value: int = 2**64 - 1) -> ContentSums:
    return ContentSums(batches, value, value - 1, 0, 4)


def test_sums_over_contents_are_added_up_and_survive_the_property() -> None:
    first = replace(manifest({KEY: Counts(5, 70, 1, 1)}), sums={KEY: content()})
    second = replace(manifest({KEY: Counts(2, 30, 1, 3)}), sums={KEY: ContentSums(1, 3, 4, 5, 9)})
    totals = WindowTotals.decode(WindowTotals().after([first]).encode(first)).after([second])
    assert WindowTotals.decode(totals.encode(second)).sums == {KEY: ContentSums(2, 2, 2, 0, 9)}


def test_totals_of_an_older_program_have_sums_of_too_few_batches() -> None:
    older = WindowTotals.decode(WindowTotals().after([manifest({KEY: Counts(5, 70, 1, 1)})]).encode(manifest({})))
    after = older.after([replace(manifest({KEY: Counts(2, 30, 1, 3)}), sums={KEY: content()})])
    assert (after.counts[KEY].batches, after.sums[KEY].batches) == (2, 1)


def test_sums_without_room_are_left_out_before_counts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [(0, FIRST_HOUR_MS + number * WINDOW_MS) for number in range(20)]
    rng = Random(7)
    last = replace(
        manifest({key: Counts(number, number, 1, rng.getrandbits(64)) for number, key in enumerate(keys)}),
        sums={key: ContentSums(1, rng.getrandbits(64), rng.getrandbits(64), 0, 4) for key in keys},
        created_ms=keys[-1][1],
    )
    totals = WindowTotals().after([last])
    bound = len(totals.encode(last)) * 3 // 4
    monkeypatch.setattr("pipeline.hadoop.iceberg.window_totals.MAX_BYTES", bound)
    text = totals.encode(last)
    found = WindowTotals.decode(text)
    assert len(text) <= bound
    assert (found.counts, found.since_ms) == (totals.counts, None)
    assert 0 < len(found.sums) < 20
    assert found.sums == {key: totals.sums[key] for key in keys[-len(found.sums) :]}


def test_a_snapshot_has_the_sums_of_its_commit_unless_they_make_it_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = replace(manifest({KEY: Counts(5, 70, 1, 1)}), sums={KEY: content()})
    assert manifest_in(snapshot_properties(commit), "a")[0].sums == commit.sums
    monkeypatch.setattr("pipeline.hadoop.iceberg.snapshot_properties.MAX_BYTES_WITH_SUMS", 100)
    properties = snapshot_properties(commit)
    assert manifest_in(properties, "a")[0] == replace(commit, sums={})
    assert table_properties(commit, 1, 2)[SHA256] == properties[SHA256]


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
