"""Rules of the audit's word on a simulated site. Pure.

1. No hour is exact before it is over, nor while a record that was acknowledged before its end has not arrived at the
   hub, unless the ledger of gaps names it.
2. At the end, an hour of which nothing was lost or changed is no difference, and nothing is pending. An hour that is
   not exact then names a witness, and there is a reason why somebody's word is missing: among others, that brokers of
   the source had batches of the hour, and lost them; or that a broker's clock is wrong, if a witness says so.
3. At the end, an hour that lost records is neither exact nor explained away.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.audit.collecting.clocks import LATE_MS, TOLERANCE_MS
from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from pipeline.testing.simulation.mirrors.journals import SourceName
from pipeline.testing.simulation.mirrors.logs import BatchIdentity, Explained

MARGIN_MS = 1_000
"""More than honest wall clocks differ, and more than it takes an outsider to learn of an acknowledgement."""
MAX_TOLD = 5
COUNTER_OF = "counter of "
"""Begins the name of the witness for a broker's counter."""
CLOCK_OF = "clock of "
"""Begins the name of the witness for the clocks of a cluster."""


def is_wrong_clock(error_ms: int) -> bool:
    """Return whether the audit may name a clock that is ahead by so much, or (below 0) behind."""
    return error_ms > TOLERANCE_MS or error_ms < -LATE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBatch:
    """A batch that a producer was told of, or that is in the log of the source at the end."""

    source: SourceName
    batch: BatchIdentity
    hour_ms: int
    records: int
    acknowledged_ms: int | None
    """Wall time at which all of it was known to be acknowledged; None if that never was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMoment:
    """A moment at which an hour was found exact."""

    topic: str
    hour_ms: int
    time_s: float
    wall_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTruth:
    """Truth about one source partition at the end."""

    kept: Sequence[KnownBatch]
    """Batches of the source's log."""
    kept_as_sent: frozenset[BatchIdentity]
    """The same, by the checksums that they had when they were sent: mirrors may recompress."""
    promised: Sequence[KnownBatch]
    """Batches that were acknowledged to producers that count, by the checksums that they had when they were sent."""
    start: int
    """Highest log start offset that the source ever had."""
    replica: Sequence[KnownBatch]
    """Batches of the replica's log."""
    arrived_s: Mapping[BatchIdentity, float]
    """Time at which the hub first had a batch."""
    explained: Explained
    lost_hours: frozenset[int] = frozenset()
    """Hours of batches that brokers of the source had and lost, acknowledged or not, of whichever producer."""
    is_as_sent: bool = True
    """False if mirrors may recompress, so that batches of the hub have other checksums."""


def moment_problems(moments: Sequence[ExactMoment], truths: Mapping[SourceName, SourceTruth]) -> Iterator[str]:
    """Yield what was missing when an hour was found exact (rule 1)."""
    for moment in moments:
        hour_end_ms, name = moment.hour_ms + HOUR_MS, f"{moment.topic}, hour {moment.hour_ms}"
        if moment.wall_ms < hour_end_ms:
            yield f"{name} was exact {hour_end_ms - moment.wall_ms} ms before it was over"
        for source, truth in truths.items():
            if source.partition.topic != moment.topic:
                continue
            promised = truth.promised if truth.is_as_sent else ()
            for known in (*truth.kept, *promised):
                acknowledged_ms = known.acknowledged_ms
                if known.hour_ms != moment.hour_ms or acknowledged_ms is None:
                    continue
                is_due = acknowledged_ms < min(hour_end_ms, moment.wall_ms) - MARGIN_MS
                if is_due and not _has_arrived(known, truth, moment.time_s):
                    yield f"{name} was exact at {moment.time_s:.2f} s, when {known} had not arrived at the hub"


def _has_arrived(known: KnownBatch, truth: SourceTruth, time_s: float) -> bool:
    batch = known.batch
    first = max(batch.base_offset, truth.start)
    arrived = truth.arrived_s.get(batch)
    return (arrived is not None and arrived <= time_s) or truth.explained.covers(first, batch.last_offset)


def lost_records(truths: Mapping[SourceName, SourceTruth]) -> Mapping[tuple[str, int], int]:
    """Return the records by topic and hour that were acknowledged to producers that count and are not in the source."""
    lost: dict[tuple[str, int], int] = {}
    for source, truth in truths.items():
        for known in truth.promised:
            if known.batch not in truth.kept_as_sent and known.batch.last_offset >= truth.start:
                place = source.partition.topic, known.hour_ms
                lost[place] = lost.get(place, 0) + known.records
    return lost


def differing_records(truths: Mapping[SourceName, SourceTruth]) -> Mapping[tuple[str, int], int]:
    """Return the records by topic and hour that only the source or only the replica has, and no gap explains."""
    found: dict[tuple[str, int], int] = {}
    for source, truth in truths.items():
        ours, theirs = ({known.batch for known in some} for some in (truth.replica, truth.kept))
        only = [known for known in truth.kept if known.batch not in ours]
        only += [
            known for known in truth.replica if known.batch not in theirs and known.batch.last_offset >= truth.start
        ]
        for known in only:
            place = source.partition.topic, known.hour_ms
            first = max(known.batch.base_offset, truth.start)
            if not truth.explained.covers(first, known.batch.last_offset):
                found[place] = found.get(place, 0) + known.records
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRules:
    """Rules 2 and 3, for a site with or without reasons for missing witnesses."""

    may_explain: bool
    """True if the ledger has gaps, records were deleted, or producers do not know what became of records."""
    may_recompress: bool
    reasons: Sequence[str]
    """Reasons why a witness may be missing: producers that were killed, outcomes that nobody knows."""
    deleted: frozenset[str] = frozenset()
    """Topics that were deleted and created again: what became of the former ones is not compared."""
    shortened: frozenset[tuple[str | None, TopicPartition | None]] = frozenset()
    """Clusters and partitions whose first records were deleted, perhaps before a counter had reported them."""
    wrong_clocks: frozenset[str | None] = frozenset()
    """Clusters with a broker whose clock is wrong by more than the audit tolerates (`is_wrong_clock`)."""

    def problems(self, hours: Sequence[AuditedHour], truths: Mapping[SourceName, SourceTruth]) -> Iterator[str]:
        """Yield what is wrong with the verdicts at the end."""
        lost, differing = lost_records(truths), differing_records(truths)
        had_more = {(source.partition.topic, each) for source, truth in truths.items() for each in truth.lost_hours}
        for hour in hours:
            place = hour.topic, hour.hour_ms
            name = f"{hour.topic}, hour {hour.hour_ms}: {hour.status}"
            told = "; ".join([*(one.text for one in hour.findings), *map(str, hour.missing_witnesses)][:MAX_TOLD])
            if place in lost or place in differing:
                if hour.status in (Status.EXACT, Status.RECOMPRESSED, Status.EXPLAINED, Status.PENDING):
                    yield f"{name}, but {lost.get(place, 0)} records were lost, {differing.get(place, 0)} differ"
            elif hour.status is Status.PENDING:
                yield f"{name} at the end: {told}"
            elif not self._is_allowed(hour) and not (hour.status is Status.UNKNOWN and place in had_more):
                yield f"{name}, and nothing was lost: {told}"
            if hour.status is Status.UNKNOWN and not hour.missing_witnesses:
                yield f"{name}, and no witness is named"
        judged = {(hour.topic, hour.hour_ms) for hour in hours}
        written = {(known.source.partition.topic, known.hour_ms) for truth in truths.values() for known in truth.kept}
        for topic, hour_ms in sorted(written - judged):
            yield f"{topic}, hour {hour_ms}: has records, and no verdict"

    def _is_allowed(self, hour: AuditedHour) -> bool:
        match hour.status:
            case Status.EXACT:
                return True
            case Status.RECOMPRESSED:
                return self.may_recompress
            case Status.EXPLAINED:
                return self.may_explain
            case Status.UNKNOWN:
                if self.reasons or hour.topic in self.deleted or self._names_wrong_clock(hour):
                    return True
                return self._lacks_deleted_records_alone(hour)
            case _:
                return False

    def _names_wrong_clock(self, hour: AuditedHour) -> bool:
        """True if a witness is the clock of a cluster, and it is wrong indeed."""
        return any(
            witness.name.startswith(CLOCK_OF) and witness.cluster in self.wrong_clocks
            for witness in hour.missing_witnesses
        )

    def _lacks_deleted_records_alone(self, hour: AuditedHour) -> bool:
        """True if no word is missing but that of counters of partitions whose first records were deleted."""
        return all(
            witness.name.startswith(COUNTER_OF) and (witness.cluster, witness.partition) in self.shortened
            for witness in hour.missing_witnesses
        )
