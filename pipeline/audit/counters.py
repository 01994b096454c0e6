"""Counting at the producer and at the broker: batch headers in, monitoring events out. No I/O: the checkpoint
of a broker is written through a `CheckpointStore`.

Invariants of the broker's counter (decision 0026):
A. `up_to` of a partition never exceeds its high watermark, and every batch below it is counted exactly once. What is
   above waits in lots; it is counted when the high watermark has passed it, and forgotten when it is cut off.
B. The checkpoint is written only after what it holds was published. So a broker killed at any moment counts again, from
   the log itself, what it had counted since, and publishes it again; by the events' revisions this changes no sum.
C. Each replica of a partition counts for itself and tells all that it counted, so nothing hangs on a broker that dies:
   the leader at once, followers seldom. A leader first claims its epoch, and tells the newest windows again.
D. What does not go on from a checkpoint is counted from the start of the log. That it began is in the checkpoint before
   anything is counted, so that the old checkpoint is not gone on from when the log has grown again. (A power failure
   right between publishing and the checkpoint can take records away that stay told.)
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Protocol

from pipeline.audit.message import AuditEvent, AuditSource, Claim, Tier, is_audited
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.tally import NOTHING, Counts, window_start

MAX_APPENDED = 100
"""How many windows are appended to a checkpoint before it is written whole again: each makes a start slower."""
FOLLOWER_TURNS = 30
"""A follower tells only every so many times, for the case that the leader dies before it has told."""
WINDOWS_CLAIMED = 36
"""So many of the newest windows are told again with a claim, which may have voided them."""


@dataclass(slots=True)
class WindowCounts:
    """Counts by window, and which windows changed since they were last taken."""

    window_ms: int
    windows: dict[int, Counts] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def add(self, header: BatchHeader) -> None:
        """Count one batch."""
        start = window_start(header.base_timestamp, self.window_ms)
        self.windows[start] = self.windows.get(start, NOTHING) + Counts.of(header)
        self.changed.add(start)

    def add_all(self, other: "WindowCounts") -> None:
        """Count what another has counted."""
        for start, counts in other.windows.items():
            self.windows[start] = self.windows.get(start, NOTHING) + counts
        self.changed.update(other.windows)

    def take_changed(self) -> dict[int, Counts]:
        """The cumulative counts of the windows that changed; they count as unchanged from now on."""
        taken = {start: self.windows[start] for start in self.changed}
        self.changed.clear()
        return taken


class CheckpointStore(Protocol):
    """Where a broker keeps, for each partition, all its counts up to some offset.

    Writing says whether it worked; the caller writes whole after a failure.
    """

    def read(self, partition: TopicPartition) -> AuditEvent | None:
        """All that was written and appended; None when there is nothing whole."""
        ...

    def write(self, checkpoint: AuditEvent) -> bool:
        """Replace the checkpoint of the event's partition."""
        ...

    def append(self, event: AuditEvent) -> bool:
        """Add to the checkpoint of the event's partition: these windows hold now, up to this revision."""
        ...


class ProducerCounter:
    """Counts what brokers acknowledged to one producer, by partition and window."""

    def __init__(self, cluster: str, instance: str, window_ms: int, clock: Clock) -> None:
        self._cluster = cluster
        self._instance = instance
        self._window_ms = window_ms
        self._clock = clock
        self._partitions: dict[TopicPartition, WindowCounts] = {}
        self._sequence = 0

    def delivered(self, partition: TopicPartition, header: BatchHeader) -> None:
        """One batch was acknowledged."""
        if is_audited(partition.topic):
            self._partitions.setdefault(partition, WindowCounts(self._window_ms)).add(header)

    def take_events(self) -> list[AuditEvent]:
        """An event for each partition with changed windows."""
        events = []
        for partition, counts in self._partitions.items():
            if counts.changed:
                self._sequence += 1
                source = AuditSource(
                    tier=Tier.PRODUCER, cluster=self._cluster, partition=partition, instance=self._instance
                )
                events.append(
                    AuditEvent(
                        source=source,
                        revision=self._sequence,
                        created_ms=self._clock(),
                        window_ms=self._window_ms,
                        windows=counts.take_changed(),
                    )
                )
        return events

    def published(self, events: Sequence[AuditEvent]) -> None:
        """These are in the audit topic: nothing is left to do."""

    def put_back(self, events: Sequence[AuditEvent]) -> None:
        """These could not be published: take them again next time."""
        for event in events:
            self._partitions[event.source.partition].changed.update(event.windows)


@dataclass(slots=True)
class _Lot:
    """Batches that follow each other, not committed yet when last looked."""

    start_offset: int
    end_offset: int
    leader_epoch: int
    counts: WindowCounts
    epochs: list[Claim] = field(default_factory=list)
    """Those that begin in it; `leader_epoch` is the last one."""


@dataclass(slots=True)
class _LogCounts:
    """What is counted of a replica: `counts` up to `up_to`, the rest in `lots`. `leader_epoch`: of the last counted;
    `claims`: the epochs that began since something was told.
    """

    partition: ObservedPartition
    up_to: int
    leader_epoch: int
    counts: WindowCounts
    lots: deque[_Lot] = field(default_factory=deque)
    is_lot_open: bool = False
    """Whether the last lot takes more."""
    claims: list[Claim] = field(default_factory=list)
    claimed_epoch: int = -1
    turns: int = 0
    """How often nothing was told since something was."""
    taken: AuditEvent | None = None
    """The event that is on its way to the audit topic."""
    appended: float = math.inf
    """Windows appended since the checkpoint was written whole; infinite if it must be, before anything is appended."""
    whole: AuditEvent | None = None
    """All windows as they were when events were last taken, if they are to be written once those are published."""

    @property
    def end_offset(self) -> int:
        """The end of what is counted or in a lot."""
        return self.lots[-1].end_offset if self.lots else self.up_to

    @property
    def last_epoch(self) -> int:
        """The epoch of the last batch that is counted or in a lot."""
        return self.lots[-1].leader_epoch if self.lots else self.leader_epoch

    def add(self, headers: Iterable[BatchHeader]) -> None:
        """Put batches into the last lot."""
        end_offset, epoch = self.end_offset, self.last_epoch
        for header in headers:
            if header.base_offset < end_offset:
                continue
            if not self.is_lot_open:
                self.is_lot_open = True
                self.lots.append(_Lot(header.base_offset, end_offset, epoch, WindowCounts(self.counts.window_ms)))
            lot = self.lots[-1]
            lot.counts.add(header)
            if header.partition_leader_epoch > epoch:
                epoch = lot.leader_epoch = header.partition_leader_epoch
                lot.epochs.append(Claim(epoch, header.base_offset))
            lot.end_offset = end_offset = header.next_offset

    def settle(self) -> None:
        """Count what has been committed meanwhile."""
        committed = self.partition.high_watermark
        while self.lots and self.lots[0].end_offset <= committed:
            lot = self.lots.popleft()
            self.counts.add_all(lot.counts)
            self.up_to, self.leader_epoch = lot.end_offset, lot.leader_epoch
            self.claims += lot.epochs
        self.is_lot_open = False

    def cut_off(self, end_offset: int) -> None:
        """The log ends there now, not before what is counted; or it is empty, and what it held is not to be had."""
        self.is_lot_open = False
        if self.partition.log.log_start_offset == end_offset:
            self.lots.clear()
        while self.lots and self.lots[-1].end_offset > end_offset:
            lot = self.lots.pop()
            if lot.start_offset < end_offset:
                self.add(self.partition.log.headers(Offset(lot.start_offset)))


class BrokerCounter:
    """Counts what is committed in the logs of a broker, by partition and window; goes on after a restart (invariants
    above). The broker calls `loaded`, `appended`, `truncated` and `removed` (it is the broker's observer).
    """

    def __init__(self, cluster: str, window_ms: int, checkpoints: CheckpointStore, clock: Clock) -> None:
        self._cluster = cluster
        self._window_ms = window_ms
        self._checkpoints = checkpoints
        self._clock = clock
        self._logs: dict[TopicPartition, _LogCounts] = {}

    def loaded(self, partition: ObservedPartition) -> None:
        """A replica was opened: count what the checkpoint does not hold yet."""
        name, log = partition.topic_partition, partition.log
        if not is_audited(name.topic):
            return
        saved = self._checkpoints.read(name)
        # A checkpoint past the end means that the log lost its end (power failure): what is left is counted anew.
        if (
            saved is not None
            and saved.window_ms == self._window_ms
            and saved.source == self._source(partition)
            and saved.revision <= log.log_end_offset
        ):
            counts = WindowCounts(self._window_ms, dict(saved.windows))
            self._logs[name] = _LogCounts(partition, saved.revision, saved.leader_epoch, counts)
            self._count_rest(self._logs[name])
        else:
            self._count_anew(partition, is_saved=saved is not None)

    def _count_anew(self, partition: ObservedPartition, *, is_saved: bool) -> None:
        start_offset = partition.log.log_start_offset
        log = _LogCounts(partition, start_offset, 0, WindowCounts(self._window_ms))
        self._logs[partition.topic_partition] = log
        if is_saved:
            self._checkpoints.write(self._event(log, {}))
        self._count_rest(log)

    @staticmethod
    def _count_rest(log: _LogCounts) -> None:
        """What lies behind `up_to`; what is known to be committed is a lot of its own."""
        opened = log.partition.log
        if log.up_to >= opened.log_end_offset:
            return
        committed = log.partition.high_watermark
        for header in opened.headers(max(Offset(log.up_to), opened.log_start_offset)):
            if header.next_offset > committed >= log.end_offset:
                log.settle()
            log.add((header,))

    def appended(self, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
        """Batches were appended."""
        if is_audited(topic_partition.topic):
            self._logs[topic_partition].add(headers)

    def truncated(self, topic_partition: TopicPartition) -> None:
        """The end of a log was cut off, or all of it, to follow its leader."""
        log = self._logs.get(topic_partition)
        if log is None:
            return
        end_offset = log.partition.log.log_end_offset
        if end_offset < log.up_to:
            self._count_anew(log.partition, is_saved=True)
        else:
            log.cut_off(end_offset)

    def removed(self, topic_partition: TopicPartition) -> None:
        """The replica is not here any more; its counts go with it."""
        self._logs.pop(topic_partition, None)

    def take_events(self) -> list[AuditEvent]:
        """An event for each replica of which there is something to tell."""
        events = []
        for log in self._logs.values():
            log.settle()
            log.turns += 1
            if self._begins_to_lead(log):
                log.counts.changed.update(nlargest(WINDOWS_CLAIMED, log.counts.windows))
            elif not (log.counts.changed or log.claims) or not (log.partition.is_leader or log.turns >= FOLLOWER_TURNS):
                continue
            event = log.taken = self._event(log, log.counts.take_changed(), tuple(log.claims))
            log.claims.clear()
            is_due = log.appended + len(event.windows) > MAX_APPENDED
            log.whole = replace(event, windows=dict(log.counts.windows)) if is_due else None
            log.turns = 0
            events.append(event)
        return events

    @staticmethod
    def _begins_to_lead(log: _LogCounts) -> bool:
        """Whether it leads in an epoch that it has not claimed yet; now it has."""
        partition = log.partition
        if not partition.is_leader or partition.leader_epoch == log.claimed_epoch:
            return False
        log.claimed_epoch = partition.leader_epoch
        start_offset = partition.log.epoch_start(partition.leader_epoch)
        log.claims.append(Claim(partition.leader_epoch, log.end_offset if start_offset is None else start_offset))
        return True

    def published(self, events: Sequence[AuditEvent]) -> None:
        """These are in the audit topic: remember how far their logs are counted."""
        for event in events:
            log = self._logs.get(event.source.partition)
            if log is None or log.taken is not event:
                continue
            log.taken = None
            if log.whole is not None:
                log.appended = 0 if self._checkpoints.write(log.whole) else math.inf
                log.whole = None
            elif log.appended < math.inf:
                log.appended += len(event.windows) if self._checkpoints.append(event) else math.inf

    def put_back(self, events: Sequence[AuditEvent]) -> None:
        """These could not be published: take them again next time."""
        for event in events:
            log = self._logs.get(event.source.partition)
            if log is not None and log.taken is event:
                log.taken = None
                log.counts.changed.update(event.windows)
                log.turns = FOLLOWER_TURNS
                log.claims[:0] = event.claims

    def _source(self, partition: ObservedPartition) -> AuditSource:
        instance = "" if partition.log.topic_id is None else str(partition.log.topic_id)
        return AuditSource(
            tier=Tier.BROKER, cluster=self._cluster, partition=partition.topic_partition, instance=instance
        )

    def _event(self, log: _LogCounts, windows: dict[int, Counts], claims: tuple[Claim, ...] = ()) -> AuditEvent:
        return AuditEvent(
            source=self._source(log.partition),
            leader_epoch=log.leader_epoch,
            claims=claims,
            revision=log.up_to,
            created_ms=self._clock(),
            window_ms=self._window_ms,
            windows=windows,
        )
