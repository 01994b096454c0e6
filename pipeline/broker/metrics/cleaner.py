"""Metrics of the log cleaner, named as by Kafka's JMX exporter."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.broker.compaction.cleaner import LogCleaner

_MANAGER = "kafka_log_logcleanermanager"
_CLEANER = "kafka_log_logcleaner"


class CleanerCollector(Collector):
    """Reads the statistics of the cleaner."""

    def __init__(self, cleaner: LogCleaner) -> None:
        self._cleaner = cleaner

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that registration collects nothing."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics, read now."""
        figures = self._cleaner.statistics
        longest_s = max(figures.clean_times_s.values(), default=0.0)
        for name, value, text in (
            (
                f"{_MANAGER}_max_dirty_percent",
                100 * figures.max_dirty_ratio,
                "Percentage of the dirtiest log that is not compacted yet.",
            ),
            (
                f"{_CLEANER}_cleaner_recopy_percent",
                100 * figures.recopy_ratio,
                "Percentage of its bytes that the last compaction kept.",
            ),
            (
                f"{_CLEANER}_max_buffer_utilization_percent",
                100 * figures.map_fill,
                "Percentage of the table of keys that the last compaction filled.",
            ),
            (
                f"{_CLEANER}_max_clean_time_secs",
                longest_s,
                "Seconds of the longest of the last compactions, one of each process.",
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily(
            f"{_CLEANER}_cleanings", "Compactions of logs that were completed.", value=figures.cleanings
        )
        given_up = Counter(str(path) for path in self._cleaner.uncleanable.values())
        family = GaugeMetricFamily(
            f"{_MANAGER}_uncleanable_partitions_count",
            "Partitions of the log dir that are not compacted any more after an error, until the broker restarts.",
            labels=("logdirectory",),
        )
        for path in self._cleaner.log_dirs:
            family.add_metric((str(path),), given_up[str(path)])
        yield family


async def run_with_metrics(cleaner: LogCleaner, metrics: CollectorRegistry) -> None:
    """Clean for ever, with metrics registered meanwhile."""
    collector = CleanerCollector(cleaner)
    metrics.register(collector)
    try:
        await cleaner.run()
    finally:
        metrics.unregister(collector)
