"""Counters of a mirror. Most gauges are computed when they are asked for: see `status.py`."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pipeline.mirror.journals.table import SourcePartition
from pipeline.net.http.exposition import with_samples

LABELS = ("source", "topic", "partition")


class MirrorMetrics(Collector):
    """Counters by source partition, and the registry that gauges join."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._counts: dict[tuple[str, str, str], _Counts] = defaultdict(_Counts)
        registry.register(self)
        self.count_skipped_table_records = table_records_skipped(registry).inc
        self._recompressed = Counter(
            "mirror_recompressed_bytes",
            "Bytes of batches that were recompressed, as fetched.",
            LABELS[:1],
            registry=registry,
        )
        self._recompressed_to = Counter(
            "mirror_recompressed_to_bytes", "Bytes of the same batches, as appended.", LABELS[:1], registry=registry
        )
        self._not_recompressed = Counter(
            "mirror_batches_not_opened",
            "Batches that could not be opened to be recompressed.",
            LABELS[:1],
            registry=registry,
        )
        self._group_offsets = Counter(
            "mirror_group_offsets_copied",
            "Committed offsets of groups that were written to the hub.",
            LABELS[:1],
            registry=registry,
        )
        self._group_age = Gauge(
            "mirror_group_offsets_age_seconds",
            "Time since the beginning of the last round over all groups without errors.",
            LABELS[:1],
            registry=registry,
        )

    def count_recompressed(self, source: str, before_bytes: int, after_bytes: int, not_opened: int) -> None:
        """Count bytes of recompressed batches, and batches that could not be opened."""
        self._recompressed.labels(source).inc(before_bytes)
        self._recompressed_to.labels(source).inc(after_bytes)
        self._not_recompressed.labels(source).inc(not_opened)

    def count_group_offsets(self, source: str, count: int) -> None:
        """Count committed offsets of groups that were written to the hub."""
        self._group_offsets.labels(source).inc(count)

    def show_group_offsets_age(self, source: str, age_s: Callable[[], float]) -> None:
        """Show the age in seconds of the source's committed offsets at the hub."""
        self._group_age.labels(source).set_function(age_s)

    def forget_group_offsets_age(self, source: str) -> None:
        """Show no age of committed offsets of a source any more."""
        with suppress(KeyError):
            self._group_age.remove(source)

    def count_copied(self, source: SourcePartition, size: int, offsets: int) -> None:
        """Count `size` bytes that were appended, and the `offsets` that the replica advanced."""
        counts = self._counts[labels_of(source)]
        counts.bytes += size
        counts.offsets += max(0, offsets)

    def count_failure(self, source: SourcePartition) -> None:
        """Count a failure of copying, which will be tried again."""
        self._counts[labels_of(source)].failures += 1

    def describe(self) -> list[Metric]:
        """Return no names: nothing is counted yet when the registry asks."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the counters by partition."""
        counts = list(self._counts.items())
        size = CounterMetricFamily("mirror_copied_bytes", "Bytes of batches that were copied, as the source sent them.")
        offsets = CounterMetricFamily("mirror_copied_offsets", "Offsets by which the replica's end moved on.")
        failures = CounterMetricFamily(
            "mirror_failures", "Times that copying the partition failed, and was tried again."
        )
        yield by_partition(size, "_total", ((labels, each.bytes) for labels, each in counts))
        yield by_partition(offsets, "_total", ((labels, each.offsets) for labels, each in counts))
        yield by_partition(failures, "_total", ((labels, each.failures) for labels, each in counts))


@dataclass(slots=True)
class _Counts:
    bytes: int = 0
    offsets: int = 0
    failures: int = 0


def by_partition(family: Metric, suffix: str, values: Iterable[tuple[tuple[str, str, str], float]]) -> Metric:
    """Return the family with a value for each tuple of `LABELS`, made as it is read: there may be 10,000 partitions."""
    name = family.name + suffix
    return with_samples(
        family, (Sample(name, dict(zip(LABELS, labels, strict=True)), value) for labels, value in values)
    )


def table_records_skipped(registry: CollectorRegistry) -> Counter:
    """Return the counter of skipped records, for every reader of the partition table."""
    text = "Records of the partition table that were skipped, because they are no assignments."
    return Counter("mirror_table_records_skipped", text, registry=registry)


def labels_of(source: SourcePartition) -> tuple[str, str, str]:
    """Return the values of `LABELS` for a source partition."""
    return source.cluster, source.partition.topic, str(source.partition.partition)
