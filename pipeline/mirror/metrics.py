"""Counters of a mirror. Most gauges are computed when they are asked for: see `status.py`."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from pipeline.mirror.table import SourcePartition

LABELS = ("source", "topic", "partition")


class MirrorMetrics:
    """Counters by source partition, and the registry that gauges join."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        counter = partial(Counter, labelnames=LABELS, registry=registry)
        self._bytes = counter("mirror_copied_bytes", "Bytes of batches appended to replicas.")
        self._offsets = counter("mirror_copied_offsets", "Offsets by which replicas moved on.")
        self._failures = counter("mirror_failures", "Times copying a partition failed.")
        self.count_skipped_table_records = table_records_skipped(registry).inc
        self._group_offsets = Counter(
            "mirror_group_offsets_copied", "Committed offsets written to the hub.", LABELS[:1], registry=registry
        )
        self._group_age = Gauge(
            "mirror_group_offsets_age_seconds",
            "Time since the last round over all groups without errors.",
            LABELS[:1],
            registry=registry,
        )

    def count_group_offsets(self, source: str, count: int) -> None:
        """Count committed offsets of groups that were written to the hub."""
        self._group_offsets.labels(source).inc(count)

    def show_group_offsets_age(self, source: str, age_s: Callable[[], float]) -> None:
        """Show the age in seconds of the source's committed offsets at the hub."""
        self._group_age.labels(source).set_function(age_s)

    def count_copied(self, source: SourcePartition, size: int, offsets: int) -> None:
        """Count `size` bytes that were appended, and the `offsets` that the replica advanced."""
        labels = labels_of(source)
        self._bytes.labels(*labels).inc(size)
        self._offsets.labels(*labels).inc(max(0, offsets))

    def count_failure(self, source: SourcePartition) -> None:
        """Count a failure of copying, which will be tried again."""
        self._failures.labels(*labels_of(source)).inc()


def table_records_skipped(registry: CollectorRegistry) -> Counter:
    """Return the counter of skipped records, for every reader of the partition table."""
    text = "Records of the partition table that were skipped, because they are no assignments."
    return Counter("mirror_table_records_skipped", text, registry=registry)


def labels_of(source: SourcePartition) -> tuple[str, str, str]:
    """Return the values of `LABELS` for a source partition."""
    return source.cluster, source.partition.topic, str(source.partition.partition)
