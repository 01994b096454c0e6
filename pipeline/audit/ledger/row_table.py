"""Tables of rows, sorted by key, in which of two rows of a key the better one is kept. Pure.

Which row is better is a total order over the rows' columns. So the order and number of events do not matter.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.events.report import ROW, Rows
from pipeline.audit.ledger.keys import LIFE_BITS, PARTITION_BITS, Int64s, cells_of, each_once, topics_of_cells
from pipeline.audit.ledger.shelving import Shelf, ShelvedRows, TopicIndex, shelved, totals_of_rows

Mask = NDArray[np.bool_]

_NARROW: Final = {
    name: np.dtype(np.uint32)
    for name in ("batches", "none", "gzip", "snappy", "lz4", "zstd", "stamped", "uncertain_records", "quarantined")
}
"""Columns of small amounts: larger ones are kept as the largest number."""
_COUNTED: Final = [
    (name, _NARROW.get(name, ROW[name]))
    for name in ROW.names or ()
    if name not in ("topic", "partition", "start_ms", "span_ms")
]
HOUR_ROW: Final = np.dtype([*_COUNTED, ("created_ms", np.int64), ("process", np.int32), ("is_torn", np.bool_)])
"""Row of an hour: columns of ROW, the time of the report, and the number of the process that reported.

`is_torn`: two counters know different ends of the hour's offsets, and none knows all of them.
"""

WINDOW_ROW: Final = np.dtype(
    [
        ("revision", np.int64),
        ("leader_epoch", np.int32),
        ("records", np.int64),
        ("sum", np.uint64),
        ("has_sums", np.bool_),
        ("marked_records", np.int64),
        ("marked_sum", np.uint64),
    ]
)
"""Row of a window: what a watermark needs. `sum` is content_sum, or crc_sum of rows without sums."""

BY_RECORDS: Final = ("records", "has_sums", "revision", "created_ms")
"""Brokers: a replica that never had the beginning of the log knows less of old hours, so most records hold. Programs of
version 2 report no sums: of as many records, the row with sums holds."""
BY_REVISION: Final = ("revision", "created_ms", "records")

GROWTH: Final = 4
"""A table that is full grows by this part of its size."""
ABSENT: Final = -1
"""Revision of a row that does not count (invariant D of events/report.py)."""


class RowTable:
    """Rows of one dtype by key. Rows stand in the order in which they came; keys are sorted beside their places.

    Rows may be on a shelf. `at` and `of_topics` then read what they need; everything else brings all rows back.
    """

    __slots__ = ("_keys", "_order", "_places", "_rows", "_shelved", "put_number")

    def __init__(self, dtype: np.dtype[np.void], order: Sequence[str], room: int = 0) -> None:
        """Make an empty table. `room`: rows that are expected. Memory is taken only as they come, and nothing grows."""
        names = dtype.names or ()
        first = tuple(name for name in order if name in names)
        self._keys: Int64s = np.zeros(0, np.int64)
        self._places: NDArray[np.int32] = np.zeros(0, np.int32)
        self._rows: Rows = np.zeros(room, dtype)
        self._order = first + tuple(name for name in names if name not in first)
        self._shelved: ShelvedRows | None = None
        self.put_number = 0
        """Number of the report whose rows were put last, for a ledger that looks for old tables."""

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Return what a copy has: all but the room for more rows, which takes memory once it was written and read."""
        state = {name: getattr(self, name) for name in self.__slots__}
        return None, {**state, "_rows": self._rows[: len(self._keys)]}

    def __len__(self) -> int:
        return len(self._keys) if self._shelved is None else self._shelved.size

    @property
    def dtype(self) -> np.dtype[np.void]:
        """Type of the rows."""
        return self._rows.dtype

    @property
    def is_shelved(self) -> bool:
        """True if the rows are on a shelf."""
        return self._shelved is not None

    @property
    def keys(self) -> Int64s:
        """All keys, sorted."""
        self._bring_back()
        return self._keys

    @property
    def rows(self) -> Rows:
        """A copy of all rows, sorted by key."""
        self._bring_back()
        return self._rows[self._places]

    def totals(self) -> tuple[int, int, int, int]:
        """Return the records, bytes and batches of all rows of hours, and the time of the newest report."""
        if self._shelved is not None:
            return self._shelved.totals
        return totals_of_rows(self._rows[: len(self._keys)])

    def shelve(self, shelf: Shelf, known: TopicIndex | None) -> TopicIndex | None:
        """Put all rows on a shelf. Return their index, which may be the known one; None if they stay in memory."""
        if self._shelved is None:
            self._shelved = shelved(shelf, self._keys, self._rows, self._places, known)
            if self._shelved is None:
                return None
            self._keys, self._places = np.zeros(0, np.int64), np.zeros(0, np.int32)
            self._rows = np.zeros(0, self.dtype)
        return self._shelved.index

    def discard(self) -> None:
        """Give the place on the shelf back. The table must not be used afterwards."""
        if self._shelved is not None:
            self._shelved.drop()

    def _bring_back(self) -> None:
        if self._shelved is not None:
            every = [(0, self._shelved.size)]
            keys, rows = self._shelved.keys(every), self._shelved.rows(every)
            self._keys, self._rows = keys, rows
            self._places = np.arange(len(keys), dtype=np.int32)
            self._shelved.drop()
            self._shelved = None

    def of_topics(self, topics: Int64s) -> "RowTable":
        """Return a table that has the rows of these topics (sorted, each once), to be read: this one, if in memory."""
        if self._shelved is None:
            return self
        runs = self._shelved.index.runs(topics)
        table = RowTable(self.dtype, self._order)
        table._keys, table._rows = self._shelved.keys(runs), self._shelved.rows(runs)
        table._places = np.arange(len(table._keys), dtype=np.int32)
        return table

    def of_cells(self, cells: Int64s) -> "RowTable":
        """Return a table that has the rows of these cells, to be read: this one, if in memory."""
        return self if self._shelved is None else self.of_topics(each_once(topics_of_cells(cells)))

    def keys_of(self, topics: Int64s | None) -> Int64s:
        """Return the keys of these topics (sorted, each once), or all keys, sorted."""
        if self._shelved is not None:
            runs = [(0, self._shelved.size)] if topics is None else self._shelved.index.runs(topics)
            return self._shelved.keys(runs)
        if topics is None or not len(self._keys):
            return self._keys
        bits = PARTITION_BITS + LIFE_BITS
        low, high = np.searchsorted(self._keys, topics << bits), np.searchsorted(self._keys, (topics + 1) << bits)
        parts = [self._keys[start:end] for start, end in zip(low.tolist(), high.tolist(), strict=True) if end > start]
        return np.concatenate(parts) if parts else self._keys[:0]

    def topics(self) -> list[int]:
        """Return the topics that have rows."""
        shelved = self._shelved
        topics = each_once(topics_of_cells(cells_of(self._keys))) if shelved is None else shelved.index.topics
        return list(map(int, topics))

    def rows_at(self, indexes: Int64s) -> Rows:
        """Return the rows of the keys at these indexes of `keys`."""
        self._bring_back()
        return self._rows[self._places[indexes]]

    def find(self, keys: Int64s) -> tuple[Int64s, Mask]:
        """Return indexes of keys, and which keys are there. Indexes of others are valid ones, unless there are none."""
        self._bring_back()
        indexes = np.searchsorted(self._keys, keys)
        if not len(self._keys):
            return indexes, np.zeros(len(keys), np.bool_)
        indexes = np.minimum(indexes, len(self._keys) - 1)
        return indexes, self._keys[indexes] == keys

    def at(self, keys: Int64s) -> Rows:
        """Return the rows of keys; rows of zeros, with revision ABSENT, for keys that are not there."""
        if self._shelved is not None:
            return self.of_cells(cells_of(keys)).at(keys)
        indexes, found = self.find(keys)
        if found.all() and len(keys):
            return self.rows_at(indexes)
        rows = absent_rows(len(keys), self.dtype)
        rows[found] = self.rows_at(indexes[found])
        return rows

    def put(self, keys: Int64s, rows: Rows, *, is_final: bool = False) -> Int64s:
        """Keep the better rows of these and those there are; return the keys that changed.

        `is_final`: these rows replace others of the same process, also better ones.
        """
        if len(keys) > 1 and not (keys[1:] > keys[:-1]).all():
            order = np.argsort(keys, kind="stable")
            keys, rows = keys[order], rows[order]
            repeated = np.concatenate([[False], keys[1:] == keys[:-1]])
            if repeated.any():
                first = self.put(keys[~repeated], rows[~repeated], is_final=is_final)
                return np.union1d(first, self.put(keys[repeated], rows[repeated], is_final=is_final))
        indexes, found = self.find(keys)
        if found.all() and len(keys):
            return keys[self._improve(indexes, rows, is_final=is_final)]
        changed = keys[~found]
        if found.any():
            better = self._improve(indexes[found], rows[found], is_final=is_final)
            changed = np.concatenate([changed, keys[found][better]])
        self._add(keys[~found], rows[~found])
        return changed

    def _improve(self, indexes: Int64s, rows: Rows, *, is_final: bool) -> Mask:
        """Keep the better ones of these rows; return which ones they are."""
        places = self._places[indexes]
        known = self._rows[places]
        better = is_better(rows, known, self._order)
        if is_final:
            better |= (rows["process"] == known["process"]) & (rows != known)
        if "is_torn" in (self.dtype.names or ()):
            torn = are_torn(rows, known)
            self._rows[places[better]] = rows[better]
            self._rows["is_torn"][places] = torn
            changed: Mask = better | (torn != known["is_torn"])
            return changed
        self._rows[places[better]] = rows[better]
        return better

    def _add(self, keys: Int64s, rows: Rows) -> None:
        size = len(self._keys)
        if size + len(keys) > len(self._rows):
            grown = np.zeros(max(size + len(keys), size + size // GROWTH), self.dtype)
            grown[:size] = self._rows[:size]
            self._rows = grown
        self._rows[size : size + len(keys)] = rows
        indexes = np.searchsorted(self._keys, keys)
        self._keys = np.insert(self._keys, indexes, keys)
        self._places = np.insert(self._places, indexes, np.arange(size, size + len(keys), dtype=np.int32))

    def void(self, indexes: Int64s) -> None:
        """Forget the rows of the keys at these indexes: they counted records that were lost."""
        self._bring_back()
        self._rows[self._places[indexes]] = absent_rows(len(indexes), self.dtype)


def absent_rows(size: int, dtype: np.dtype[np.void]) -> Rows:
    """Return rows that nobody reported, or that are void."""
    rows = np.zeros(size, dtype)
    rows["revision"] = ABSENT
    for name in ("first_offset", "last_offset"):
        if name in (dtype.names or ()):
            rows[name] = -1
    return rows


def are_torn(rows: Rows, known: Rows) -> Mask:
    """True for each pair of rows of which none has all offsets that the other one has."""
    has_all = (rows["first_offset"] <= known["first_offset"]) & (rows["last_offset"] >= known["last_offset"])
    is_inside = (known["first_offset"] <= rows["first_offset"]) & (known["last_offset"] >= rows["last_offset"])
    counted = (rows["first_offset"] >= 0) & (known["first_offset"] >= 0)
    result: Mask = (counted & ~has_all & ~is_inside) | (known["is_torn"] & ~(counted & has_all))
    return result


def is_better(new: Rows, old: Rows, order: Sequence[str]) -> Mask:
    """True for each new row that is above the old one in the order of the columns; False for equal ones."""
    better = np.zeros(len(new), np.bool_)
    undecided = np.ones(len(new), np.bool_)
    for name in order:
        mine, other = new[name], old[name]
        better |= undecided & (mine > other)
        undecided &= mine == other
        if not undecided.any():
            break
    return better


def with_inserted(rows: Rows, places: Int64s, new: Rows) -> Rows:
    """Return rows with new ones before these places of the old ones: `np.insert`, for structured arrays."""
    size = len(rows) + len(new)
    result = np.empty(size, rows.dtype)
    at = places + np.arange(len(new))
    old = np.ones(size, np.bool_)
    old[at] = False
    result[at] = new
    result[old] = rows
    return result
