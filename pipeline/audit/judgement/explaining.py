"""Explanations of missing records: offsets that the mirror, a load or a group rightly left out. Pure.

An explanation holds for a partition if what is missing in each hour lies within the explained offsets, and all hours
that share these offsets lack at most as many records together. With one record more, all of them stay missing.
The log start offset of a cluster explains nothing by itself: a record may have been lost before retention deleted it.
It explains what a consumer group lacks that began to count at a higher offset.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

import numpy as np

from pipeline.audit.events.report import OLDER, Rows, SkippedOffsets, SkipReason
from pipeline.audit.judgement.cells import StageCells, rows_of
from pipeline.audit.judgement.edges import Edge
from pipeline.audit.judgement.group_runs import doubted
from pipeline.audit.judgement.hour_cells import HourCells
from pipeline.audit.judgement.joined_hours import is_by_record
from pipeline.audit.judgement.verdicts import Explanation, Finding, OffsetSpan, Status
from pipeline.audit.ledger.keys import LIFE_BITS
from pipeline.audit.ledger.row_table import ABSENT
from pipeline.records.tally import HOUR_MS, window_start

SKIP_EXPLANATIONS: Final = {
    SkipReason.LOST: Explanation.SKIPPED,
    SkipReason.ABORTED: Explanation.ABORTED,
    SkipReason.COMPACTED: Explanation.COMPACTION,
}


class HasFinding(Protocol):
    """A cell whose stages differ."""

    @property
    def finding(self) -> Finding:
        """Return the finding."""

    @property
    def place(self) -> int:
        """Return the place of the cell in the hour."""


SuspectT = TypeVar("SuspectT", bound=HasFinding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Offsets of which at most `records` records may be missing. `hour_ms` is None if they may be of any hour."""

    span: OffsetSpan
    records: int
    hour_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Lack:
    """Records that a stage lacks of one hour of a partition."""

    hour_ms: int
    first: int
    last: int
    records: int
    until_ms: int | None = None
    """Of OLDER: the end of the hours."""

    def has(self, hour_ms: int | None) -> bool:
        """True if records of an hour are among these; None stands for any hour."""
        if hour_ms is None or self.until_ms is None:
            return hour_ms in (None, self.hour_ms)
        return hour_ms < self.until_ms


def explained(
    hour: HourCells, edge: Edge, suspects: Sequence[SuspectT], explain: Callable[[SuspectT, Finding], SuspectT]
) -> list[SuspectT]:
    """Return suspects, with those explained that are missing for a known reason."""
    result = []
    for each in suspects:
        reason = _reason(hour, edge, each.place) if each.finding.status is Status.MISSING else None
        if reason is not None:
            finding = replace(each.finding, status=Status.EXPLAINED, kind=None, explanation=reason)
            each = explain(each, finding)
        elif edge.at.stage.tier == "consumed":
            by_record = is_by_record(edge.at, each.place)
            each = explain(each, doubted(edge.at, each.place, each.finding, by_record=by_record))
        result.append(each)
    return result


def _reason(hour: HourCells, edge: Edge, place: int) -> Explanation | None:
    tier = edge.at.stage.tier
    if tier in ("live", "stored"):
        return None
    way = hour.words.way
    if tier == "replica":
        gaps = way.gaps.get(int(hour.cells[place]), ())
        spans = [Allowance(span=gap, records=gap.last - gap.first + 1) for gap in gaps]
        if _fits(hour, edge, place, spans):
            return Explanation.GAP
    if tier == "loaded":
        reason = _reason_of_load(hour, edge, place)
        if reason is not None:
            return reason
    if tier == "consumed":
        start = _group_began(edge.at, place)
        log_start = int(edge.before.progress["start_offset"][place])
        allowance = Allowance(span=OffsetSpan(first=0, last=start - 1), records=start)
        if start > 0 and _fits(hour, edge, place, [allowance]):
            return Explanation.RETENTION if log_start >= start else Explanation.SKIPPED
    is_compacted = int(hour.topics[place]) in way.compacted and _may_be_compacted(hour, edge, place)
    return Explanation.COMPACTION if is_compacted else None


def _may_be_compacted(hour: HourCells, edge: Edge, place: int) -> bool:
    """True unless brokers say that their logs still have as many records of the hour as are missing now."""
    brokers = [stage for stage in (edge.before, edge.at) if stage.stage.tier in ("live", "replica")]
    known = [int(stage.progress["cleaned_to"][place]) for stage in brokers]
    if 0 in known or edge.before.rows["first_offset"][place] < 0:
        return True
    end = max(known, default=1) - 1
    return _fits(hour, edge, place, [Allowance(span=OffsetSpan(first=0, last=end - 1), records=end)] if end else [])


def _reason_of_load(hour: HourCells, edge: Edge, place: int) -> Explanation | None:
    """Return why a load lacks records: ranges that it skipped, offsets before its first one, or lost offsets."""
    cell = int(edge.at.cells[place])
    facts = [fact for series in edge.at.series for fact in series.skipped.get(cell, ())]
    allowances = [_allowance(fact) for fact in facts]
    start = int(edge.at.progress["start_offset"][place])
    if start > 0:
        allowances.append(Allowance(span=OffsetSpan(first=0, last=start - 1), records=start))
    lacks = list(_lacks(hour, edge, place))
    if _fits(hour, edge, place, allowances):
        (mine_lacks,) = (lack for lack in lacks if lack.hour_ms == hour.hour_ms)
        mine = [fact for fact, each in zip(facts, allowances, strict=False) if mine_lacks.has(each.hour_ms)]
        reasons = {SKIP_EXPLANATIONS.get(SkipReason(fact.reason), Explanation.SKIPPED) for fact in mine if _known(fact)}
        return reasons.pop() if len(reasons) == 1 else Explanation.SKIPPED
    lost = int(edge.at.progress["lost_offsets"][place])
    if not facts and lost > 0 and lost == sum(lack.records for lack in lacks):
        return Explanation.SKIPPED
    return None


def _known(fact: SkippedOffsets) -> bool:
    return fact.reason in list(SkipReason)


def _allowance(fact: SkippedOffsets) -> Allowance:
    hour_ms = None if fact.start_ms is None else window_start(fact.start_ms, HOUR_MS)
    size = fact.last - fact.first + 1
    return Allowance(
        span=OffsetSpan(first=fact.first, last=fact.last), records=max(0, min(size, fact.records)), hour_ms=hour_ms
    )


def _group_began(stage: StageCells, place: int) -> int:
    """Return the lowest offset from which a member of the group counted a partition; 0 if it is not known."""
    cell = int(stage.cells[place])
    starts = []
    for series in stage.series:
        keys = series.positions.keys
        low, high = np.searchsorted(keys, [cell << LIFE_BITS, (cell + 1) << LIFE_BITS])
        starts += [series.positions.began_at(key) for key in keys[low:high].tolist()]
    return min(starts, default=0)


def _fits(hour: HourCells, edge: Edge, place: int, allowances: Sequence[Allowance]) -> bool:
    """True if these offsets explain all that the stage lacks in an hour, and in the hours that share the offsets."""
    if not allowances:
        return False
    lacks = list(_lacks(hour, edge, place))
    mine = [lack for lack in lacks if lack.hour_ms == hour.hour_ms]
    if not mine or mine[0].records > _allowed(allowances, mine[0]):
        return False
    of_any_hour = [each for each in allowances if each.hour_ms is None]
    owed = 0
    for lack in lacks:
        allowed = _allowed(allowances, lack)
        own = _allowed([each for each in allowances if each.hour_ms is not None], lack)
        if 0 < lack.records <= allowed:
            owed += max(0, lack.records - own)
    return owed <= _size(of_any_hour)


def _allowed(allowances: Iterable[Allowance], lack: _Lack) -> int:
    """Return how many records of an hour may be missing."""
    counted: list[OffsetSpan] = []
    allowed = 0
    for each in allowances:
        if not lack.has(each.hour_ms):
            continue
        first, last = max(each.span.first, lack.first), min(each.span.last, lack.last)
        if first > last:
            continue
        taken = overlap(joined_spans(counted), first, last)
        allowed += min(each.records, last - first + 1 - taken)
        counted.append(OffsetSpan(first=first, last=last))
    return allowed


def _size(allowances: Sequence[Allowance]) -> int:
    """Return how many records may be missing in all, offsets that are allowed twice counted once."""
    spans = joined_spans(each.span for each in allowances)
    return min(sum(each.records for each in allowances), sum(span.last - span.first + 1 for span in spans))


def _lacks(hour: HourCells, edge: Edge, place: int) -> Iterator[_Lack]:
    """Return what the later stage lacks of each hour of a partition; hours whose offsets are unknown have first -1.

    For OLDER, hours before the border are one lack.
    """
    before, at = int(edge.before.cells[place]), int(edge.at.cells[place])
    border_ms = None
    if hour.hour_ms == OLDER:
        border_ms = int(hour.borders[place])
        row, other = edge.before.rows[place], edge.at.rows[place]
        records = int(row["records"]) - int(other["records"]) - int(other["quarantined"])
        yield _Lack(OLDER, int(row["first_offset"]), int(row["last_offset"]), records, border_ms)
    hours = {hour_ms for series in edge.before.series for hour_ms in series.hours}
    for hour_ms in sorted(hours - {OLDER}):
        if border_ms is not None and hour_ms < border_ms:
            continue
        row = _row(edge.before, hour_ms, before)
        if row["revision"] == ABSENT:
            continue
        other = _row(edge.at, hour_ms, at)
        records = int(row["records"]) - int(other["records"]) - int(other["quarantined"])
        yield _Lack(hour_ms, int(row["first_offset"]), int(row["last_offset"]), records)


def _row(stage: StageCells, hour_ms: int, cell: int) -> Rows:
    rows = [rows_of(series, hour_ms, np.array([cell], np.int64))[0] for series in stage.series]
    return max(rows, key=lambda row: int(row["revision"])) if rows else rows_of(None, hour_ms, np.array([cell]))[0]


def joined_spans(spans: Iterable[OffsetSpan]) -> list[OffsetSpan]:
    """Return spans without overlaps, sorted."""
    joined: list[OffsetSpan] = []
    for span in sorted(spans, key=lambda each: (each.first, each.last)):
        if joined and span.first <= joined[-1].last + 1:
            joined[-1] = OffsetSpan(first=joined[-1].first, last=max(joined[-1].last, span.last))
        else:
            joined.append(span)
    return joined


def overlap(spans: Sequence[OffsetSpan], first: int, last: int) -> int:
    """Return how many of the offsets from `first` to `last` are in spans that do not overlap."""
    return sum(max(0, min(last, span.last) - max(first, span.first) + 1) for span in spans)
