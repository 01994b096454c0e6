"""Rows of one report, or of many reports of one series, with the numbers that a ledger gives to their names. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.audit.events.report import OLDER, CountReport, Rows
from pipeline.audit.ledger.keys import MAX_LEDGER_PARTITIONS, Int64s, row_keys
from pipeline.audit.ledger.row_table import Mask
from pipeline.records.tally import HOUR_MS

MIN_SPAN_MS: Final = 1_000
"""Length of the shortest windows that any counter has. Shorter ones would make watermarks expensive."""
MAX_AMOUNT: Final = 1 << 53
"""Rows with larger amounts are refused, so that sums never wrap."""
_AMOUNTS: Final = ("records", "bytes", "batches", "marked_records", "uncertain_records", "quarantined")


@dataclass(frozen=True, slots=True)
class ReportedRows:
    """Rows of dtype ROW; for each row the numbers of its topic, life and process, and the time of its report."""

    rows: Rows
    topics: Int64s
    lives: Int64s
    processes: Int64s
    created_ms: Int64s

    @classmethod
    def of(cls, report: CountReport, topics: Int64s, lives: Int64s, process: int) -> "ReportedRows":
        """Return the rows of a report. `topics` and `lives`: numbers by the index of a topic in the report."""
        rows = report.rows
        places, size = rows["topic"], len(rows)
        numbers = np.full(size, process, np.int64)
        return cls(rows, topics[places], lives[places], numbers, np.full(size, report.created_ms, np.int64))

    @classmethod
    def joined(cls, parts: Sequence["ReportedRows"]) -> "ReportedRows":
        """Return the rows of several reports as those of one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.topics for part in parts]),
            np.concatenate([part.lives for part in parts]),
            np.concatenate([part.processes for part in parts]),
            np.concatenate([part.created_ms for part in parts]),
        )

    def keys(self) -> Int64s:
        """Return the keys of all rows."""
        return row_keys(self.topics, self.rows["partition"].astype(np.int64), self.lives)

    def are_fit(self) -> Mask:
        """True for each row that keeps the bounds of a ledger."""
        rows = self.rows
        fits = (self.topics >= 0) & (rows["partition"] < MAX_LEDGER_PARTITIONS) & (rows["revision"] >= 0)
        for name in _AMOUNTS:
            fits &= (rows[name] >= 0) & (rows[name] <= MAX_AMOUNT)
        starts, spans = rows["start_ms"], np.maximum(rows["span_ms"], MIN_SPAN_MS)
        fits &= rows["span_ms"] >= MIN_SPAN_MS
        is_older = (rows["span_ms"] == HOUR_MS) & (starts == OLDER)
        fits &= is_older | ((starts % spans == 0) & (HOUR_MS % spans == 0))
        fits &= np.abs(starts) <= -OLDER
        result: Mask = fits
        return result

    def chosen(self, mask: Mask) -> "ReportedRows":
        """Return some of the rows."""
        if mask.all():
            return self
        return ReportedRows(
            self.rows[mask], self.topics[mask], self.lives[mask], self.processes[mask], self.created_ms[mask]
        )

    def held(self, dtype: np.dtype[np.void]) -> Rows:
        """Return the rows as a table of hours or windows holds them."""
        rows = self.rows
        held = np.zeros(len(rows), dtype)
        source, names = set(rows.dtype.names or ()), dtype.names or ()
        for name in names:
            if name in source:
                narrow = dtype[name] == np.uint32
                held[name] = np.clip(rows[name], 0, 2**32 - 1) if narrow else rows[name]
        if "sum" in names:
            held["sum"] = np.where(rows["has_sums"], rows["content_sum"], rows["crc_sum"])
        else:
            held["created_ms"] = self.created_ms
            held["process"] = self.processes
        return held
