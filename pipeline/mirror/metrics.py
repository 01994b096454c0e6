"""Metrics of a mirror."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.mirror.table import SourcePartition

LABELS = ("source", "topic", "partition")


class MirrorMetrics:
    """Counters and gauges by source partition, and a gauge for each source."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, labelnames=LABELS, registry=registry)
        self._bytes = counter("mirror_copied_bytes", "Bytes of batches appended to replicas.")
        self._offsets = counter("mirror_copied_offsets", "Offsets by which replicas moved on.")
        self._failures = counter("mirror_failures", "Times copying a partition failed.")
        gauge = partial(Gauge, registry=registry)
        self._lag = gauge("mirror_lag_offsets", "Offsets by which the replica is behind its source.", LABELS)
        self.count_skipped_table_records = table_records_skipped(registry).inc
        self._up = gauge("mirror_source_up", "1 if the source answered when it was last asked.", LABELS[:1])
        self._group_offsets = Counter(
            "mirror_group_offsets_copied", "Committed offsets written to the hub.", LABELS[:1], registry=registry
        )
        self._group_age = gauge(
            "mirror_group_offsets_age_seconds", "Time since the last round over all groups without errors.", LABELS[:1]
        )

    def count_group_offsets(self, source: str, count: int) -> None:
        """Count committed offsets of groups that were written to the hub."""
        self._group_offsets.labels(source).inc(count)

    def show_group_offsets_age(self, source: str, age_s: Callable[[], float]) -> None:
        """Show the age in seconds of the source's committed offsets at the hub."""
        self._group_age.labels(source).set_function(age_s)

    def set_up(self, source: str, is_up: bool) -> None:
        """Note whether the source cluster answered."""
        self._up.labels(source).set(is_up)

    def count_copied(self, source: SourcePartition, size: int, offsets: int) -> None:
        """Count `size` bytes that were appended, and the `offsets` that the replica advanced."""
        labels = _labels(source)
        self._bytes.labels(*labels).inc(size)
        self._offsets.labels(*labels).inc(max(0, offsets))

    def count_failure(self, source: SourcePartition) -> None:
        """Count a failure of copying, which will be tried again."""
        self._failures.labels(*_labels(source)).inc()

    def set_lag(self, source: SourcePartition, lag: int | None) -> None:
        """Show the lag of a replica; None (not known) leaves the last value."""
        if lag is not None:
            self._lag.labels(*_labels(source)).set(lag)


def table_records_skipped(registry: CollectorRegistry) -> Counter:
    """Return the counter of skipped records, for every reader of the partition table."""
    text = "Records of the partition table that were skipped, because they are no assignments."
    return Counter("mirror_table_records_skipped", text, registry=registry)


def _labels(source: SourcePartition) -> tuple[str, str, str]:
    return source.cluster, source.partition.topic, str(source.partition.partition)
