"""Counting at the producer and at the broker: batch headers in, monitoring events out. No I/O: the checkpoint
of a broker is written through a `CheckpointStore`.

Invariants of the broker's counter:
A. `up_to` of a partition never exceeds its log end offset, and every batch below it is counted exactly once.
B. The checkpoint is written only after what it holds was published. So a broker killed at any moment counts again, from
   the log itself, what it had counted since, and publishes it again; by the events' revisions this changes no sum.
C. What does not go on from a checkpoint is counted from the start of the log, as a new generation, and told even if
   there is nothing: what was told of a former log no longer holds. That it began is in the checkpoint before anything
   is counted, so that the old checkpoint is not gone on from when the log has grown again. (A power failure right
   between publishing and the checkpoint can take records away that stay told.)
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pipeline.audit.message import AuditEvent, AuditSource, Tier
from pipeline.audit.window import NOTHING, Counts, is_audited, window_start
from pipeline.model import Clock, Offset, TopicPartition
from pipeline.records.batch import BatchHeader

MAX_APPENDED = 100
"""How many windows are appended to a checkpoint before it is written whole again: each makes a start slower."""


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
                events.append(_event(source, self._sequence, self._clock(), counts))
        return events

    def published(self, events: Sequence[AuditEvent]) -> None:
        """These are in the audit topic: nothing is left to do."""

    def put_back(self, events: Sequence[AuditEvent]) -> None:
        """These could not be published: take them again next time."""
        for event in events:
            self._partitions[event.source.partition].changed.update(event.windows)


@dataclass(slots=True)
class _LogCounts:
    generation: int
    up_to: int
    counts: WindowCounts
    is_untold: bool
    """Nothing of this generation was told yet."""
    appended: float = math.inf
    """Windows appended since the checkpoint was written whole; infinite if it must be, before anything is appended."""
    whole: AuditEvent | None = None
    """All windows as they were when events were last taken, if they are to be written once those are published."""


class BrokerCounter:
    """Counts what a broker appended to its logs, by partition and window; goes on after a restart (invariants above).

    The broker calls `loaded`, `appended` and `removed` (it is the broker's observer).
    """

    def __init__(self, cluster: str, window_ms: int, checkpoints: CheckpointStore, clock: Clock) -> None:
        self._cluster = cluster
        self._window_ms = window_ms
        self._checkpoints = checkpoints
        self._clock = clock
        self._logs: dict[TopicPartition, _LogCounts] = {}

    def loaded(
        self,
        topic_partition: TopicPartition,
        log_start_offset: Offset,
        log_end_offset: Offset,
        headers_from: Callable[[Offset], Iterator[BatchHeader]],
    ) -> None:
        """A log was opened: count what the checkpoint does not hold yet."""
        if not is_audited(topic_partition.topic):
            return
        saved = self._checkpoints.read(topic_partition)
        # A checkpoint past the end means that the log lost its end (power failure): what is left is counted anew.
        if saved is not None and saved.window_ms == self._window_ms and saved.revision <= log_end_offset:
            counts = WindowCounts(self._window_ms, dict(saved.windows))
            log = _LogCounts(saved.generation, saved.revision, counts, is_untold=not saved.windows)
        else:
            generation = max(self._clock(), 0 if saved is None else saved.generation + 1)
            log = _LogCounts(generation, log_start_offset, WindowCounts(self._window_ms), is_untold=True)
            if saved is not None:
                begun = replace(saved, generation=generation, revision=log_start_offset, window_ms=self._window_ms)
                self._checkpoints.write(replace(begun, windows={}))
        self._logs[topic_partition] = log
        if log.up_to < log_end_offset:
            self._count(log, headers_from(Offset(max(log.up_to, log_start_offset))))

    def appended(self, topic_partition: TopicPartition, headers: Sequence[BatchHeader]) -> None:
        """Batches were appended."""
        if is_audited(topic_partition.topic):
            self._count(self._logs[topic_partition], headers)

    def removed(self, topic_partition: TopicPartition) -> None:
        """The partition was deleted; its counts go with it."""
        self._logs.pop(topic_partition, None)

    def take_events(self) -> list[AuditEvent]:
        """An event for each partition with changed windows."""
        events = []
        for partition, log in self._logs.items():
            if log.counts.changed or log.is_untold:
                log.is_untold = False
                source = AuditSource(tier=Tier.BROKER, cluster=self._cluster, partition=partition)
                event = _event(source, log.up_to, self._clock(), log.counts, log.generation)
                is_due = log.appended + len(event.windows) > MAX_APPENDED
                log.whole = replace(event, windows=dict(log.counts.windows)) if is_due else None
                events.append(event)
        return events

    def published(self, events: Sequence[AuditEvent]) -> None:
        """These are in the audit topic: remember how far their logs are counted."""
        for event in events:
            log = self._logs.get(event.source.partition)
            if log is None or log.generation != event.generation:
                continue
            if log.whole is not None:
                log.appended = 0 if self._checkpoints.write(log.whole) else math.inf
                log.whole = None
            elif log.appended < math.inf:
                log.appended += len(event.windows) if self._checkpoints.append(event) else math.inf

    def put_back(self, events: Sequence[AuditEvent]) -> None:
        """These could not be published: take them again next time."""
        for event in events:
            log = self._logs.get(event.source.partition)
            if log is not None and log.generation == event.generation:
                log.counts.changed.update(event.windows)
                log.is_untold = True

    @staticmethod
    def _count(log: _LogCounts, headers: Iterable[BatchHeader]) -> None:
        for header in headers:
            if header.base_offset >= log.up_to:
                log.counts.add(header)
                log.up_to = header.next_offset


def _event(source: AuditSource, revision: int, now_ms: int, counts: WindowCounts, generation: int = 0) -> AuditEvent:
    return AuditEvent(
        source=source,
        generation=generation,
        revision=revision,
        created_ms=now_ms,
        window_ms=counts.window_ms,
        windows=counts.take_changed(),
    )
