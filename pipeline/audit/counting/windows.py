"""Sums over batches by partition, window and hour, in bounded memory. Pure.

Invariants:

A. Rows are those of `events/report.py`: for each partition the newest hours and the newest windows that have batches,
   and one row for all earlier hours. Which row a batch is in depends on the set of batches alone (its invariant C):
   an hour is folded into the row OLDER only once `max_hours` later ones are there, and these never go away.
B. The row of an hour holds all windows of the hour. Windows that are forgotten are still in the rows of their hours.
C. Sums are kept as int64 that wrap, which are the same bits as sums modulo 2**64.

Partitions are numbers that the caller gave them; rows bear these numbers in the column `partition`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.events.report import OLDER, ROW, Rows
from pipeline.records.batch import CONTROL, LOG_OVERHEAD
from pipeline.records.batch_hashes import HeaderTable, content_hashes, header_hashes, place_hashes
from pipeline.records.compression import Codec
from pipeline.records.producer_marks import MARK
from pipeline.records.tally import HOUR_MS, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, window_start

HOURS_KEPT: Final = 24 * 8
WINDOWS_KEPT: Final = 16
UNKNOWN_OFFSET: Final = -1
NOWHERE: Final = -1
"""Number that no partition has."""

SUMMED_COLUMNS: Final = (
    "records",
    "bytes",
    "batches",
    "crc_sum",
    "content_sum",
    "place_sum",
    "header_sum",
    "none",
    "gzip",
    "snappy",
    "lz4",
    "zstd",
    "stamped",
    "marked_records",
    "marked_sum",
    "uncertain_records",
    "quarantined",
)
"""Columns of ROW that are added up."""
_COLUMN: Final = {name: number for number, name in enumerate(SUMMED_COLUMNS)}
_LOG_APPEND_TIME: Final = 0x08
_CODEC_MASK: Final = 0x07
_NO_FIRST: Final = np.iinfo(np.int64).max
_INITIAL_SLOTS: Final = 64

_Numbers = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class _Columns:
    """Slots of rows; the columns `sums` are SUMMED_COLUMNS. `first` is _NO_FIRST while no offset is known."""

    partition: _Numbers
    start: _Numbers
    span: _Numbers
    sums: _Numbers
    first: _Numbers
    last: _Numbers
    has_sums: NDArray[np.bool_]

    @classmethod
    def empty(cls, size: int) -> "_Columns":
        """Return slots of rows without batches."""
        return cls(
            partition=np.zeros(size, np.int64),
            start=np.zeros(size, np.int64),
            span=np.zeros(size, np.int64),
            sums=np.zeros((size, len(SUMMED_COLUMNS)), np.int64),
            first=np.full(size, _NO_FIRST, np.int64),
            last=np.full(size, UNKNOWN_OFFSET, np.int64),
            has_sums=np.ones(size, np.bool_),
        )

    def taken(self, slots: NDArray[np.intp]) -> "_Columns":
        """Return copies of slots."""
        return _Columns(
            partition=self.partition[slots],
            start=self.start[slots],
            span=self.span[slots],
            sums=self.sums[slots],
            first=self.first[slots],
            last=self.last[slots],
            has_sums=self.has_sums[slots],
        )

    def put(self, other: "_Columns", size: int) -> None:
        """Copy the first `size` slots of `other` to the first slots of these."""
        for name in ("partition", "start", "span", "sums", "first", "last", "has_sums"):
            getattr(self, name)[:size] = getattr(other, name)[:size]


class _Groups(NamedTuple):
    """Sums of batches with the same partition and start, sorted by both."""

    partition: _Numbers
    start: _Numbers
    sums: _Numbers
    first: _Numbers
    last: _Numbers
    has_sums: NDArray[np.bool_]

    def at(self, places: "NDArray[np.intp] | NDArray[np.bool_]") -> "_Groups":
        """Return the groups at these places."""
        return _Groups(
            self.partition[places],
            self.start[places],
            self.sums[places],
            self.first[places],
            self.last[places],
            self.has_sums[places],
        )

    def starting(self, start: _Numbers) -> "_Groups":
        """Return the groups merged by partition and these new starts, which are as sorted as the old ones."""
        return _merged(self._replace(start=start))


@dataclass(slots=True)
class _Slots:
    """Slots of one partition's rows, by start."""

    hours: dict[int, int] = field(default_factory=dict)
    windows: dict[int, int] = field(default_factory=dict)
    older: int | None = None


class WindowSums:
    """Rows of many partitions, and a note of the rows that changed since they were last taken."""

    def __init__(self, window_ms: int, *, max_hours: int = HOURS_KEPT, max_windows: int = WINDOWS_KEPT) -> None:
        """Windows of one hour length are the rows of hours; there are no others then."""
        self.window_ms = window_ms
        self._max_hours = max_hours
        self._max_windows = max_windows
        self._partitions: dict[int, _Slots] = {}
        self._columns = _Columns.empty(_INITIAL_SLOTS)
        self._free = list(range(_INITIAL_SLOTS))
        self._changed: set[int] = set()
        """Slots whose row changed."""

    def add(self, table: HeaderTable, partitions: "_Numbers | int" = 0) -> None:
        """Count batches, but no control batches: `partitions` is the number of each one's partition, or of all."""
        numbers = np.broadcast_to(np.asarray(partitions, np.int64), len(table))
        is_data = table["attributes"] & CONTROL == 0
        if not is_data.all():
            table, numbers = table[is_data], numbers[is_data]
        if len(table):
            self._add(_group_batches(table, numbers, self.window_ms))

    def add_rows(self, rows: Rows, partitions: "_Numbers | int | None" = None) -> None:
        """Add rows of whole counters, such as of a checkpoint. `partitions` are those of the rows unless given.

        Rows of windows are only counted as windows, since the rows of hours hold them as well.
        """
        numbers = rows["partition"] if partitions is None else partitions
        numbers = np.broadcast_to(np.asarray(numbers, np.int64), len(rows))
        groups = _Groups(
            numbers,
            rows["start_ms"],
            np.stack([rows[name].astype(np.int64) for name in SUMMED_COLUMNS], axis=1),
            np.where(rows["first_offset"] < 0, _NO_FIRST, rows["first_offset"]),
            rows["last_offset"],
            rows["has_sums"],
        )
        is_hour = (rows["span_ms"] == HOUR_MS) | (rows["start_ms"] == OLDER)
        for kept, put in (
            (is_hour, self._add_hours),
            (~is_hour & (rows["span_ms"] == self.window_ms), self._add_windows),
        ):
            if kept.any():
                put(_grouped(groups.at(kept)))

    def discard(self, partition: int) -> None:
        """Forget all rows of a partition."""
        slots = self._partitions.pop(partition, None)
        if slots is not None:
            older = () if slots.older is None else (slots.older,)
            self._release([*slots.hours.values(), *slots.windows.values(), *older])

    def rows(self, partitions: Iterable[int] | None = None) -> Rows:
        """Return the rows of these partitions, or of all. They are copies."""
        numbers = self._partitions if partitions is None else partitions
        found: list[int] = []
        for number in numbers:
            slots = self._partitions.get(number)
            if slots is not None:
                found += slots.hours.values()
                found += slots.windows.values()
                found += () if slots.older is None else (slots.older,)
        return self._as_rows(found)

    def changed_partitions(self) -> dict[int, int]:
        """Return the number of changed rows of each partition that has some."""
        slots = np.fromiter(self._changed, np.intp, len(self._changed))
        numbers, counts = np.unique(self._columns.partition[slots], return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))

    @property
    def has_changed(self) -> bool:
        """True if a row changed since rows were last taken."""
        return bool(self._changed)

    def take_changed(self, partitions: Iterable[int] | None = None) -> Rows:
        """Return the changed rows of these partitions, or of all. They count as unchanged from now on."""
        slots = self._changed
        if partitions is not None:
            numbers = np.fromiter(partitions, np.int64)
            listed = np.fromiter(slots, np.intp, len(slots))
            slots = set(listed[np.isin(self._columns.partition[listed], numbers)].tolist())
        rows = self._as_rows(sorted(slots))
        self._changed = self._changed - slots
        return rows

    def mark_changed(self, rows: Rows) -> None:
        """Note that these rows, if they are still there, are to be taken again."""
        for number, start, span in zip(
            rows["partition"].tolist(), rows["start_ms"].tolist(), rows["span_ms"].tolist(), strict=True
        ):
            slots = self._partitions.get(number)
            if slots is None:
                continue
            slot = (slots.hours if span == HOUR_MS else slots.windows).get(start)
            if slot is None and span == HOUR_MS:
                slot = slots.older  # the row OLDER itself, or its hour was folded meanwhile
            if slot is not None:
                self._changed.add(slot)

    def mark_all(self) -> None:
        """Note that all rows are to be taken again."""
        for partition in self._partitions:
            self.mark_partition(partition)

    def mark_partition(self, partition: int) -> None:
        """Note that all rows of a partition are to be taken again."""
        slots = self._partitions.get(partition)
        if slots is not None:
            self._changed.update(slots.hours.values())
            self._changed.update(slots.windows.values())
            self._changed.update(() if slots.older is None else (slots.older,))

    def _add(self, groups: _Groups) -> None:
        """Add groups of windows."""
        if self.window_ms != HOUR_MS:
            self._add_windows(groups)
            groups = groups.starting(groups.start - groups.start % HOUR_MS)
        self._add_hours(groups)

    def _add_windows(self, groups: _Groups) -> None:
        """Add windows; forget all but the newest."""
        kept = _ranks_from_end(groups.partition) < self._max_windows
        slots = []
        for index, (number, start) in enumerate(zip(groups.partition.tolist(), groups.start.tolist(), strict=True)):
            if not kept[index]:
                continue
            windows = self._of(number).windows
            slot = windows.get(start)
            if slot is None:
                if len(windows) >= self._max_windows and start < min(windows):
                    kept[index] = False
                    continue
                slot = windows[start] = self._new_slot(number, start, self.window_ms)
            slots.append(slot)
        self._sum(slots, groups if kept.all() else groups.at(kept))
        for number in set(groups.partition.tolist()):
            windows = self._of(number).windows
            if len(windows) > self._max_windows:
                gone = sorted(windows)[: -self._max_windows]
                self._release([windows.pop(start) for start in gone])

    def _add_hours(self, groups: _Groups) -> None:
        """Add hours; fold all but the newest into the row OLDER (invariant A)."""
        is_late = _ranks_from_end(groups.partition) >= self._max_hours
        if is_late.any():
            groups = groups.starting(np.where(is_late, OLDER, groups.start))
        starts = groups.start.copy()
        for index, (number, start) in enumerate(zip(groups.partition.tolist(), groups.start.tolist(), strict=True)):
            hours = self._of(number).hours
            if start not in hours and len(hours) >= self._max_hours and start < min(hours):
                starts[index] = OLDER
        groups = groups.starting(starts)
        slots = []
        for number, start in zip(groups.partition.tolist(), groups.start.tolist(), strict=True):
            slots.append(self._hour_slot(number, start))
        self._sum(slots, groups)
        for number in set(groups.partition.tolist()):
            self._fold(number)

    def _hour_slot(self, number: int, start: int) -> int:
        rows = self._of(number)
        if start == OLDER:
            if rows.older is None:
                rows.older = self._new_slot(number, OLDER, HOUR_MS)
            return rows.older
        slot = rows.hours.get(start)
        if slot is None:
            slot = rows.hours[start] = self._new_slot(number, start, HOUR_MS)
        return slot

    def _fold(self, number: int) -> None:
        """Add the hours of a partition beyond the newest to its row OLDER."""
        hours = self._of(number).hours
        if len(hours) <= self._max_hours:
            return
        gone = [hours.pop(start) for start in sorted(hours)[: -self._max_hours]]
        old = self._columns.taken(np.array(gone, np.intp))
        groups = _Groups(
            old.partition, np.full(len(gone), OLDER, np.int64), old.sums, old.first, old.last, old.has_sums
        )
        self._release(gone)
        self._sum([self._hour_slot(number, OLDER)], _merged(groups))

    def _sum(self, slots: list[int], groups: _Groups) -> None:
        """Add each group to its slot. No slot comes twice."""
        if not slots:
            return
        at, columns = np.array(slots, np.intp), self._columns
        columns.sums[at] += groups.sums
        columns.first[at] = np.minimum(columns.first[at], groups.first)
        columns.last[at] = np.maximum(columns.last[at], groups.last)
        columns.has_sums[at] &= groups.has_sums
        self._changed.update(slots)

    def _of(self, number: int) -> _Slots:
        found = self._partitions.get(number)
        if found is None:
            found = self._partitions[number] = _Slots()
        return found

    def _new_slot(self, number: int, start: int, span: int) -> int:
        if not self._free:
            size = len(self._columns.start)
            grown = _Columns.empty(2 * size)
            grown.put(self._columns, size)
            self._columns = grown
            self._free = list(range(size, 2 * size))
        slot = self._free.pop()
        columns = self._columns
        columns.partition[slot], columns.start[slot], columns.span[slot] = number, start, span
        return slot

    def _release(self, slots: list[int]) -> None:
        at, columns = np.array(slots, np.intp), self._columns
        columns.sums[at] = 0
        columns.first[at] = _NO_FIRST
        columns.last[at] = UNKNOWN_OFFSET
        columns.has_sums[at] = True
        self._free += slots
        self._changed.difference_update(slots)

    def _as_rows(self, slots: list[int]) -> Rows:
        found = self._columns.taken(np.array(slots, np.intp))
        rows = np.zeros(len(slots), ROW)
        rows["partition"], rows["start_ms"], rows["span_ms"] = found.partition, found.start, found.span
        for number, name in enumerate(SUMMED_COLUMNS):
            rows[name] = found.sums[:, number].astype(ROW[name], copy=False)
        rows["first_offset"] = np.where(found.first == _NO_FIRST, UNKNOWN_OFFSET, found.first)
        rows["last_offset"] = found.last
        rows["has_sums"] = found.has_sums
        for place in np.flatnonzero(found.start == OLDER).tolist():
            rows["until_ms"][place] = min(self._partitions[int(found.partition[place])].hours)
        return rows


def window_starts(timestamps_ms: _Numbers, window_ms: int) -> _Numbers:
    """Return the start of the window of each time: `records.tally.window_start`, for many."""
    if not len(timestamps_ms):
        return timestamps_ms
    first = window_start(int(timestamps_ms.min()), window_ms)
    if window_start(int(timestamps_ms.max()), window_ms) == first:
        return np.full(len(timestamps_ms), first)
    times_ms = np.clip(timestamps_ms, MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS)
    return times_ms - times_ms % window_ms


def _group_batches(table: HeaderTable, numbers: _Numbers, window_ms: int) -> _Groups:
    """Sum over the batches of each partition and window."""
    starts = window_starts(table["base_timestamp"], window_ms)
    if not _is_sorted(numbers, starts):
        order = np.lexsort((starts, numbers))
        table, numbers, starts = table[order], numbers[order], starts[order]
    at = _begins(numbers, starts)
    sums = np.zeros((len(at), len(SUMMED_COLUMNS)), np.int64)
    for name, column in _columns_of(table):
        sums[:, _COLUMN[name]] = np.add.reduceat(column, at)
    sums[:, _COLUMN["batches"]] = np.diff(at, append=len(table))
    base_offset = table["base_offset"]
    has_offset = base_offset >= 0  # brokers do not give producers the offset with acks=0, or if they had the batch
    first = np.where(has_offset, base_offset, _NO_FIRST)
    last = np.where(has_offset, base_offset + table["last_offset_delta"], UNKNOWN_OFFSET)
    return _Groups(
        numbers[at],
        starts[at],
        sums,
        np.minimum.reduceat(first, at),
        np.maximum.reduceat(last, at),
        np.ones(len(at), np.bool_),
    )


def _columns_of(table: HeaderTable) -> Iterator[tuple[str, _Numbers]]:
    """Yield what each batch adds to a column, for the columns to which a batch adds anything."""
    contents, records = content_hashes(table), table["record_count"]
    yield "records", records
    yield "bytes", table["batch_length"] + LOG_OVERHEAD
    yield "crc_sum", table["crc"]
    yield "content_sum", contents.view(np.int64)
    yield "place_sum", place_hashes(table, contents).view(np.int64)
    yield "header_sum", header_hashes(table).view(np.int64)
    attributes = table["attributes"]
    for codec in Codec:
        has_codec = attributes & _CODEC_MASK == codec
        if has_codec.any():
            yield codec.name.lower(), has_codec.astype(np.int64)
    is_stamped = attributes & _LOG_APPEND_TIME != 0
    if is_stamped.any():
        yield "stamped", is_stamped.astype(np.int64)
    producer_id = table["producer_id"]
    is_marked = (producer_id >= 0) & (producer_id & MARK != 0)
    if is_marked.any():
        yield "marked_records", np.where(is_marked, records, 0)
        yield "marked_sum", np.where(is_marked, contents.view(np.int64), 0)


def _is_sorted(partition: _Numbers, start: _Numbers) -> bool:
    rises = partition[1:] > partition[:-1]
    return bool((rises | ((partition[1:] == partition[:-1]) & (start[1:] >= start[:-1]))).all())


def _begins(partition: _Numbers, start: _Numbers) -> NDArray[np.intp]:
    """Return the places where another partition or start begins."""
    is_new = np.ones(len(start), np.bool_)
    is_new[1:] = (partition[1:] != partition[:-1]) | (start[1:] != start[:-1])
    return np.flatnonzero(is_new)


def _grouped(groups: _Groups) -> _Groups:
    """Sort by partition and start, and merge equal ones."""
    if not _is_sorted(groups.partition, groups.start):
        groups = groups.at(np.lexsort((groups.start, groups.partition)))
    return _merged(groups)


def _merged(groups: _Groups) -> _Groups:
    """Merge neighbours of equal partition and start."""
    at = _begins(groups.partition, groups.start)
    if len(at) == len(groups.partition):
        return groups
    return _Groups(
        groups.partition[at],
        groups.start[at],
        np.add.reduceat(groups.sums, at, axis=0),
        np.minimum.reduceat(groups.first, at),
        np.maximum.reduceat(groups.last, at),
        np.logical_and.reduceat(groups.has_sums, at),
    )


def _ranks_from_end(partition: _Numbers) -> _Numbers:
    """Return how many later groups of the same partition follow each group."""
    ends = np.searchsorted(partition, partition, side="right")
    return ends - 1 - np.arange(len(partition))
