"""Counts the records that a member of a group has committed, one by one: for clients that show no batches. No I/O.

Invariants:
A. Threads may note records and commits; one thread takes reports. Each record is counted once, when its commit is
   acknowledged. Records that are read again are not counted again.
B. At most `WAITING_RECORDS` records wait to be put in tables: the thread that notes one more puts them there.
C. Each record is counted in the window of its own timestamp, and rows say so (`by_record`). They have no sums.
D. Offsets that the client left out between two records are no hole in the run: they may be markers of transactions,
   records of aborted ones, compacted records, or records that a seek skipped. The judgement does not know which either.
"""

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.counting.group_counter import GroupCounter
from pipeline.audit.counting.record_counter import WAITING_RECORDS, RecordOutcome
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import is_audited
from pipeline.model import TopicPartition
from pipeline.records.batch_hashes import HEADER, HeaderTable
from pipeline.records.tally import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

NOT_COUNTED: Final = (
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
)
"""Columns of a row that counts of records do not know."""


class RecordGroupCounter:
    """Counts of one member of a group by record. `counter` has the counts, and is used by nobody else."""

    def __init__(self, counter: GroupCounter) -> None:
        self._counter = counter
        self._waiting: deque[RecordOutcome] = deque()
        self._next: dict[TopicPartition, int] = {}
        """Offset after the last record of each partition."""
        self._using = threading.Lock()
        """Guards `_counter` and `_next`."""

    @property
    def is_ended(self) -> bool:
        """True if the member commits nothing more."""
        return self._counter.is_ended

    @is_ended.setter
    def is_ended(self, value: bool) -> None:
        self._counter.is_ended = value

    def consumed(self, record: RecordOutcome) -> None:
        """Have one record wait for its commit. The hot path: an append."""
        self._waiting.append(record)
        if len(self._waiting) >= WAITING_RECORDS:
            with self._using:
                self._read()

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Count the records before the committed offsets."""
        with self._using:
            self._read()
            self._counter.committed(offsets)

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Take note that the member got these partitions: others may have committed records of them before."""
        with self._using:
            self._read()
            self._counter.given_up(partitions)
            for partition in partitions:
                self._next.pop(partition, None)

    def take_reports(self) -> list[CountReport]:
        """See `GroupCounter.take_reports`."""
        with self._using:
            self._read()
            reports = self._counter.take_reports()
        for report in reports:
            for name in NOT_COUNTED:
                report.rows[name] = 0
            report.rows["has_sums"] = False
            report.rows["by_record"] = True
        return reports

    def published(self, reports: Sequence[CountReport]) -> None:
        """See `GroupCounter.published`."""
        with self._using:
            self._counter.published(reports)

    def put_back(self, reports: Sequence[CountReport]) -> None:
        """See `GroupCounter.put_back`."""
        with self._using:
            self._counter.put_back(reports)

    def report_again(self) -> None:
        """See `GroupCounter.report_again`."""
        with self._using:
            self._counter.report_again()

    def _read(self) -> None:
        """Put what waits now in tables; the caller has the lock. Threads may go on to append."""
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        numbers: dict[TopicPartition, int] = {}
        of_records = np.array(
            [numbers.setdefault(TopicPartition(each.topic, each.partition), len(numbers)) for each in taken], np.int64
        )
        offsets = np.array([each.offset for each in taken], np.int64)
        times = np.array([each.timestamp_ms for each in taken], np.int64)
        for partition, number in numbers.items():
            if is_audited(partition.topic):
                mine = of_records == number
                self._read_partition(partition, offsets[mine], times[mine])

    def _read_partition(self, partition: TopicPartition, offsets: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Hand the records of a partition on, in runs of rising offsets: a record that is read again begins a run."""
        starts = np.flatnonzero(np.diff(offsets) <= 0) + 1
        for run, run_times in zip(np.split(offsets, starts), np.split(times, starts), strict=True):
            first, end = int(run[0]), int(run[-1]) + 1
            position = min(self._next.get(partition, first), first)  # invariant D
            self._counter.read(partition, table_of_records(run, run_times), position, end)
            self._next[partition] = end


def table_of_records(offsets: NDArray[np.int64], times: NDArray[np.int64]) -> HeaderTable:
    """Return records as batches of one record each, without anything that only batches have."""
    table = np.zeros(len(offsets), HEADER)
    times = np.clip(times, MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS)
    table["base_offset"], table["record_count"] = offsets, 1
    table["base_timestamp"], table["max_timestamp"] = times, times
    return table
