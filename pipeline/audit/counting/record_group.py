"""Counts the records that a member of a group has committed, one by one: for clients that show no batches. No I/O.

Threads may share it (invariants A and B of `shared_counts.py`). Each record is counted once its commit is acknowledged.
Records that are read again are not counted again. Invariants:
C. Each record is counted in the window of its own timestamp, and rows say so (`by_record`). They have no sums.
D. Offsets that the client left out between two records are no hole in the run: they may be markers of transactions,
   records of aborted ones, compacted records, or records that a seek skipped. The judgement does not know which either.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.counting.group_counter import GroupCounter
from pipeline.audit.counting.shared_counts import RecordOutcome, SharedCounts
from pipeline.audit.counting.windows import SUMMED_COLUMNS
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import is_audited
from pipeline.model import TopicPartition
from pipeline.records.batch_hashes import HEADER, HeaderTable
from pipeline.records.tally import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

NOT_COUNTED: Final = tuple(
    name for name in SUMMED_COLUMNS if name not in ("records", "uncertain_records", "quarantined")
)
"""Columns of a row that counts of records do not know."""


class RecordGroupCounter(SharedCounts):
    """Counts of one member of a group by record. `counter` has the counts, and is used by nobody else."""

    def __init__(self, counter: GroupCounter) -> None:
        super().__init__(counter)
        self._counter = counter
        self._next: dict[TopicPartition, int] = {}
        """Offset after the last record of each partition. Guarded by the lock."""

    @property
    def is_ended(self) -> bool:
        """True if the member commits nothing more."""
        return self._counter.is_ended

    @is_ended.setter
    def is_ended(self, value: bool) -> None:
        self._counter.is_ended = value

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Count the records before the committed offsets."""
        with self.turn():
            self._counter.committed(offsets)

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Take note that the member got these partitions: others may have committed records of them before."""
        with self.turn():
            self._counter.given_up(partitions)
            for partition in partitions:
                self._next.pop(partition, None)

    def mark(self, report: CountReport) -> None:
        """Say that the rows are by record, and leave out what only batches have (invariant C)."""
        for name in NOT_COUNTED:
            report.rows[name] = 0
        report.rows["has_sums"] = False
        report.rows["by_record"] = True

    def count(self, records: Sequence[RecordOutcome]) -> None:
        """Have records wait for their commits."""
        numbers: dict[TopicPartition, int] = {}
        of_records = np.array(
            [numbers.setdefault(TopicPartition(each.topic, each.partition), len(numbers)) for each in records], np.int64
        )
        offsets = np.array([each.offset for each in records], np.int64)
        times = np.array([each.timestamp_ms for each in records], np.int64)
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
