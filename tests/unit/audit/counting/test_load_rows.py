"""What a load reports of its commits: hours and windows, roots by name, sums if all commits have them."""

from dataclasses import replace
from urllib.parse import quote

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.counting.load_rows import (
    MAX_ROOT_NAME,
    CommittedCounts,
    load_report,
    name_of_root,
)
from pipeline.audit.events.encoding import decode_count_report, encode_count_report
from pipeline.audit.events.report import OLDER, ROW, CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.records.content_sums import ContentSums
from pipeline.records.tally import HOUR_MS, Counts

MINUTE = 60_000
WINDOW = 10 * MINUTE


def sums(batches: int, first: int, last: int, content: int = 5) -> ContentSums:
    return ContentSums(batches, content, 2**64 - 1, first, last)


KNOWN = CommittedCounts(
    counts={(0, 0): Counts(10, 100, 2, 11), (0, WINDOW): Counts(5, 50, 1, 2**64 - 1), (1, HOUR_MS): Counts(1, 9, 1, 3)},
    sums={(0, 0): sums(2, 100, 109), (0, WINDOW): sums(1, 110, 114), (1, HOUR_MS): sums(1, 0, 0)},
    changed=[(0, WINDOW), (1, HOUR_MS)],
    offsets={0: 115, 1: 1},
    starts={0: 100},
    lost={0: 3},
)


def report(known: CommittedCounts = KNOWN, root: str = "hdfs://nn/lake", window_ms: int = WINDOW) -> CountReport:
    return load_report(
        known, tier=Tier.LOAD, datacenter="hub", root=root, topic="clicks", window_ms=window_ms, now_ms=9
    )


def row(found: CountReport, partition: int, start: int, span: int) -> dict[str, int]:
    rows = found.rows
    (chosen,) = rows[(rows["partition"] == partition) & (rows["start_ms"] == start) & (rows["span_ms"] == span)]
    return {name: chosen[name].item() for name in ROW.names or ()}


def test_an_hour_has_all_its_windows_and_a_window_only_its_own() -> None:
    found = decode_count_report(encode_count_report(report()))
    assert len(found.rows) == 4
    hour, window = row(found, 0, 0, HOUR_MS), row(found, 0, WINDOW, WINDOW)
    assert (hour["records"], hour["bytes"], hour["batches"], hour["crc_sum"]) == (15, 150, 3, 10)
    assert (hour["content_sum"], hour["place_sum"], hour["has_sums"]) == (10, 2**64 - 2, True)
    assert (hour["first_offset"], hour["last_offset"], hour["revision"]) == (100, 114, 115)
    assert (window["records"], window["first_offset"]) == (5, 110)
    position = found.positions[0]
    assert [position[name] for name in ("end_offset", "start_offset", "counted_from", "lost_offsets")] == [
        115,
        100,
        100,
        3,
    ]
    assert found.positions[1]["start_offset"] == -1 and found.positions[1]["counted_from"] == 0


def test_sums_that_lack_a_batch_are_no_sums() -> None:
    for lacking in ({(0, WINDOW): sums(1, 110, 114)}, {**KNOWN.sums, (0, 0): sums(1, 100, 104)}):
        hour = row(report(replace(KNOWN, sums=lacking)), 0, 0, HOUR_MS)
        assert (hour["has_sums"], hour["content_sum"], hour["first_offset"]) == (False, 0, -1)
        assert hour["records"] == 15


def test_an_hour_whose_records_are_all_in_quarantine_has_a_row() -> None:
    known = replace(KNOWN, aside={(1, 5 * HOUR_MS): 8}, changed=[(1, 5 * HOUR_MS)])
    hour = row(report(known), 1, 5 * HOUR_MS, HOUR_MS)
    assert (hour["records"], hour["quarantined"], hour["batches"], hour["has_sums"]) == (0, 8, 0, False)


def test_hours_that_did_not_change_are_partly_known_or_old_have_no_rows() -> None:
    assert len(report(replace(KNOWN, changed=[])).rows) == 0
    late = replace(KNOWN, changed=[*KNOWN.counts], is_known=lambda start_ms: start_ms >= WINDOW)
    assert {(each["start_ms"], each["span_ms"]) for each in report(late).rows} == {
        (WINDOW, WINDOW),
        (HOUR_MS, HOUR_MS),
        (HOUR_MS, WINDOW),
    }


MANY = {(0, hour * HOUR_MS): Counts(hour, 1, 1, 1) for hour in range(200)}


def test_the_oldest_hours_are_in_one_row() -> None:
    known = replace(KNOWN, counts=MANY, sums={}, changed=[(0, 199 * HOUR_MS)])
    found = report(known, window_ms=HOUR_MS)
    older = row(found, 0, OLDER, HOUR_MS)
    assert found.rows["start_ms"].tolist() == [199 * HOUR_MS, OLDER]
    assert (older["records"], older["batches"], older["until_ms"]) == (sum(range(8)), 8, 8 * HOUR_MS)
    everything = report(replace(known, changed=MANY), window_ms=HOUR_MS).rows
    assert len(everything) == 193 and everything["records"].sum() == sum(range(200))


def test_hours_that_are_partly_known_are_in_no_row_of_older_hours() -> None:
    known = replace(KNOWN, counts=MANY, sums={}, changed=MANY, is_known=lambda start_ms: start_ms >= HOUR_MS)
    assert OLDER not in report(known, window_ms=HOUR_MS).rows["start_ms"]


def test_windows_of_an_hour_are_rows_of_hours_only() -> None:
    found = report(window_ms=HOUR_MS)
    assert set(found.rows["span_ms"].tolist()) == {HOUR_MS}


@given(st.dictionaries(st.tuples(st.integers(0, 2), st.integers(-40, 40)), st.integers(1, 9), max_size=60))
def test_rows_of_hours_hold_what_was_loaded(windows: dict[tuple[int, int], int]) -> None:
    counts = {(number, at * WINDOW): Counts(amount, amount, 1, amount) for (number, at), amount in windows.items()}
    known = replace(KNOWN, counts=counts, sums={}, changed=counts)
    rows = report(known).rows
    hours = rows[rows["span_ms"] == HOUR_MS]
    assert hours["records"].sum() == sum(windows.values())
    assert np.all(hours["start_ms"] % HOUR_MS == 0)
    assert len(rows) - len(hours) == sum(
        min(16, len({at for other, at in windows if other == number})) for number in {number for number, _ in windows}
    )


def test_a_root_is_named_without_secrets_and_alike_however_it_is_written() -> None:
    assert name_of_root("/data/lake/") == name_of_root("file:///data//lake") == "file:///data/lake"
    assert name_of_root("s3a://bucket/lake") == name_of_root("s3://key:secret@bucket/lake?x=1") == "s3://bucket/lake"
    assert name_of_root("hdfs://nn:8020/") == "hdfs://nn:8020/"


@given(st.lists(st.text(max_size=300), min_size=2, max_size=2, unique=True))
def test_names_of_roots_are_short_and_printable_and_differ(paths: list[str]) -> None:
    roots = ["hdfs://nn/" + quote(path, safe="") + "/x" for path in paths]
    names = [name_of_root(root) for root in roots]
    assert names[0] != names[1]
    assert all(len(name) <= MAX_ROOT_NAME and name.isascii() and name.isprintable() for name in names)


@given(st.text(max_size=300))
def test_any_root_has_a_name(path: str) -> None:
    for root in ("file:///" + path, "s3://bucket/" + path):
        try:
            name = name_of_root(root)
        except ValueError:
            continue
        assert len(name) <= MAX_ROOT_NAME and name.isascii() and name.isprintable() and " " not in name


def test_long_roots_that_differ_in_the_middle_have_two_names() -> None:
    one, other = ("hdfs://nn/" + "a" * 200 + middle + "b" * 200 for middle in "xy")
    assert name_of_root(one) != name_of_root(other)
