"""Counts of one life of a producer that reports records, not batches: delivery reports in, rows by record out. No I/O.

Threads may share it (invariants A and B of `shared_counts.py`). Invariant:
C. Each record is counted in the window of its own timestamp, and rows say so (`by_record`). Tiers that count batches
   file a batch under its first record, so the edges of two neighbouring hours may differ by records of one batch.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.counting.producer_counter import ProducerCounter
from pipeline.audit.counting.shared_counts import RecordOutcome, SharedCounts
from pipeline.audit.events.report import ROW, CountReport, Rows
from pipeline.audit.events.tiers import is_audited
from pipeline.client.producer.batches import FailedBatch
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS, MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

_Numbers = NDArray[np.int64]


class RecordCounter(SharedCounts):
    """Counts of one life by record. `counter` has the counts, and is used by nobody else."""

    def __init__(self, counter: ProducerCounter, window_ms: int) -> None:
        super().__init__(counter)
        self._counter = counter
        self._window_ms = window_ms

    def failed(self, outcome: RecordOutcome, *, outcome_unknown: bool) -> None:
        """Count one record that was given up."""
        with self._using:
            self._counter.failed(
                FailedBatch(
                    topic_partition=TopicPartition(outcome.topic, outcome.partition),
                    record_count=1,
                    window=outcome.timestamp_ms // self._window_ms,
                    outcome_unknown=outcome_unknown,
                )
            )

    def end(self) -> None:
        """See `ProducerCounter.end`."""
        with self._using:
            self._counter.end()

    def may_rest(self) -> bool:
        """See `ProducerCounter.may_rest`."""
        with self._using:
            return not self._waiting and self._counter.may_rest()

    def mark(self, report: CountReport) -> None:
        """Say that the rows are by record (invariant C)."""
        report.rows["by_record"] = True

    def count(self, records: Sequence[RecordOutcome]) -> None:
        """Sum records that were acknowledged."""
        places: dict[TopicPartition, int] = {}
        numbers = [
            places.setdefault(TopicPartition(outcome.topic, outcome.partition), len(places)) for outcome in records
        ]
        rows = rows_of_records(
            np.array(numbers, np.int64),
            np.array([outcome.timestamp_ms for outcome in records], np.int64),
            np.array([outcome.offset for outcome in records], np.int64),
            self._window_ms,
        )
        for place, number in places.items():
            if is_audited(place.topic):
                self._counter.add_rows(place, rows[rows["partition"] == number])


def rows_of_records(numbers: _Numbers, times: _Numbers, offsets: _Numbers, window_ms: int) -> Rows:
    """Return rows of windows and of hours. `numbers` are those of the records' partitions."""
    times = np.clip(times, MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS)
    spans = dict.fromkeys((window_ms, HOUR_MS))
    return np.concatenate([_rows_of_span(numbers, times - times % span, offsets, span) for span in spans])


def _rows_of_span(numbers: _Numbers, starts: _Numbers, offsets: _Numbers, span_ms: int) -> Rows:
    order = np.lexsort((starts, numbers))
    numbers, starts, offsets = numbers[order], starts[order], offsets[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (numbers[1:] != numbers[:-1]) | (starts[1:] != starts[:-1])
    at = np.flatnonzero(is_new)
    rows = np.zeros(len(at), ROW)
    if len(at):
        rows["partition"], rows["start_ms"], rows["span_ms"] = numbers[at], starts[at], span_ms
        rows["records"] = np.diff(np.append(at, len(order)))
        known_first = np.where(offsets < 0, np.iinfo(np.int64).max, offsets)
        rows["last_offset"] = np.maximum.reduceat(offsets, at)
        rows["first_offset"] = np.where(rows["last_offset"] < 0, -1, np.minimum.reduceat(known_first, at))
    return rows
