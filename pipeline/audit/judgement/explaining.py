"""Explanations of missing records: offsets that the mirror, a load or compaction rightly left out. Pure.

An explanation holds for a partition if what is missing in each hour lies within the explained offsets, and all hours
that share these offsets lack at most as many records together. With one record more, all of them stay missing.
The log start offset of a cluster explains nothing by itself: a record may have been lost before retention deleted it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from pipeline.audit.events.report import OLDER, SkippedOffsets, SkipReason
from pipeline.audit.judgement.cells import newest_keys
from pipeline.audit.judgement.edges import Edge, HourCells
from pipeline.audit.judgement.verdicts import Explanation, Finding, OffsetSpan, Status
from pipeline.audit.ledger.ledger import Series

SuspectT = TypeVar("SuspectT", bound="HasFinding")


class HasFinding(Protocol):
    """A cell whose stages differ."""

    @property
    def finding(self) -> Finding:
        """Return the finding."""

    @property
    def place(self) -> int:
        """Return the place of the cell in the hour."""


def explained(
    hour: HourCells,
    edge: Edge,
    suspects: Sequence[SuspectT],
    explain: Callable[[SuspectT, Finding], SuspectT],
) -> list[SuspectT]:
    """Return suspects, with those explained that are missing for a known reason."""
    return [
        explain(each, _explain(hour, edge, each.finding, each.place)) if each.finding.status is Status.MISSING else each
        for each in suspects
    ]


def _explain(hour: HourCells, edge: Edge, finding: Finding, place: int) -> Finding:
    reason = _reason(hour, edge, place)
    return finding if reason is None else replace(finding, status=Status.EXPLAINED, kind=None, explanation=reason)


def _reason(hour: HourCells, edge: Edge, place: int) -> Explanation | None:
    way = hour.words.way
    tier = edge.at.stage.tier
    if tier in ("live", "stored"):
        return None
    if tier == "replica":
        gaps = way.gaps.get(int(hour.cells[place]), ())
        if gaps and _fits(hour, edge, place, gaps):
            return Explanation.GAP
    if int(hour.topics[place]) in way.compacted:
        return Explanation.COMPACTION
    return None


def _fits(hour: HourCells, edge: Edge, place: int, spans: Sequence[OffsetSpan]) -> bool:
    """True if these offsets explain all that the stage lacks of the partition's hours that have some of them."""
    joined = joined_spans(spans)
    lacking = 0
    touched = []
    for first, last, missing in _hours(hour, edge, place):
        inside = overlap(joined, first, last)
        if missing > inside:
            if (first, last) == _range(edge, place):
                return False
            continue
        if missing > 0:
            lacking += missing
            touched.append(OffsetSpan(first=first, last=last))
    possible = sum(overlap(joined, span.first, span.last) for span in joined_spans(touched))
    return 0 < lacking <= possible


def _range(edge: Edge, place: int) -> tuple[int, int]:
    row = edge.before.rows[place]
    return int(row["first_offset"]), int(row["last_offset"])


def _hours(hour: HourCells, edge: Edge, place: int) -> Iterable[tuple[int, int, int]]:
    """Return for each hour of a partition its offsets at the stage before, and how many records the stage lacks."""
    way = hour.words.way
    before, at = way.live, way.replica
    if before is None or at is None:
        return
    source, replica = int(edge.before.cells[place]), int(edge.at.cells[place])
    for hour_ms, table in before.hours.items():
        row = _row(before, hour_ms, source)
        if hour_ms == OLDER or row is None or row["first_offset"] < 0 or not len(table):
            continue
        other = _row(at, hour_ms, replica)
        records = int(row["records"]) - (0 if other is None else int(other["records"]))
        yield int(row["first_offset"]), int(row["last_offset"]), records


def _row(series: Series, hour_ms: int, cell: int) -> "np.void | None":
    table = series.hours.get(hour_ms)
    if table is None:
        return None
    places, found = table.find(newest_keys(series, np.array([cell], np.int64)))
    return table.rows[places[0]] if found[0] else None


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


__all__ = ["SkipReason", "SkippedOffsets", "explained"]
