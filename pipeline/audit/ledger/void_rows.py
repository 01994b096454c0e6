"""Rows that claims made void: what brokers had counted of records that a cluster has lost since. Pure.

A broker counts committed records only. So a row that has records at or beyond the offset at which a later leader epoch
began tells of records that were committed and are gone (invariant D of events/report.py). Of the rows of one hour and
key the one that goes furthest is kept, whatever the order of rows and claims.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.audit.events.report import Rows
from pipeline.audit.ledger.claims import Claims
from pipeline.audit.ledger.keys import Int64s


@dataclass(frozen=True, slots=True, order=True)
class UnmarkedCounts:
    """Records of producers that do not count, in a row, and the sum over their batches."""

    records: int
    content_sum: int

    @classmethod
    def of(cls, rows: Rows) -> "UnmarkedCounts":
        """Return the counts in one row."""
        content = int(rows["content_sum"]) - int(rows["marked_sum"])
        return cls(max(0, int(rows["records"]) - int(rows["marked_records"])), content % 2**64)


@dataclass(frozen=True, slots=True, order=True)
class VoidRow:
    """A row that counted records up to `last_offset`, of which those from `lost_from` on were lost."""

    last_offset: int
    unmarked: UnmarkedCounts
    lost_from: int


class VoidRows:
    """Void rows of one series of brokers, by hour and key; at most `bound` of them."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._size = 0
        self._rows: dict[int, dict[int, VoidRow]] = {}

    def add(self, hour_ms: int, keys: Int64s, rows: Rows, claims: Claims) -> int:
        """Take in rows that are void by these claims; return how many did not fit the bound."""
        refused = 0
        for key, row in zip(keys.tolist(), rows, strict=True):
            lost_from = claims.lowest_start(key, int(row["leader_epoch"]))
            if lost_from is None or row["last_offset"] < lost_from or not row["records"]:
                continue  # all that the row counted is still there
            of_hour = self._rows.setdefault(hour_ms, {})
            if key not in of_hour:
                if self._size >= self._bound:
                    refused += 1
                    continue
                self._size += 1
            void = VoidRow(int(row["last_offset"]), UnmarkedCounts.of(row), lost_from)
            of_hour[key] = max(void, of_hour.get(key, void))
        return refused

    def forget(self, hour_ms: int) -> None:
        """Forget the void rows of an hour."""
        self._size -= len(self._rows.pop(hour_ms, {}))

    def of_hour(self, hour_ms: int) -> Iterator[tuple[int, VoidRow]]:
        """Yield the void rows of an hour, with their keys."""
        yield from self._rows.get(hour_ms, {}).items()
