"""Replica of a partition as its broker's counter sees it: what is counted, and what waits for its commit.

Invariants:

A. `up_to` never exceeds the high watermark, and each batch from `counted_from` on and below `up_to` is counted once.
B. Batches from `up_to` to `end_offset` wait: first those that are summed already (`pending`), then those of which the
   headers are kept (`waiting`), then those that nobody has looked at yet (`fresh`).
C. `epoch_starts` are the leader epochs that begin in waiting batches. `last_epoch` is that of the last batch at all.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pipeline.audit.counting.checkpoints import SavedCounts
from pipeline.audit.counting.naming import PartitionName
from pipeline.audit.events.report import CountReport
from pipeline.model import Offset
from pipeline.observation import ObservedPartition
from pipeline.records.batch import HEADER_SIZE, BatchHeader, header_bytes, read_header
from pipeline.records.batch_hashes import HeaderTable
from pipeline.records.raw_headers import RawHeaders, raw_headers


class PendingBatches(NamedTuple):
    """Consecutive batches that were not all committed when last checked. `number`: of their sums."""

    number: int
    start_offset: int
    end_offset: int


class EpochBegin(NamedTuple):
    """A leader epoch, and the offset where it begins."""

    leader_epoch: int
    start_offset: int


class ReplicaPosition(NamedTuple):
    """Position of a replica as reports have it.

    `leader_epoch` is that in which a leader leads. A follower may know of a later epoch than its log: so it has the
    epoch of its last counted batch, and a claim can void what it counted.
    """

    end_offset: int
    start_offset: int
    counted_from: int
    leader_epoch: int
    is_leader: bool
    compacted_to: int


class TakenCounts(NamedTuple):
    """Counts that are on their way to the audit topic, and what their checkpoint needs: None if it has to wait."""

    report: CountReport
    counts: SavedCounts | None
    is_whole: bool


@dataclass(slots=True, eq=False)
class CountedReplica:
    """Counts of one replica. `number` is that of its rows; `topic` that of its topic's latencies."""

    partition: ObservedPartition
    name: PartitionName
    number: int
    topic: int
    up_to: int
    counted_from: int
    leader_epoch: int
    """Leader epoch of the last counted batch."""
    end_offset: int = field(init=False)
    last_epoch: int = field(init=False)
    fresh: bytearray = field(default_factory=bytearray)
    """Headers as they are in a log, one after the other: as objects they would crowd out of the processor's caches what
    appends need."""
    fresh_times_ms: list[int] = field(default_factory=list)
    """Times of the appends of `fresh`, each of `fresh_sizes` batches."""
    fresh_sizes: list[int] = field(default_factory=list)
    waiting: list[HeaderTable] = field(default_factory=list)
    pending: deque[PendingBatches] = field(default_factory=deque)
    waits_since_ms: int | None = None
    """Time before which no batch was appended that still waits; None if none waits."""
    epoch_starts: list[EpochBegin] = field(default_factory=list)
    claims: list[EpochBegin] = field(default_factory=list)
    """Leader epochs that began since the last report."""
    claimed_epoch: int = -1
    silent_rounds: int = 0
    """Rounds since the last report."""
    reported: ReplicaPosition | None = None
    """Position as last reported."""
    taken: TakenCounts | None = None
    appended_rows: int | None = None
    """Rows appended since the checkpoint was written whole; None if it must be written whole first."""
    is_gone: bool = False
    """True if the replica is no longer here, or is counted anew by another object."""

    def __post_init__(self) -> None:
        self.end_offset, self.last_epoch = self.up_to, self.leader_epoch

    def note(self, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """Note batches that were appended now."""
        for header in headers:
            self.fresh += header_bytes(header)
        self.fresh_times_ms.append(now_ms)
        self.fresh_sizes.append(len(headers))

    @property
    def waiting_headers(self) -> int:
        """Number of headers in `waiting`."""
        return sum(map(len, self.waiting))

    @property
    def position(self) -> ReplicaPosition:
        """The present position."""
        partition, is_leader = self.partition, self.partition.is_leader
        epoch = partition.leader_epoch if is_leader else self.leader_epoch
        log = partition.log
        return ReplicaPosition(self.up_to, log.log_start_offset, self.counted_from, epoch, is_leader, log.compacted_to)

    def take_fresh(self) -> tuple[bytes | bytearray, list[int], list[int]]:
        """Return the headers nobody has looked at, the times of their appends, and the batches of each.

        The batches count as waiting from now on. Batches that are known already are left out.
        """
        fresh, times_ms, sizes = self.fresh, self.fresh_times_ms, self.fresh_sizes
        self.fresh, self.fresh_times_ms, self.fresh_sizes = bytearray(), [], []
        found: bytes | bytearray = fresh
        if read_header(fresh).base_offset < self.end_offset:
            unknown = self._unknown(raw_headers(fresh))
            found = raw_headers(fresh)[unknown].tobytes()
            times_ms = np.repeat(times_ms, sizes)[unknown].tolist()
            sizes = [1] * len(times_ms)
            if not found:
                return b"", [], []
        last = read_header(found, len(found) - HEADER_SIZE)
        if last.partition_leader_epoch > self.last_epoch:
            self._note_epochs(raw_headers(found))
        self.end_offset = last.next_offset
        if self.waits_since_ms is None:
            self.waits_since_ms = times_ms[0]
        return found, times_ms, sizes

    def _unknown(self, headers: RawHeaders) -> list[int]:
        """Return the places of the batches that are not known."""
        starts = headers["base_offset"].tolist()
        places, end_offset = [], self.end_offset
        for place, (start, delta) in enumerate(zip(starts, headers["last_offset_delta"].tolist(), strict=True)):
            if start >= end_offset:
                end_offset = start + delta + 1
                places.append(place)
        return places

    def _note_epochs(self, headers: RawHeaders) -> None:
        starts = headers["base_offset"].tolist()
        for epoch, start_offset in zip(headers["partition_leader_epoch"].tolist(), starts, strict=True):
            if epoch > self.last_epoch:
                self.last_epoch = epoch
                self.epoch_starts.append(EpochBegin(epoch, start_offset))

    def take_pending(self, committed: int) -> list[int]:
        """Return the numbers of the sums of pending batches that were committed. They count as counted from now on."""
        numbers = []
        while self.pending and self.pending[0].end_offset <= committed:
            first = self.pending.popleft()
            numbers.append(first.number)
            self.counted(first.end_offset)
        return numbers

    def take_waiting(self, committed: int) -> list[HeaderTable]:
        """Return the headers that wait and were committed. They count as counted from now on."""
        if self.pending or not self.waiting:
            return []
        found = []
        while self.waiting:
            table = self.waiting[0]
            ends = table["base_offset"] + table["last_offset_delta"] + 1
            size = int(np.searchsorted(ends, committed, side="right"))
            if not size:
                break
            found.append(table[:size])
            self.counted(int(ends[size - 1]))
            if size < len(table):
                self.waiting[0] = table[size:]
                break
            self.waiting.pop(0)
        return found

    def counted(self, end_offset: int) -> None:
        """Note that all before `end_offset` is counted. Leader epochs that begin before it are to be claimed."""
        self.up_to = end_offset
        while self.epoch_starts and self.epoch_starts[0].start_offset < end_offset:
            begin = self.epoch_starts.pop(0)
            self.leader_epoch = begin.leader_epoch
            self.claims.append(begin)

    def forget_from(self, end_offset: int) -> tuple[list[int], int | None]:
        """Forget waiting batches from `end_offset`, the new log end offset, on. It is not below `up_to`.

        Return the numbers of sums that no longer hold, and the offset from which headers must be read again: None if
        none must.
        """
        numbers, read_from = [], None
        # An empty log may end beyond pending batches: its records were deleted together with their headers.
        if self.partition.log.log_start_offset == end_offset and end_offset > self.up_to:
            numbers = [each.number for each in self.pending]
            self.pending.clear()
            self.waiting.clear()
            self.up_to = self.end_offset = end_offset
            self.counted_from = end_offset
        while self.pending and self.pending[-1].end_offset > end_offset:
            last = self.pending.pop()
            numbers.append(last.number)
            read_from = last.start_offset if last.start_offset < end_offset else None
        kept = []
        for table in self.waiting:
            ends = table["base_offset"] + table["last_offset_delta"] + 1
            kept.append(table[: int(np.searchsorted(ends, end_offset, side="right"))])
        self.waiting = [table for table in kept if len(table)]
        self.end_offset = self._known_end()
        self.epoch_starts = [begin for begin in self.epoch_starts if begin.start_offset < self.end_offset]
        self.last_epoch = self.epoch_starts[-1].leader_epoch if self.epoch_starts else self.leader_epoch
        return numbers, read_from

    def _known_end(self) -> int:
        if self.waiting:
            last = self.waiting[-1][-1]
            return int(last["base_offset"] + last["last_offset_delta"] + 1)
        return self.pending[-1].end_offset if self.pending else self.up_to

    def claim_leadership(self) -> bool:
        """Claim the epoch in which the replica leads. Return True if it was not claimed before."""
        partition = self.partition
        if not partition.is_leader or partition.leader_epoch == self.claimed_epoch:
            return False
        self.claimed_epoch = partition.leader_epoch
        start_offset = partition.log.epoch_start(partition.leader_epoch)
        self.claims.append(
            EpochBegin(partition.leader_epoch, Offset(self.end_offset) if start_offset is None else start_offset)
        )
        return True

    def claims_for_others(self) -> bool:
        """Return True if the replica leads, and claims epochs of leaders that ended, perhaps without a report."""
        return self.partition.is_leader and any(each.leader_epoch != self.claimed_epoch for each in self.claims)
