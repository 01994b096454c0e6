"""Counts of what a table holds: what is damaged is not stored, and what is doubled is stored twice."""

from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.upkeep.stored_counts import stored_counts, with_doubled
from pipeline.hadoop.upkeep.verification import DoubledRecords, FileDifference, held_otherwise
from pipeline.records.content_sums import ContentSums
from pipeline.records.tally import HOUR_MS, Counts

HOUR = 480_000 * HOUR_MS
EARLY, LATE = (0, HOUR), (0, HOUR + 600_000)
COUNTS = {EARLY: Counts(10, 100, 2, 7), LATE: Counts(5, 50, 1, 9)}


def file(path: str, records: int, first: int) -> DataFile:
    return DataFile(
        path=path,
        partition=0,
        hour_ms=HOUR,
        records=records,
        bytes=1,
        first_offset=first,
        last_offset=first + records - 1,
        crc32c=0,
    )


def state() -> TableState:
    files = [file("a", 10, 0), file("b", 5, 10)]
    sums = {key: ContentSums(count.batches, 1, 2, 0, 14) for key, count in COUNTS.items()}
    return TableState(files={each.path: each for each in files}, counts=COUNTS, sums=sums)


def test_doubled_records_count_twice_in_the_newest_window_of_their_hour() -> None:
    found = stored_counts(state(), (), doubled=[DoubledRecords(0, HOUR, 4)])
    assert {key: count.records for key, count in found.counts.items()} == {EARLY: 10, LATE: 9}
    assert found.counts[EARLY] == COUNTS[EARLY]
    assert set(found.sums) == {EARLY}, "sums of the window are not known any more"


def test_doubled_records_of_an_hour_without_counts_have_a_window_of_their_own() -> None:
    counts, touched = with_doubled({}, [DoubledRecords(1, HOUR, 4)])
    assert (counts[1, HOUR].records, touched) == (4, {(1, HOUR)})


def test_a_file_that_is_damaged_and_doubled_is_damaged() -> None:
    doubled = FileDifference(path="b", reason="twice", doubled=(DoubledRecords(0, HOUR, 5),))
    assert held_otherwise([doubled]) == (set(), [DoubledRecords(0, HOUR, 5)])
    assert held_otherwise([doubled, FileDifference(path="b", reason="is missing")]) == ({"b"}, [])
    damaged, others = held_otherwise([FileDifference(path="b", reason="is missing")])
    found = stored_counts(state(), damaged, doubled=others)
    assert sum(count.records for count in found.counts.values()) == 10
