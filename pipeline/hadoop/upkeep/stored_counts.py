"""Counts of what a table really holds, after its files were read back: those of its commits, less what is damaged,
and with what is doubled.

Pure.

Invariants:
A. The records of a file that is gone, cut or changed count as not stored. They are taken from the hour of the file's
   folder, and from earlier hours of the partition once that hour has none left: a batch counts in the hour of its first
   record, so no record is in a later hour than its batch.
B. Hours without a live file were removed by retention of the table, and are not told.
C. Records that are there twice count twice, in the newest window of their hour.
D. A difference that belongs to no file makes all sums of the table worthless: they are 0, and equal no other tier.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pipeline.hadoop.commit.manifest import DataFile, WindowKey, set_aside
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.upkeep.verification import DoubledRecords
from pipeline.records.content_sums import ContentSums
from pipeline.records.tally import HOUR_MS, NOTHING, Counts, window_start


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCounts:
    """Counts, sums and records in quarantine by partition and window, of the hours that the table still holds."""

    counts: Mapping[WindowKey, Counts]
    sums: Mapping[WindowKey, ContentSums]
    aside: Mapping[WindowKey, int]


def stored_counts(
    state: TableState, damaged: Iterable[str], *, doubled: Iterable[DoubledRecords] = (), is_whole: bool = True
) -> StoredCounts:
    """Return the counts of a table whose files of these paths are damaged, and that holds some records twice.

    `is_whole`: False if something differs that belongs to no file (invariant D).
    """
    bad = [state.files[path] for path in damaged if path in state.files]
    counts = dict(state.counts)
    touched: set[WindowKey] = set()
    for file in bad:
        if file.hour_ms is not None:
            touched |= _take(counts, file)
    counts, twice = with_doubled(counts, doubled)
    touched |= twice
    held = {(file.partition, file.hour_ms) for file in state.data_files()}
    aside = set_aside(file for file in state.data_files(quarantined=True) if file not in bad)
    kept = {
        key: value
        for key, value in counts.items()
        if key not in state.counts or not state.counts[key].records or (key[0], window_start(key[1], HOUR_MS)) in held
    }
    kept = kept if is_whole else without_sums(kept)
    sums = {key: value for key, value in state.sums.items() if is_whole and key in kept and key not in touched}
    return StoredCounts(counts=kept, sums=sums, aside=aside)


def with_doubled(
    counts: Mapping[WindowKey, Counts], doubled: Iterable[DoubledRecords]
) -> tuple[dict[WindowKey, Counts], set[WindowKey]]:
    """Return counts with what is doubled, and the windows that have more (invariant C)."""
    result, touched = dict(counts), set()
    for each in doubled:
        until_ms = each.hour_ms + HOUR_MS
        starts = [start for partition, start in result if partition == each.partition and start < until_ms]
        key = (each.partition, max(starts, default=each.hour_ms))
        known = result.get(key, NOTHING)
        result[key] = replace(known, records=known.records + each.records)
        touched.add(key)
    return result, touched


def without_sums(counts: Mapping[WindowKey, Counts]) -> dict[WindowKey, Counts]:
    """Return the counts with sums that are worthless (invariant D)."""
    return {key: replace(value, crc_sum=0, codecs=None) for key, value in counts.items()}


def _take(counts: dict[WindowKey, Counts], file: DataFile) -> set[WindowKey]:
    """Take the records of a damaged file away (invariant A). Return the windows that lost some."""
    assert file.hour_ms is not None
    last_ms = file.hour_ms + HOUR_MS
    windows = sorted((key for key in counts if key[0] == file.partition and key[1] < last_ms), key=lambda key: -key[1])
    left, touched = file.records, set()
    for key in windows:
        if not left:
            break
        before = counts[key]
        taken = min(left, before.records)
        if taken:
            left -= taken
            touched.add(key)
            counts[key] = NOTHING if taken == before.records else replace(before, records=before.records - taken)
    return touched
