"""All that the tiers reported, and sums over it. A value: `apply` events in any order, any number of times."""

from bisect import insort
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.audit.message import AuditEvent, AuditSource, EpochClaim, Tier
from pipeline.model import TopicPartition
from pipeline.records.tally import NOTHING, Counts, window_start


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
    """What one source told. `claims`: those that say something which no other says, rising in epoch and offset."""

    revision: int = -1
    leader_epoch: int = 0
    created_ms: int = 0
    windows: dict[int, WindowReport] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """Window start to the leader epoch in which its report was told."""
    claims: list[EpochClaim] = field(default_factory=list)

    def claim(self, claim: EpochClaim) -> None:
        """An epoch began there: forget what was told beyond it of lower ones."""
        if self.is_void(claim.leader_epoch - 1, claim.start_offset + 1):
            return
        epoch, start_offset = claim
        self.claims = [
            known for known in self.claims if known.leader_epoch > epoch or known.start_offset < start_offset
        ]
        insort(self.claims, claim)
        for start in [start for start, report in self.windows.items() if report.revision > start_offset]:
            if self.epochs[start] < epoch:
                del self.windows[start], self.epochs[start]
        if self.leader_epoch < epoch and self.revision > start_offset:
            self.revision = start_offset

    def is_void(self, leader_epoch: int, revision: int) -> bool:
        """Whether somebody who leads after that epoch went on from before there."""
        for claim in reversed(self.claims):
            if claim.leader_epoch <= leader_epoch:
                return False
            if claim.start_offset < revision:
                return True
        return False


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
    """The reports of all sources, of each window the one that holds (message.py, B to D)."""

    def __init__(self) -> None:
        self._reports: dict[TopicPartition, dict[AuditSource, _Reports]] = defaultdict(dict)

    def apply(self, event: AuditEvent) -> None:
        """Take one event in."""
        reports = self._reports[event.source.partition].setdefault(event.source, _Reports())
        reports.created_ms = max(reports.created_ms, event.created_ms)
        for claim in event.claims:
            reports.claim(claim)
        if reports.is_void(event.leader_epoch, event.revision):
            return
        if event.revision >= reports.revision:
            reports.revision, reports.leader_epoch = event.revision, event.leader_epoch
        for start, counts in event.windows.items():
            if _holds(event, counts, reports.windows.get(start)):
                reports.windows[start] = WindowReport(counts, event.revision, event.created_ms)
                reports.epochs[start] = event.leader_epoch

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
        if tier is Tier.BROKER:
            chosen = [max(chosen, key=lambda reports: reports.created_ms)]
        windows: dict[int, WindowReport] = {}
        for reports in chosen:
            for start, report in reports.windows.items():
                group = window_start(start, group_ms)
                windows[group] = windows.get(group, UNREPORTED) + report
        return TierCounts(
            windows, max(reports.revision for reports in chosen), max(reports.created_ms for reports in chosen)
        )


def _holds(event: AuditEvent, counts: Counts, known: WindowReport | None) -> bool:
    """Whether what the event says of a window is newer than what is known of it."""
    if known is None:
        return True
    if event.source.tier is Tier.BROKER and counts.records != known.counts.records:
        return counts.records > known.counts.records
    return counts != known.counts and event.revision >= known.revision
