"""Counts the batches that brokers acknowledged to one producer: batch headers in, monitoring events out. No I/O."""

from collections.abc import Sequence

from pipeline.audit.message import AuditEvent, AuditSource, Tier, is_audited
from pipeline.audit.window_counts import WindowCounts
from pipeline.model import Clock, TopicPartition
from pipeline.records.batch import BatchHeader


class ProducerCounter:
    """Counts acknowledged batches by partition and window."""

    def __init__(self, cluster: str, instance: str, window_ms: int, clock: Clock) -> None:
        self._cluster = cluster
        self._instance = instance
        self._window_ms = window_ms
        self._clock = clock
        self._partitions: dict[TopicPartition, WindowCounts] = {}
        self._sequence = 0

    def delivered(self, partition: TopicPartition, header: BatchHeader) -> None:
        """Count one acknowledged batch."""
        if is_audited(partition.topic):
            self._partitions.setdefault(partition, WindowCounts(self._window_ms)).add(header)

    def take_events(self) -> list[AuditEvent]:
        """Return an event for each partition with changed windows."""
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
        """Do nothing: counts of a producer are kept in memory alone."""

    def put_back(self, events: Sequence[AuditEvent]) -> None:
        """Take these events, which could not be published, again next time."""
        for event in events:
            self._partitions[event.source.partition].changed.update(event.windows)
