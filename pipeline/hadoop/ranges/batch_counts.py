"""Counts batches from the rows that were loaded, and proves that no row is missing. Pure but for numpy.

A batch counts once as many of its rows were loaded as its header says. If two tasks met inside a batch, each has a
fragment of it; fragments are joined before they count. A batch with rows in the quarantine is a fragment, too: of its
records those count that are in data files, and of its bytes nothing if all are in the quarantine.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.errors import PipelineError
from pipeline.hadoop.commit.manifest import (
    AbortedRecords,
    AsideBatch,
    DataFile,
    OffsetRange,
    PartitionEnd,
    WindowKey,
    add_counts,
)
from pipeline.hadoop.ranges.aborted_records import joined_aborted
from pipeline.records.batch_hashes import placed_hash
from pipeline.records.content_sums import ContentSums, add_content_sums
from pipeline.records.tally import CRC_SUM_MODULUS, NOTHING, Counts, window_start


class CoverageError(PipelineError):
    """Some rows of a range did not reach the files. Nothing was committed; `reason` names partition and offset."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: {reason}; nothing was committed")
        self.topic = topic
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFragment:
    """Numbers of rows of a batch that one task has seen and set aside, beside the fields of the batch's header."""

    partition: int
    base_offset: int
    timestamp_ms: int
    crc: int
    bytes: int
    records: int
    seen: int
    aside: int = 0
    content: int | None = None
    """Content hash with the bits of an int64; None if it is not known."""

    def count(self, counts: dict[WindowKey, Counts], sums: dict[WindowKey, ContentSums], window_ms: int) -> None:
        """Add the whole batch, without the rows that were set aside, to `counts` and `sums`."""
        batch = self.as_aside(window_ms)
        if batch.aside < batch.records:
            key = (self.partition, batch.window_start_ms)
            counts[key] = counts.get(key, NOTHING) + batch.counts_without(batch.aside)
            if self.content is not None:
                content = self.content % CRC_SUM_MODULUS
                place = placed_hash(content, self.base_offset)
                found = ContentSums(1, content, place, self.base_offset, self.base_offset + self.records - 1)
                sums[key] = sums[key].plus(found) if key in sums else found

    def is_of_batch(self, other: "BatchFragment") -> bool:
        """True if both are of one batch."""
        return (self.partition, self.base_offset) == (other.partition, other.base_offset)

    def joined(self, other: "BatchFragment") -> "BatchFragment":
        """Return what both have of their batch."""
        return replace(self, seen=self.seen + other.seen, aside=self.aside + other.aside)

    def as_aside(self, window_ms: int) -> AsideBatch:
        """Return the entry of a quarantine file that holds the rows that were set aside."""
        return AsideBatch(
            base_offset=self.base_offset,
            window_start_ms=window_start(self.timestamp_ms, window_ms),
            records=self.records,
            bytes=self.bytes,
            crc=self.crc,
            aside=self.aside,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Result of one task, which Spark brings to the driver."""

    files: tuple[DataFile, ...]
    counts: Mapping[WindowKey, Counts]
    fragments: tuple[BatchFragment, ...]
    ends: tuple[tuple[int, int, int], ...]
    """Ends of the ranges that were read: partition, end, number of rows that the source sent."""
    rows: int
    attempt_number: int
    bad_record: tuple[int, int, str] | None
    """Partition, offset and reason of the record that the load fails for."""
    last_batches: tuple[PartitionEnd, ...] = ()
    """Last batch of each range that was read."""
    aside_reasons: Mapping[str, int] = field(default_factory=dict)
    """Number of records that were set aside, by reason."""
    sums: Mapping[WindowKey, ContentSums] = field(default_factory=dict)
    """Sums over the contents of the batches of `counts`."""
    aborted: tuple[AbortedRecords, ...] = ()
    """Records of aborted transactions in the ranges that were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Files, counts by partition and window, and last batches by partition of a load that lacks nothing."""

    files: tuple[DataFile, ...]
    counts: Mapping[WindowKey, Counts]
    last_batches: Mapping[int, PartitionEnd]
    sums: Mapping[WindowKey, ContentSums] = field(default_factory=dict)
    aborted: tuple[AbortedRecords, ...] = ()


class BatchTally:
    """Counts the batches of one task from its rows, which come in the order of their offsets.

    `is_aside` tells for each row whether it is in the quarantine.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._counts: dict[WindowKey, Counts] = {}
        self.sums: dict[WindowKey, ContentSums] = {}
        """Sums over the contents of the counted batches."""
        self._fragments: list[BatchFragment] = []
        self._open: BatchFragment | None = None

    def add(self, rows: pa.RecordBatch, is_aside: NDArray[np.bool_]) -> None:
        """Count rows that have the source's batch columns."""
        for fragment in fragments_of(rows, is_aside):
            current = self._open
            if current is None or not current.is_of_batch(fragment):
                self._close()
                self._open = fragment
            else:
                self._open = current.joined(fragment)

    def add_batch(self, batch: BatchFragment) -> None:
        """Add a batch that could not be opened, all of which is in the quarantine."""
        self._fragments.append(batch)

    def finish(self) -> tuple[dict[WindowKey, Counts], tuple[BatchFragment, ...]]:
        """Return the counts of whole batches, and the fragments of others."""
        self._close()
        return self._counts, tuple(self._fragments)

    def _close(self) -> None:
        batch, self._open = self._open, None
        if batch is None:
            return
        if batch.seen != batch.records or batch.aside:
            self._fragments.append(batch)
        else:
            batch.count(self._counts, self.sums, self._window_ms)


def fragments_of(rows: pa.RecordBatch, is_aside: NDArray[np.bool_]) -> list[BatchFragment]:
    """Return the batches of rows that have the source's batch columns, which lie side by side."""
    if not rows.num_rows:
        return []
    names = ("partition", "batch_base_offset", "batch_timestamp", "batch_crc", "batch_bytes", "batch_records")
    columns = [rows.column(name).to_numpy() for name in names]
    contents = rows.column("batch_content") if "batch_content" in rows.schema.names else None
    changes = np.flatnonzero((np.diff(columns[0]) != 0) | (np.diff(columns[1]) != 0)) + 1
    starts = np.concatenate(([0], changes))
    sizes = np.diff(np.concatenate((starts, [rows.num_rows])))
    asides = np.add.reduceat(is_aside, starts, dtype=np.int64)
    hashes = [None] * len(starts) if contents is None else contents.take(pa.array(starts)).to_pylist()
    fields = (column[starts].tolist() for column in columns)
    values = zip(*fields, sizes.tolist(), asides.tolist(), hashes, strict=True)
    return [
        BatchFragment(
            partition=partition,
            base_offset=base_offset,
            timestamp_ms=timestamp_ms,
            crc=crc,
            bytes=size,
            records=records,
            seen=seen,
            aside=aside,
            content=content,
        )
        for partition, base_offset, timestamp_ms, crc, size, records, seen, aside, content in values
    ]


def check_coverage(topic: str, tasks: Sequence[OffsetRange], results: Sequence[TaskResult], window_ms: int) -> Coverage:
    """Return files and counts of a load. Raises CoverageError unless all rows of all `tasks` are in files.

    Compares the ends of ranges that writers saw with the plan; the rows that readers sent with those that writers saw
    and those in files; and the rows of each batch with its header.
    """
    seen_ends = sorted((partition, end) for result in results for partition, end, _ in result.ends)
    planned_ends = sorted((task.partition, task.end) for task in tasks)
    if seen_ends != planned_ends:
        missing = sorted(set(planned_ends) - set(seen_ends)) or seen_ends
        raise CoverageError(topic, f"the ranges that end at (partition, offset) {missing} were not read as planned")
    sent = sum(rows for result in results for _, _, rows in result.ends)
    seen = sum(result.rows for result in results)
    filed = sum(file.records for result in results for file in result.files)
    if not sent == seen == filed:
        raise CoverageError(topic, f"{sent} rows were read, {seen} reached the writers, {filed} are in files")
    starts: dict[int, int] = {}
    for task in tasks:
        starts[task.partition] = min(task.start, starts.get(task.partition, task.start))
    counts = add_counts(result.counts for result in results)
    sums = add_content_sums(result.sums for result in results)
    uncounted = set()
    for batch in _join(fragment for result in results for fragment in result.fragments):
        if batch.seen == batch.records:
            batch.count(counts, sums, window_ms)
        # Only a batch that begins before the load's first offset may lack rows; it is not counted (manifest.py, D).
        elif batch.seen > batch.records or batch.base_offset >= starts[batch.partition]:
            place = f"the batch at offset {batch.base_offset} of partition {batch.partition}"
            raise CoverageError(topic, f"{batch.seen} of the {batch.records} records of {place} were loaded")
        else:
            uncounted.add((batch.partition, batch.base_offset))
    files = (_without(file, uncounted) for result in results for file in result.files)
    last = sorted((batch for result in results for batch in result.last_batches), key=lambda batch: batch.base_offset)
    return Coverage(
        files=tuple(sorted(files)),
        counts=counts,
        last_batches={batch.partition: batch for batch in last},
        sums=sums,
        aborted=joined_aborted(each for result in results for each in result.aborted),
    )


def _without(file: DataFile, uncounted: Container[tuple[int, int]]) -> DataFile:
    """Return a file whose list of batches has none that counts nowhere."""
    listed = (batch for batch in file.batches if (file.partition, batch.base_offset) not in uncounted)
    return replace(file, batches=tuple(listed))


def _join(fragments: Iterable[BatchFragment]) -> list[BatchFragment]:
    batches: dict[tuple[int, int], BatchFragment] = {}
    for fragment in fragments:
        key = (fragment.partition, fragment.base_offset)
        known = batches.get(key)
        batches[key] = fragment if known is None else known.joined(fragment)
    return list(batches.values())
