"""Reports of all tiers and sums over them. Pure: events may be applied in any order, any number of times."""

from bisect import insort
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.audit.message import AuditEvent, AuditSource, EpochClaim, Tier
from pipeline.model import TopicPartition
from pipeline.records.tally import NOTHING, Counts, window_start


@dataclass(frozen=True, slots=True)
class WindowReport:
    """Counts of a span of time, and the revision and time (ms) of the last event that changed them.

    `quarantined` records of it are in the quarantine of a load, and not among its counts.
    """

    counts: Counts = NOTHING
    revision: int = -1
    created_ms: int = 0
    quarantined: int = 0

    def __add__(self, other: "WindowReport") -> "WindowReport":
        return WindowReport(
            self.counts + other.counts,
            max(self.revision, other.revision),
            max(self.created_ms, other.created_ms),
            self.quarantined + other.quarantined,
        )


UNREPORTED = WindowReport()


@dataclass(slots=True)
class _Reports:
    """Reports of one source. `claims` holds those that void more than all others, rising in epoch and offset."""

    revision: int = -1
    leader_epoch: int = 0
    created_ms: int = 0
    lost_offsets: int = 0
    windows: dict[int, WindowReport] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """Leader epoch of the report by window start."""
    claims: list[EpochClaim] = field(default_factory=list)

    def claim(self, claim: EpochClaim) -> None:
        """Take in that an epoch began at an offset: forget reports of lower epochs beyond the offset (invariant C)."""
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
        """True if a leader of a later epoch went on from an offset below `revision`."""
        for claim in reversed(self.claims):
            if claim.leader_epoch <= leader_epoch:
                return False
            if claim.start_offset < revision:
                return True
        return False


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Counts of one tier for one partition, by window, and the revision up to which it has counted in all."""

    windows: Mapping[int, WindowReport]
    revision: int
    created_ms: int
    """Time of the last report of any window."""
    lost_offsets: int = 0
    """Of a load: offsets that were deleted before they could be loaded."""

    def at(self, start: int) -> WindowReport:
        """Return the report of the window that begins at `start`; UNREPORTED if there is none."""
        return self.windows.get(start, UNREPORTED)


NEVER_REPORTED = TierCounts({}, -1, 0)


class Ledger:
    """Reports of all sources: for each window the one that holds (invariants B to D of message.py)."""

    def __init__(self) -> None:
        self._reports: dict[TopicPartition, dict[AuditSource, _Reports]] = defaultdict(dict)

    def apply(self, event: AuditEvent) -> None:
        """Apply one event."""
        reports = self._reports[event.source.partition].setdefault(event.source, _Reports())
        reports.created_ms = max(reports.created_ms, event.created_ms)
        for claim in event.claims:
            reports.claim(claim)
        if reports.is_void(event.leader_epoch, event.revision):
            return
        if event.revision >= reports.revision:
            reports.revision, reports.leader_epoch = event.revision, event.leader_epoch
            reports.lost_offsets = event.lost_offsets
        for start, counts in event.windows.items():
            report = WindowReport(counts, event.revision, event.created_ms, event.quarantined.get(start, 0))
            if _holds(event, report, reports.windows.get(start)):
                reports.windows[start] = report
                reports.epochs[start] = event.leader_epoch

    def partitions(self, cluster: str, tier: Tier) -> list[TopicPartition]:
        """Return the partitions that this tier of this cluster reported, sorted."""
        return sorted(
            partition
            for partition, sources in self._reports.items()
            if any(source.cluster == cluster and source.tier is tier for source in sources)
        )

    def counts(self, cluster: str, tier: Tier, partition: TopicPartition, group_ms: int) -> TierCounts | None:
        """Return the counts of this tier, windows summed up to spans of `group_ms`; None if it never reported."""
        chosen = [
            reports
            for source, reports in self._reports.get(partition, {}).items()
            if source.cluster == cluster and source.tier is tier
        ]
        if not chosen:
            return None
        if tier is Tier.BROKER:
            chosen = [max(chosen, key=lambda reports: reports.created_ms)]  # invariant D
        windows: dict[int, WindowReport] = {}
        for reports in chosen:
            for start, report in reports.windows.items():
                group = window_start(start, group_ms)
                windows[group] = windows.get(group, UNREPORTED) + report
        return TierCounts(
            windows,
            max(reports.revision for reports in chosen),
            max(reports.created_ms for reports in chosen),
            sum(reports.lost_offsets for reports in chosen),
        )


def _holds(event: AuditEvent, report: WindowReport, known: WindowReport | None) -> bool:
    """True if the event replaces the known report of a window (invariant B)."""
    if known is None:
        return True
    counts = report.counts
    if event.source.tier is Tier.BROKER and counts.records != known.counts.records:
        return counts.records > known.counts.records
    is_other = (counts, report.quarantined) != (known.counts, known.quarantined)
    return is_other and event.revision >= known.revision
