"""CountedLatencies by tier, cluster, topic and window: cumulative sketches of all processes, merged. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier

MAX_LATENCY_WINDOWS = 144
"""Windows kept for each topic of a counter, the newest: a day of ten minutes."""

Buckets = tuple[tuple[int, int], ...]


class LatencySeries(NamedTuple):
    """Counters of one tier and cluster, and a topic."""

    tier: Tier
    cluster: str
    name: str
    topic: str


class CountedLatencies:
    """Newest buckets of each process, by window."""

    def __init__(self) -> None:
        self._windows: dict[LatencySeries, dict[int, dict[str, Buckets]]] = defaultdict(dict)

    def take(self, report: CountReport) -> None:
        """Take in the latencies of a report. Counts of a process are cumulative: those with more records hold."""
        for each in report.latencies:
            counter = report.counter
            series = LatencySeries(counter.tier, counter.cluster, counter.name, report.topics[each.topic].name)
            windows = self._windows[series]
            if each.start_ms not in windows and len(windows) >= MAX_LATENCY_WINDOWS:
                oldest = min(windows)
                if each.start_ms < oldest:
                    continue
                del windows[oldest]
            processes = windows.setdefault(each.start_ms, {})
            known = processes.get(each.process, ())
            if (_records(each.buckets), each.buckets) > (_records(known), known):
                processes[each.process] = each.buckets

    def series(self, topic: str) -> list[LatencySeries]:
        """Return the counters that reported latencies of a topic, sorted."""
        return sorted(series for series in self._windows if series.topic == topic)

    def all_series(self) -> list[LatencySeries]:
        """Return all counters that reported latencies, sorted."""
        return sorted(self._windows)

    def newest_window(self, series: LatencySeries) -> Sequence[Buckets]:
        """Return the buckets of each process in the newest window, to be merged."""
        windows = self._windows.get(series)
        return list(windows[max(windows)].values()) if windows else []

    def windows(self, series: LatencySeries) -> Iterator[tuple[int, Sequence[Buckets]]]:
        """Return for each window, oldest first, the buckets of each process, to be merged."""
        for start_ms, processes in sorted(self._windows.get(series, {}).items()):
            yield start_ms, [processes[name] for name in sorted(processes)]


def _records(buckets: Buckets) -> int:
    return sum(records for _, records in buckets)
