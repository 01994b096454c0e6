"""Sums by window and hour: equal whatever the order, and bounded."""

import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.counting.windows import HOURS_KEPT, WINDOWS_KEPT, WindowSums
from pipeline.audit.events.report import OLDER, ROW
from pipeline.records.batch import CONTROL, BatchHeader
from pipeline.records.batch_hashes import content_hash_of, header_hash_of, header_table, place_hash_of
from pipeline.records.producer_marks import mark_producer_id
from pipeline.records.tally import HOUR_MS, window_start

WINDOW_MS = 600_000


def batch(timestamp: int, **changed: int) -> BatchHeader:
    fields = {
        "base_offset": 7,
        "batch_length": 88,
        "partition_leader_epoch": 3,
        "magic": 2,
        "crc": 2**32 - 5,
        "attributes": 0,
        "last_offset_delta": 2,
        "base_timestamp": timestamp,
        "max_timestamp": timestamp,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": 3,
    }
    return BatchHeader(**(fields | changed))


times = st.one_of(
    st.integers(0, 8 * HOUR_MS),
    st.sampled_from([-1, -(2**63), 2**63 - 1, -62_135_596_800_000, 253_402_300_799_999]),
)
batches = st.builds(
    batch,
    times,
    base_offset=st.integers(0, 2**40),
    crc=st.integers(0, 2**32 - 1),
    attributes=st.sampled_from([0, 1, 4, 7, 8, 9, CONTROL]),
    producer_id=st.sampled_from([-1, 5, mark_producer_id(5)]),
    record_count=st.integers(0, 5),
)


def by_row(rows: Any) -> dict[Any, Any]:
    found = {}
    for row in rows:
        fields = dict(zip(ROW.names or (), row.tolist(), strict=True))
        key = tuple(fields.pop(name) for name in ("partition", "start_ms", "span_ms"))
        assert key not in found
        found[key] = fields
    return found


def expected(counted: list[tuple[int, BatchHeader]], window_ms: int, hours: int, windows: int) -> dict[Any, Any]:
    """The rows by their definition, batch by batch."""
    starts: Any = defaultdict(set)
    for number, header in counted:
        for span in {HOUR_MS, window_ms}:
            starts[number, span].add(window_start(header.base_timestamp, span))
    kept = {key: sorted(all_)[-(hours if key[1] == HOUR_MS else windows) :] for key, all_ in starts.items()}
    rows: Any = defaultdict(list)
    for number, header in counted:
        for span in {HOUR_MS, window_ms}:
            start = window_start(header.base_timestamp, span)
            if start in kept[number, span]:
                rows[number, start, span].append(header)
            elif span == HOUR_MS:
                rows[number, OLDER, span].append(header)
    until = {key: {"until_ms": kept[key[0], HOUR_MS][0] if key[1] == OLDER else 0} for key in rows}
    return {key: _row(headers) | until[key] for key, headers in rows.items()}


def _row(headers: list[BatchHeader]) -> dict[str, Any]:
    marked = [header for header in headers if header.producer_id > 2**60]
    codecs = [header.attributes & 7 for header in headers]
    sums = {
        "records": sum(header.record_count for header in headers),
        "bytes": sum(header.size_bytes for header in headers),
        "batches": len(headers),
        "crc_sum": sum(header.crc for header in headers),
        "content_sum": sum(map(content_hash_of, headers)) % 2**64,
        "place_sum": sum(map(place_hash_of, headers)) % 2**64,
        "header_sum": sum(map(header_hash_of, headers)),
        "has_sums": True,
        **{name: codecs.count(number) for number, name in enumerate(["none", "gzip", "snappy", "lz4", "zstd"])},
        "stamped": sum(bool(header.attributes & 8) for header in headers),
        "first_offset": min(header.base_offset for header in headers),
        "last_offset": max(header.last_offset for header in headers),
        "marked_records": sum(header.record_count for header in marked),
        "marked_sum": sum(map(content_hash_of, marked)) % 2**64,
    }
    zeros = dict.fromkeys(("topic", "revision", "leader_epoch", "uncertain_records", "quarantined"), 0)
    return {**zeros, "by_record": False, **sums}


@pytest.mark.long
@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 2), batches), max_size=25),
    st.lists(st.integers(0, 25), max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from([60_000, WINDOW_MS, HOUR_MS]),
)
def test_rows_depend_on_the_batches_alone(
    counted: list[tuple[int, BatchHeader]], splits: list[int], rng: random.Random, window_ms: int
) -> None:
    data = [(number, header) for number, header in counted if not header.is_control]
    rng.shuffle(counted)
    sums = WindowSums(window_ms, max_hours=3, max_windows=2)
    bounds = [0, *sorted(splits), len(counted)]
    for begin, end in pairwise(bounds):
        part = counted[begin:end]
        numbers = np.array([number for number, _ in part], np.int64)
        sums.add(header_table([header for _, header in part]), numbers)
    want = expected(data, window_ms, 3, 2)
    assert by_row(sums.rows()) == by_row(sums.take_changed()) == want
    assert not sums.has_changed


@given(st.lists(batches, max_size=20), st.integers(0, 20))
def test_rows_of_parts_add_up(counted: list[BatchHeader], split: int) -> None:
    whole, parts = (WindowSums(WINDOW_MS, max_hours=3, max_windows=2) for _ in range(2))
    whole.add(header_table(counted))
    parts.add(header_table(counted[:split]))
    rest = WindowSums(WINDOW_MS, max_hours=3, max_windows=2)
    rest.add(header_table(counted[split:]), 9)
    parts.add_rows(rest.rows(), 0)
    assert by_row(parts.rows()) == by_row(whole.rows())


def test_only_changed_rows_are_taken_until_they_are_marked_again() -> None:
    sums = WindowSums(WINDOW_MS)
    sums.add(header_table([batch(0), batch(HOUR_MS)]), 4)
    taken = sums.take_changed()
    assert len(taken) == 4
    assert len(sums.take_changed()) == 0
    sums.add(header_table([batch(HOUR_MS)]), 4)
    (window, hour) = sorted(sums.take_changed([4]), key=lambda row: row["span_ms"])
    assert (window["start_ms"], hour["start_ms"], hour["batches"]) == (HOUR_MS, HOUR_MS, 2)
    sums.mark_changed(taken)
    assert by_row(sums.take_changed()) == by_row(sums.rows())


def test_rows_of_one_partition_are_taken_marked_and_discarded() -> None:
    sums = WindowSums(WINDOW_MS)
    sums.add(header_table([batch(0), batch(0), batch(HOUR_MS)]), np.array([1, 2, 2]))
    assert set(sums.take_changed([1])["partition"].tolist()) == {1}
    assert set(sums.take_changed()["partition"].tolist()) == {2}
    sums.mark_partition(2)
    assert sorted(sums.take_changed()["start_ms"].tolist()) == [0, 0, HOUR_MS, HOUR_MS]
    sums.add(header_table([batch(0)]), 2)
    sums.discard(2)
    assert not sums.has_changed
    assert set(sums.rows()["partition"].tolist()) == {1}
    sums.add(header_table([batch(0)]), 2)
    assert sums.rows([2])["batches"].tolist() == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize("is_ascending", [True, False])
def test_200_000_distinct_times_are_bounded(*, is_ascending: bool) -> None:
    sums = WindowSums(60_000)
    hours = 200_000
    order = range(hours) if is_ascending else range(hours - 1, -1, -1)
    for first in range(0, hours, 4096):
        part = [batch(order[at] * HOUR_MS) for at in range(first, min(first + 4096, hours))]
        sums.add(header_table(part))
    rows = by_row(sums.rows())
    assert len(rows) == HOURS_KEPT + WINDOWS_KEPT + 1
    assert rows[0, OLDER, HOUR_MS]["batches"] == hours - HOURS_KEPT
    assert sum(row["batches"] for (_, _, span), row in rows.items() if span == HOUR_MS) == hours
    newest = sorted(start for _, start, span in rows if span == 60_000)
    assert newest == [at * HOUR_MS for at in range(hours - WINDOWS_KEPT, hours)]
    assert len(sums._columns.start) < 20_000


def test_rows_without_sums_make_sums_unknown() -> None:
    sums = WindowSums(WINDOW_MS)
    sums.add(header_table([batch(0)]))
    rows = sums.rows()
    rows["has_sums"] = False
    rows["first_offset"] = rows["last_offset"] = -1
    sums.add_rows(rows)
    assert sums.rows()["has_sums"].tolist() == [False, False]
    assert sums.rows()["first_offset"].tolist() == [7, 7]
    assert sums.rows()["last_offset"].tolist() == [9, 9]
