"""All that the tiers reported, and sums over it. A value: `apply` events in any order, any number of times."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.audit.message import AuditEvent, AuditSource, Tier
from pipeline.audit.window import NOTHING, Counts, window_start
from pipeline.model import TopicPartition


@dataclass(frozen=True, slots=True)
class WindowReport:
    """Counts of a span of time, and the revision and time (ms) of the last event that changed them."""

    counts: Counts = NOTHING
    revision: int = -1
    created_ms: int = 0

    def __add__(self, other: "WindowReport") -> "WindowReport":
        return WindowReport(
            self.counts + other.counts, max(self.revision, other.revision), max(self.created_ms, other.created_ms)
        )


UNREPORTED = WindowReport()


@dataclass(slots=True)
class _Reports:
    generation: int
    revision: int = -1
    created_ms: int = 0
    windows: dict[int, WindowReport] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TierCounts:
    """What one tier counted of one partition, by window, and up to which revision it has counted in all."""

    windows: Mapping[int, WindowReport]
    revision: int
    created_ms: int
    """When it last told of anything."""

    def at(self, start: int) -> WindowReport:
        """The report of the window that begins at `start`; nothing when there is none."""
        return self.windows.get(start, UNREPORTED)


NEVER_REPORTED = TierCounts({}, -1, 0)


class Ledger:
    """The reports of all sources. Of a source's highest generation, the highest revision of each window holds."""

    def __init__(self) -> None:
        self._reports: dict[TopicPartition, dict[AuditSource, _Reports]] = defaultdict(dict)

    def apply(self, event: AuditEvent) -> None:
        """Take one event in (message.py, B and C)."""
        sources = self._reports[event.source.partition]
        reports = sources.get(event.source)
        if reports is None or reports.generation < event.generation:
            reports = sources[event.source] = _Reports(event.generation)
        if reports.generation > event.generation:
            return
        reports.revision = max(reports.revision, event.revision)
        reports.created_ms = max(reports.created_ms, event.created_ms)
        for start, counts in event.windows.items():
            known = reports.windows.get(start)
            if known is None or event.revision >= known.revision:
                reports.windows[start] = WindowReport(counts, event.revision, event.created_ms)

    def partitions(self, cluster: str, tier: Tier) -> list[TopicPartition]:
        """The partitions of which this tier of this cluster reported something, in order."""
        return sorted(
            partition
            for partition, sources in self._reports.items()
            if any(source.cluster == cluster and source.tier is tier for source in sources)
        )

    def counts(self, cluster: str, tier: Tier, partition: TopicPartition, group_ms: int) -> TierCounts | None:
        """What this tier counted, its windows put together to spans of `group_ms`; None when it never reported."""
        chosen = [
            reports
            for source, reports in self._reports.get(partition, {}).items()
            if source.cluster == cluster and source.tier is tier
        ]
        if not chosen:
            return None
        windows: dict[int, WindowReport] = {}
        for reports in chosen:
            for start, report in reports.windows.items():
                group = window_start(start, group_ms)
                windows[group] = windows.get(group, UNREPORTED) + report
        return TierCounts(
            windows, max(reports.revision for reports in chosen), max(reports.created_ms for reports in chosen)
        )
