"""Sums and latencies of the batches of many replicas, summed together. No I/O.

Invariants: A of `counted_replica.py`, and:

A. Headers of batches that are not committed are kept, at most about MAX_WAITING of all replicas. Of more, only sums are
   kept, by ranges of offsets; a range is counted once it is committed as a whole.
B. A batch's latency is the time from its base timestamp, which is that of its first record, to the request by which it
   is appended to the leader's log. So latencies err towards too long, but for the time that the request takes.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.audit.counting.counted_replica import CountedReplica, PendingBatches
from pipeline.audit.counting.latency_table import LatencyTable
from pipeline.audit.counting.windows import WindowSums, window_starts
from pipeline.records.batch import CONTROL, HEADER_SIZE
from pipeline.records.batch_hashes import HeaderTable, table_of_raw
from pipeline.records.raw_headers import raw_headers

MAX_WAITING: Final = 16_384
"""Headers of batches that are not committed."""
MAX_PENDING: Final = 32
"""Ranges of offsets of a replica of which only sums are kept."""


class _NewBatches(NamedTuple):
    """Batches that nobody has looked at, one replica after the other: `sizes` of them each, appended at these times.

    `headers` are theirs as they are in a log, one after the other.
    """

    owners: list[CountedReplica]
    sizes: list[int]
    headers: bytes | bytearray
    times_ms: NDArray[np.int64]


class ReplicaSums:
    """Rows of replicas, by their numbers, and latencies of topics."""

    def __init__(self, window_ms: int) -> None:
        self.rows = WindowSums(window_ms)
        self.latencies = LatencyTable()
        self._window_ms = window_ms
        self._pending = WindowSums(window_ms)
        """Sums of batches that are not committed: its "partitions" are the numbers of PendingBatches."""
        self._last_pending = 0
        self._waiting = 0
        """Headers that wait, of all replicas."""

    def count(self, replicas: Collection[CountedReplica], *, is_live: bool = True) -> None:
        """Count what was committed of these replicas. `is_live`: the batches were appended just now."""
        tables, numbers = self._count_waiting(replicas)
        new = _take_fresh(replicas)
        if new.headers:
            table = table_of_raw(raw_headers(new.headers))
            if is_live:
                self._note_latencies(new, table)
            committed, of_replicas = self._count_new(new, table)
            tables.append(committed)
            numbers.append(of_replicas)
        if tables:
            is_one = len(tables) == 1
            self.rows.add(
                tables[0] if is_one else np.concatenate(tables), numbers[0] if is_one else np.concatenate(numbers)
            )
        if self._waiting > MAX_WAITING:
            self._set_aside(replicas)

    def forget_from(self, replica: CountedReplica, end_offset: int) -> int | None:
        """Forget the waiting batches of a replica from the new log end offset on.

        Return the offset from which headers must be read again; None if none must.
        """
        self._waiting -= replica.waiting_headers
        numbers, read_from = replica.forget_from(end_offset)
        self._waiting += replica.waiting_headers
        for number in numbers:
            self._pending.discard(number)
        return read_from

    def discard(self, replica: CountedReplica) -> None:
        """Forget all counts of a replica."""
        self._waiting -= replica.waiting_headers
        self.rows.discard(replica.number)
        for each in replica.pending:
            self._pending.discard(each.number)
        replica.pending.clear()
        replica.waiting.clear()
        replica.fresh, replica.fresh_times_ms, replica.fresh_sizes = bytearray(), [], []

    def _count_waiting(self, replicas: Collection[CountedReplica]) -> tuple[list[HeaderTable], list[NDArray[np.int64]]]:
        """Count pending ranges that were committed. Return the headers that wait no longer, and their replicas."""
        tables: list[HeaderTable] = []
        numbers: list[NDArray[np.int64]] = []
        merged: dict[int, int] = {}
        for replica in replicas:
            if replica.pending:
                committed = replica.partition.high_watermark
                merged |= dict.fromkeys(replica.take_pending(committed), replica.number)
            if replica.waiting:
                for table in replica.take_waiting(replica.partition.high_watermark):
                    tables.append(table)
                    numbers.append(np.full(len(table), replica.number))
                    self._waiting -= len(table)
            if not (replica.waiting or replica.pending):
                replica.waits_since_ms = None
        if merged:
            rows = self._pending.rows(merged)
            owners = np.array([merged[number] for number in rows["partition"].tolist()], np.int64)
            self.rows.add_rows(rows, owners)
            for number in merged:
                self._pending.discard(number)
        return tables, numbers

    def _count_new(self, new: _NewBatches, table: HeaderTable) -> tuple[HeaderTable, NDArray[np.int64]]:
        """Return the batches that are committed, and their replicas; the others wait."""
        sizes = np.array(new.sizes)
        ends = table["base_offset"] + table["last_offset_delta"] + 1
        committed = np.repeat([replica.partition.high_watermark for replica in new.owners], sizes)
        numbers = np.repeat([replica.number for replica in new.owners], sizes)
        is_committed = ends <= committed
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        counted = np.add.reduceat(is_committed.astype(np.int64), starts)
        last = ends[starts + np.maximum(counted, 1) - 1].tolist()
        for replica, start, size, number, end_offset in zip(
            new.owners, starts.tolist(), new.sizes, counted.tolist(), last, strict=True
        ):
            if number:
                replica.counted(end_offset)
            if number < size:
                replica.waiting.append(table[start + number : start + size].copy())
                self._waiting += size - number
            else:
                replica.waits_since_ms = None
        if is_committed.all():
            return table, numbers
        return table[is_committed], numbers[is_committed]

    def _set_aside(self, replicas: Iterable[CountedReplica]) -> None:
        """Keep only sums of the batches that wait (invariant A)."""
        tables: list[HeaderTable] = []
        numbers: list[NDArray[np.int64]] = []
        for replica in replicas:
            if not replica.waiting:
                continue
            size = replica.waiting_headers
            self._waiting -= size
            tables += replica.waiting
            if len(replica.pending) < MAX_PENDING:
                self._last_pending += 1
                start_offset = int(replica.waiting[0][0]["base_offset"])
                replica.pending.append(PendingBatches(self._last_pending, start_offset, replica.end_offset))
            else:
                replica.pending.append(replica.pending.pop()._replace(end_offset=replica.end_offset))
            numbers.append(np.full(size, replica.pending[-1].number))
            replica.waiting = []
        if tables:
            self._pending.add(np.concatenate(tables), np.concatenate(numbers))
        self._pending.take_changed()

    def _note_latencies(self, new: _NewBatches, table: HeaderTable) -> None:
        """Add the latencies of batches that were appended to leaders (invariant B)."""
        leads = np.repeat([replica.partition.is_leader for replica in new.owners], new.sizes)
        is_data = leads & (table["attributes"] & CONTROL == 0) & (table["base_timestamp"] >= 0)
        topics = np.repeat([replica.topic for replica in new.owners], new.sizes)
        times_ms = new.times_ms
        if not is_data.all():
            table, topics, times_ms = table[is_data], topics[is_data], times_ms[is_data]
        if len(table):
            base_ms = table["base_timestamp"]
            waits_ms = times_ms - np.minimum(base_ms, times_ms)
            self.latencies.add(topics, window_starts(base_ms, self._window_ms), waits_ms, table["record_count"])


def _take_fresh(replicas: Iterable[CountedReplica]) -> _NewBatches:
    """Take the batches that nobody has looked at. They wait from now on."""
    owners: list[CountedReplica] = []
    sizes: list[int] = []
    parts: list[bytes | bytearray] = []
    times_ms: list[int] = []
    appends: list[int] = []
    for replica in replicas:
        if replica.fresh:
            new, at_ms, by_append = replica.take_fresh()
            if new:
                owners.append(replica)
                sizes.append(len(new) // HEADER_SIZE)
                parts.append(new)
                times_ms += at_ms
                appends += by_append
    headers = parts[0] if len(parts) == 1 else b"".join(parts)
    return _NewBatches(owners, sizes, headers, np.repeat(np.array(times_ms, np.int64), appends))
