"""Counts the committed batches of a broker's logs: batch headers in, monitoring events out. No I/O: checkpoints are
written through a `CheckpointStore`.

Invariants (decision 0026):
A. `up_to` of a partition never exceeds its high watermark, and every batch below it is counted exactly once. Batches
   above it wait in `pending`; they are counted once the high watermark has passed them, and forgotten if truncated.
B. A checkpoint is written only after its counts were published. So a broker killed at any moment counts again, from
   the log itself, what it had counted since, and publishes it again; by the events' revisions this changes no sum.
C. Each replica of a partition counts for itself and reports all that it counted, so no count is lost with a broker: the
   leader reports at once, followers seldom. A leader first claims its epoch, and reports the newest windows again.
D. Counting that cannot go on from a checkpoint begins at the start of the log. A checkpoint without counts is written
   before that, so that the old one is not taken up when the log has grown again. (A power failure between publishing
   and the checkpoint may remove records that stay reported.)
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Protocol

from pipeline.audit.message import AuditEvent, AuditSource, EpochClaim, Tier, is_audited
from pipeline.audit.window_counts import WindowCounts
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.tally import Counts

MAX_APPENDED = 100
"""Windows that may be appended to a checkpoint before it is replaced: each one makes a start slower."""
FOLLOWER_ROUNDS = 30
"""Rounds between two reports of a follower, which matter only if the leader dies before it has reported."""
WINDOWS_CLAIMED = 36
"""Newest windows that are reported again with a claim, which may have voided them."""


class CheckpointStore(Protocol):
    """Keeps, for each partition of a broker, all its counts up to some offset.

    `write` and `append` return True if they succeeded; after a failed `append` the caller writes the whole checkpoint.
    """

    def read(self, partition: TopicPartition) -> AuditEvent | None:
        """Return the checkpoint with all that was appended to it; None if there is no whole one."""

    def write(self, checkpoint: AuditEvent) -> bool:
        """Replace the checkpoint of the event's partition."""

    def append(self, event: AuditEvent) -> bool:
        """Add the event's windows and revision to the checkpoint of its partition."""


@dataclass(slots=True)
class _PendingBatches:
    """Consecutive batches that were not all committed when last checked."""

    start_offset: int
    end_offset: int
    leader_epoch: int
    counts: WindowCounts
    claims: list[EpochClaim] = field(default_factory=list)
    """Leader epochs that begin in these batches; `leader_epoch` is the last one."""


@dataclass(slots=True)
class _ReplicaCounts:
    """Counts of one replica up to the offset `up_to`; `leader_epoch` is that of the last counted batch."""

    partition: ObservedPartition
    up_to: int
    leader_epoch: int
    counts: WindowCounts
    pending: deque[_PendingBatches] = field(default_factory=deque)
    is_last_open: bool = False
    """True if the next batch belongs to the last of `pending`."""
    claims: list[EpochClaim] = field(default_factory=list)
    """Leader epochs that began since the last report."""
    claimed_epoch: int = -1
    silent_rounds: int = 0
    """Rounds since the last report."""
    reported: AuditEvent | None = None
    """The event that is on its way to the audit topic."""
    appended_windows: int | None = None
    """Windows appended since the checkpoint was written whole; None if it must be written whole first."""
    next_checkpoint: AuditEvent | None = None
    """All windows as of `reported`, if they replace the checkpoint once `reported` is published."""

    @property
    def end_offset(self) -> int:
        """Offset after the last batch that is counted or pending."""
        return self.pending[-1].end_offset if self.pending else self.up_to

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last batch that is counted or pending."""
        return self.pending[-1].leader_epoch if self.pending else self.leader_epoch

    def add(self, headers: Iterable[BatchHeader]) -> None:
        """Add batches to the last of `pending`."""
        end_offset, epoch = self.end_offset, self.last_epoch
        for header in headers:
            if header.base_offset < end_offset:
                continue
            if not self.is_last_open:
                self.is_last_open = True
                counts = WindowCounts(self.counts.window_ms)
                self.pending.append(_PendingBatches(header.base_offset, end_offset, epoch, counts))
            last = self.pending[-1]
            if not header.is_control:  # no load has transaction markers
                last.counts.add(header)
            if header.partition_leader_epoch > epoch:
                epoch = last.leader_epoch = header.partition_leader_epoch
                last.claims.append(EpochClaim(epoch, header.base_offset))
            last.end_offset = end_offset = header.next_offset

    def count_committed(self) -> None:
        """Count the pending batches that were committed meanwhile. Later batches begin a new entry of `pending`."""
        committed = self.partition.high_watermark
        while self.pending and self.pending[0].end_offset <= committed:
            first = self.pending.popleft()
            self.counts.add_all(first.counts)
            self.up_to, self.leader_epoch = first.end_offset, first.leader_epoch
            self.claims += first.claims
        self.is_last_open = False

    def truncate(self, end_offset: int) -> None:
        """Forget pending batches from `end_offset`, the new log end offset, on. It is not below `up_to`."""
        self.is_last_open = False
        # An empty log may end beyond pending batches: its records were deleted together with their headers.
        if self.partition.log.log_start_offset == end_offset:
            self.pending.clear()
        while self.pending and self.pending[-1].end_offset > end_offset:
            last = self.pending.pop()
            if last.start_offset < end_offset:
                self.add(self.partition.log.headers(Offset(last.start_offset)))


class BrokerCounter:
    """Counts the committed batches of all replicas of a broker, by partition and window; goes on after a restart.

    The broker's observer: the broker calls `loaded`, `appended`, `truncated` and `removed`.
    """

    def __init__(self, cluster: str, window_ms: int, checkpoints: CheckpointStore, clock: Clock) -> None:
        self._cluster = cluster
        self._window_ms = window_ms
        self._checkpoints = checkpoints
        self._clock = clock
        self._replicas: dict[TopicPartition, _ReplicaCounts] = {}

    def loaded(self, partition: ObservedPartition) -> None:
        """Count the batches of a replica that was opened, from its checkpoint on."""
        name, log = partition.topic_partition, partition.log
        if not is_audited(name.topic):
            return
        saved = self._checkpoints.read(name)
        # A checkpoint past the log end offset means that the log lost records (power failure): all is counted again.
        if (
            saved is not None
            and saved.window_ms == self._window_ms
            and saved.source == self._source(partition)
            and saved.revision <= log.log_end_offset
        ):
            counts = WindowCounts(self._window_ms, dict(saved.windows))
            self._replicas[name] = _ReplicaCounts(partition, saved.revision, saved.leader_epoch, counts)
            self._count_rest(self._replicas[name])
        else:
            self._count_again(partition, is_saved=saved is not None)

    def _count_again(self, partition: ObservedPartition, *, is_saved: bool) -> None:
        start_offset = partition.log.log_start_offset
        replica = _ReplicaCounts(partition, start_offset, 0, WindowCounts(self._window_ms))
        self._replicas[partition.topic_partition] = replica
        if is_saved:
            self._checkpoints.write(self._event(replica, {}))  # invariant D
        self._count_rest(replica)

    @staticmethod
    def _count_rest(replica: _ReplicaCounts) -> None:
        """Add the batches of the log from `up_to` on."""
        log = replica.partition.log
        if replica.up_to >= log.log_end_offset:
            return
        committed = replica.partition.high_watermark
        for header in log.headers(max(Offset(replica.up_to), log.log_start_offset)):
            # At the first batch above the high watermark: count what lies below, or it waited for this batch as well.
            if header.next_offset > committed >= replica.end_offset:
                replica.count_committed()
            replica.add((header,))

    def appended(self, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
        """Take note of batches that were appended."""
        if is_audited(topic_partition.topic):
            self._replicas[topic_partition].add(headers)

    def truncated(self, topic_partition: TopicPartition) -> None:
        """Take note that a log was truncated to follow its leader, in part or wholly."""
        replica = self._replicas.get(topic_partition)
        if replica is None:
            return
        end_offset = replica.partition.log.log_end_offset
        if end_offset < replica.up_to:
            self._count_again(replica.partition, is_saved=True)
        else:
            replica.truncate(end_offset)

    def removed(self, topic_partition: TopicPartition) -> None:
        """Forget a replica that is no longer on this broker."""
        self._replicas.pop(topic_partition, None)

    def take_events(self) -> list[AuditEvent]:
        """Return an event for each replica that has something to report."""
        events = []
        for replica in self._replicas.values():
            replica.count_committed()
            replica.silent_rounds += 1
            if self._begins_to_lead(replica):
                replica.counts.changed.update(nlargest(WINDOWS_CLAIMED, replica.counts.windows))
            elif not (replica.counts.changed or replica.claims) or (
                not replica.partition.is_leader and replica.silent_rounds < FOLLOWER_ROUNDS
            ):
                continue
            event = replica.reported = self._event(replica, replica.counts.take_changed(), tuple(replica.claims))
            replica.claims.clear()
            appended = replica.appended_windows
            is_due = appended is None or appended + len(event.windows) > MAX_APPENDED
            replica.next_checkpoint = replace(event, windows=dict(replica.counts.windows)) if is_due else None
            replica.silent_rounds = 0
            events.append(event)
        return events

    @staticmethod
    def _begins_to_lead(replica: _ReplicaCounts) -> bool:
        """Claim the epoch in which the replica leads. Return True if it was not claimed before."""
        partition = replica.partition
        if not partition.is_leader or partition.leader_epoch == replica.claimed_epoch:
            return False
        replica.claimed_epoch = partition.leader_epoch
        start_offset = partition.log.epoch_start(partition.leader_epoch)
        if start_offset is None:
            start_offset = Offset(replica.end_offset)
        replica.claims.append(EpochClaim(partition.leader_epoch, start_offset))
        return True

    def published(self, events: Sequence[AuditEvent]) -> None:
        """Write to the checkpoints how far these logs are counted: the events are in the audit topic (invariant B)."""
        for event in events:
            replica = self._replicas.get(event.source.partition)
            if replica is None or replica.reported is not event:
                continue
            replica.reported = None
            if replica.next_checkpoint is not None:
                replica.appended_windows = 0 if self._checkpoints.write(replica.next_checkpoint) else None
                replica.next_checkpoint = None
            elif replica.appended_windows is not None:
                is_appended = self._checkpoints.append(event)
                replica.appended_windows = replica.appended_windows + len(event.windows) if is_appended else None

    def put_back(self, events: Sequence[AuditEvent]) -> None:
        """Take these events, which could not be published, again next time."""
        for event in events:
            replica = self._replicas.get(event.source.partition)
            if replica is not None and replica.reported is event:
                replica.reported = None
                replica.counts.changed.update(event.windows)
                replica.silent_rounds = FOLLOWER_ROUNDS
                replica.claims[:0] = event.claims

    def _source(self, partition: ObservedPartition) -> AuditSource:
        instance = "" if partition.log.topic_id is None else str(partition.log.topic_id)
        return AuditSource(
            tier=Tier.BROKER, cluster=self._cluster, partition=partition.topic_partition, instance=instance
        )

    def _event(
        self, replica: _ReplicaCounts, windows: dict[int, Counts], claims: tuple[EpochClaim, ...] = ()
    ) -> AuditEvent:
        return AuditEvent(
            source=self._source(replica.partition),
            leader_epoch=replica.leader_epoch,
            claims=claims,
            revision=replica.up_to,
            created_ms=self._clock(),
            window_ms=self._window_ms,
            windows=windows,
        )
