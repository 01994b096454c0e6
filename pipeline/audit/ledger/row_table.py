"""Tables of rows, sorted by key, in which of two rows of a key the better one is kept. Pure.

Which row is better is a total order over the rows' columns. So the order and number of events do not matter.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.events.report import ROW, Rows
from pipeline.audit.ledger.keys import Int64s

Mask = NDArray[np.bool_]

_NARROW: Final = {name: np.dtype(np.uint32) for name in ("none", "gzip", "snappy", "lz4", "zstd", "stamped")}
_COUNTED: Final = [
    (name, _NARROW.get(name, ROW[name]))
    for name in ROW.names or ()
    if name not in ("topic", "partition", "start_ms", "span_ms")
]
HOUR_ROW: Final = np.dtype([*_COUNTED, ("created_ms", np.int64), ("process", np.int32)])
"""Row of an hour: columns of ROW, the time of the report, and the number of the process that reported."""

_OF_WINDOWS: Final = (
    *("revision", "leader_epoch", "records", "crc_sum", "content_sum", "header_sum", "has_sums", "last_offset"),
    *("marked_records", "marked_sum"),
)
WINDOW_ROW: Final = np.dtype(
    [
        *((name, ROW[name]) for name in _OF_WINDOWS),
        ("created_ms", np.int64),
    ]
)
"""Row of a window: what a watermark needs."""

BY_RECORDS: Final = ("records", "has_sums", "revision", "created_ms")
"""Brokers: a replica that never had the beginning of the log knows less of old hours, so most records hold. Programs of
version 2 report no sums: of as many records, the row with sums holds."""
BY_REVISION: Final = ("revision", "created_ms", "records")

ABSENT: Final = -1
"""Revision of a row that does not count (invariant D of events/report.py)."""


class RowTable:
    """Rows of one dtype by key."""

    __slots__ = ("_order", "keys", "rows")

    def __init__(self, dtype: np.dtype[np.void], order: Sequence[str]) -> None:
        self.keys: Int64s = np.zeros(0, np.int64)
        self.rows: Rows = np.zeros(0, dtype)
        first = tuple(order)
        self._order = first + tuple(name for name in dtype.names or () if name not in first)

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: Int64s) -> tuple[Int64s, Mask]:
        """Return the places of keys, and which keys are there. Places of others are valid indexes, unless empty."""
        places = np.searchsorted(self.keys, keys)
        if not len(self.keys):
            return places, np.zeros(len(keys), np.bool_)
        places = np.minimum(places, len(self.keys) - 1)
        return places, self.keys[places] == keys

    def at(self, keys: Int64s) -> Rows:
        """Return the rows of keys; rows of zeros, with revision ABSENT, for keys that are not there."""
        places, found = self.find(keys)
        if found.all() and len(keys):
            return self.rows[places]
        rows = np.zeros(len(keys), self.rows.dtype)
        rows["revision"] = ABSENT
        rows["last_offset"] = -1
        rows[found] = self.rows[places[found]]
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
        places, found = self.find(keys)
        changed = keys[~found]
        if found.any():
            at = places[found]
            better = is_better(rows[found], self.rows[at], self._order)
            if is_final:
                better |= (rows["process"][found] == self.rows["process"][at]) & (rows[found] != self.rows[at])
            self.rows[at[better]] = rows[found][better]
            changed = np.concatenate([changed, keys[found][better]])
        if not found.all():
            new = np.searchsorted(self.keys, keys[~found])
            self.keys = np.insert(self.keys, new, keys[~found])
            self.rows = with_inserted(self.rows, new, rows[~found])
        return changed

    def void(self, places: Int64s) -> None:
        """Forget the rows at these places: they counted records that were lost."""
        rows = np.zeros(len(places), self.rows.dtype)
        rows["revision"] = ABSENT
        rows["last_offset"] = -1
        self.rows[places] = rows


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
