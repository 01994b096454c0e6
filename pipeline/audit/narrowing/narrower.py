"""Follows a finding to partition, offset range, batch and record: asks the brokers that still have the records.

Invariants:
A. Questions, bytes, time and memory are bounded. What was not looked at is said, as a finding with a witness. Batches
   are opened in threads, since the service answers others meanwhile.
B. Findings that come back are about what the logs hold now. If logs that are equal now were counted differently, that
   is said instead of a place.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import trio

from pipeline.audit.events.report import OLDER
from pipeline.audit.judgement.sentences import records_text
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Explanation, Finding, OffsetSpan, Status, Witness
from pipeline.audit.narrowing.access import DifferentRange, FetchedSpan, LogAccess, RangeComparison, TableAccess
from pipeline.audit.narrowing.records import (
    MAX_HELD_BYTES,
    NEVER_HAD,
    Batch,
    Elsewhere,
    PlacedContent,
    RecordContent,
    RecordDifference,
    Whereabouts,
    compare_records,
    header_fields_that_differ,
    held_bytes,
    iterate_contents,
    join_differences,
    placed_contents,
    placed_elsewhere,
    unlike_contents,
)
from pipeline.audit.narrowing.sequences import repeated_batches, sequence_gaps
from pipeline.audit.narrowing.table_offsets import compare_with_files
from pipeline.errors import PipelineError
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.tally import HOUR_MS, window_start

MAX_SIBLINGS: Final = 16
MAX_FINDINGS: Final = 200
_PIECE_BYTES: Final = 8 << 20
_BRANCHES: Final = {
    DiscrepancyKind.MISSING: Status.MISSING,
    DiscrepancyKind.DOUBLED: Status.EXTRA,
    DiscrepancyKind.UNEXPLAINED: Status.EXTRA,
    DiscrepancyKind.CHANGED: Status.CHANGED,
    DiscrepancyKind.REORDERED: Status.CHANGED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowLimits:
    """Bounds of one narrowing. `max_bytes`: of batches that are fetched; `max_held_bytes`: of records in memory."""

    timeout_s: float = 30.0
    max_bytes: int = 64 << 20
    max_held_bytes: int = MAX_HELD_BYTES


@dataclass(slots=True)
class _Budget:
    """Bytes, memory and time that are left."""

    deadline: float
    bytes_left: int
    held_left: int

    @property
    def time_left_s(self) -> float:
        return max(0.0, self.deadline - trio.current_time())

    @property
    def is_spent(self) -> bool:
        return self.bytes_left <= 0 or self.time_left_s <= 0

    async def open(self, batches: Sequence[Batch], span: OffsetSpan) -> list[PlacedContent]:
        """Return the records of batches, which are held from now on. Raises PipelineError."""
        records, size = await trio.to_thread.run_sync(_opened, batches, span, self.held_left)
        self.held_left -= size
        return records


@dataclass(slots=True)
class _Place:
    """Differences of one partition, and what is not known about it."""

    differences: list[RecordDifference]
    unknown: list[tuple[OffsetSpan | None, str]]
    gaps: list[DifferentRange]
    comparison: RangeComparison | None = None


class Narrower:
    """Narrows findings. Findings of other stages than brokers are narrowed as far as the brokers' logs tell."""

    def __init__(
        self,
        logs: LogAccess,
        replica_cluster: str | None,
        limits: NarrowLimits | None = None,
        tables: TableAccess | None = None,
    ) -> None:
        """`tables`: tables of loads that may be read; without them differences at loads are not narrowed."""
        self._logs = logs
        self._hub = replica_cluster
        self._limits = limits or NarrowLimits()
        self._tables = tables

    async def narrow(self, finding: Finding, siblings: Sequence[Finding] = ()) -> list[Finding]:
        """Return findings that say where, or why that cannot be said; at least one.

        `siblings` are the findings of other partitions of the topic and hour: records that are missing here may be
        there. Raises nothing but a cancellation.
        """
        if finding.offsets is not None and not 0 <= finding.offsets.first <= finding.offsets.last:
            finding = replace(finding, offsets=None)  # events may say anything
        limits = self._limits
        budget = _Budget(trio.current_time() + limits.timeout_s, limits.max_bytes, limits.max_held_bytes)
        if self._is_of_replica(finding) and finding.replica is not None:
            place = await self._of_replica(finding, budget)
            others = await self._of_siblings(finding, siblings, place, budget)
            place.differences = placed_elsewhere(place.differences, others)
        elif finding.after.tier == "produced":
            place = await self._of_live(finding, budget)
        elif finding.at.tier in ("loaded", "stored"):
            place = await self._of_table(finding, budget)
        else:
            reason = f"no log of {finding.at} can be read: compare what the stage itself knows of these offsets"
            return [_not_narrowed(finding, finding.offsets, reason)]
        return await trio.to_thread.run_sync(_findings, finding, place)

    def _is_of_replica(self, finding: Finding) -> bool:
        return self._hub is not None and finding.at.tier == "replica"

    async def _of_siblings(
        self, finding: Finding, siblings: Sequence[Finding], place: _Place, budget: _Budget
    ) -> dict[str, list[RecordDifference]]:
        """Return the differences of other partitions, if records of this one may be there."""
        found: dict[str, list[RecordDifference]] = {}
        if not any(each.lost or each.foreign for each in place.differences):
            return found
        others = {
            each.source: each
            for each in siblings
            if each.source.topic == finding.source.topic
            and (each.cluster, each.at) == (finding.cluster, finding.at)
            and each.source != finding.source
            and each.replica is not None
        }
        for source, each in list(others.items())[:MAX_SIBLINGS]:
            if budget.is_spent:
                break
            found[str(source)] = (await self._of_replica(each, budget)).differences
        return found

    async def _of_replica(self, finding: Finding, budget: _Budget) -> _Place:
        """Compare source and replica range by range, and the records of the ranges that differ."""
        assert finding.replica is not None and self._hub is not None
        comparison = await self._logs.compare(
            finding.cluster, finding.source, finding.replica, finding.offsets, budget.time_left_s
        )
        place = _Place([], [*comparison.uncompared], [], comparison)
        if comparison.more:
            place.unknown.append((None, f"there are {comparison.more} more ranges that differ"))
        source: list[PlacedContent] = []
        replica: list[PlacedContent] = []
        spans: list[OffsetSpan] = []
        for each in comparison.different:
            if each.is_recorded_gap:
                place.gaps.append(each)
                continue
            if each.detail is not None:
                place.differences.append(_damage(each))
                continue
            both = await self._both(finding, each, place, budget)
            if both is not None:
                spans.append(each.offsets)
                source += both[0]
                replica += both[1]
        wanted = await trio.to_thread.run_sync(unlike_contents, source, replica)
        if wanted:
            elsewhere = await self._elsewhere(finding, comparison, spans, wanted, place, budget)
            never = NEVER_HAD if not place.unknown else "the source does not have them where it was searched"
            compare = partial(compare_records, source, replica, *elsewhere, never_had=never)
            place.differences += await trio.to_thread.run_sync(compare)
        return place

    async def _both(
        self, finding: Finding, each: DifferentRange, place: _Place, budget: _Budget
    ) -> tuple[list[PlacedContent], list[PlacedContent]] | None:
        """Return the records of both copies in a range that differs; None if they could not be compared."""
        assert finding.replica is not None and self._hub is not None
        ours = await self._fetch(finding.cluster, finding.source, each.offsets, budget)
        theirs = await self._fetch(self._hub, finding.replica, each.offsets, budget)
        reason = ours.reason or theirs.reason
        if reason is not None and (not each.replica_records or not each.source_records):
            place.differences.append(_of_whole_range(each))  # one of the copies has nothing there: no need to open
            return None
        if reason is not None:
            place.unknown.append((each.offsets, reason))
            return None
        left, right = _of_hour(finding.hour_ms, ours.batches, theirs.batches)
        try:
            source, replica = await budget.open(left, each.offsets), await budget.open(right, each.offsets)
        except PipelineError as error:
            place.unknown.append((each.offsets, f"a batch cannot be opened: {error}"))
            return None
        if source == replica:
            place.differences += _of_headers(left, right, each)
        return source, replica

    async def _elsewhere(
        self,
        finding: Finding,
        comparison: RangeComparison,
        spans: Sequence[OffsetSpan],
        wanted: frozenset[RecordContent],
        place: _Place,
        budget: _Budget,
    ) -> tuple[Elsewhere, Elsewhere]:
        """Return how often both copies have the wanted contents outside of the ranges that differ.

        Outside of them both copies are equal, so one is read: the source, which alone has what the replica lacks for a
        known reason.
        """
        ours, theirs = Elsewhere(), Elsewhere()
        unlike = [each.offsets for each in comparison.different]
        span = comparison.compared
        if span is None:
            return ours, theirs

        def note(batches: Sequence[Batch], at: int) -> None:
            for record in iterate_contents(batches):
                if record.offset >= at and record.content in wanted and not _is_within(record.offset, spans):
                    ours.note([record], wanted)
                    theirs.note([] if _is_within(record.offset, unlike) else [record], wanted)

        at = span.first
        while at <= span.last:
            if budget.is_spent:
                reason = f"records from offset {at} on were not searched for equal ones: bytes or time were spent"
                place.unknown.append((OffsetSpan(first=at, last=span.last), reason))
                break
            piece = await self._fetch(
                finding.cluster, finding.source, OffsetSpan(first=at, last=span.last), budget, _PIECE_BYTES
            )
            try:
                await trio.to_thread.run_sync(note, piece.batches, at)
            except PipelineError as error:
                place.unknown.append((OffsetSpan(first=at, last=span.last), f"not searched: {error}"))
                break
            if piece.up_to <= at:
                place.unknown.append((OffsetSpan(first=at, last=span.last), f"not searched: {piece.reason}"))
                break
            at = piece.up_to
        return ours, theirs

    async def _of_live(self, finding: Finding, budget: _Budget) -> _Place:
        """Look for repeated batches, and for gaps in the producers' sequence numbers, in the live cluster's log."""
        place = _Place([], [], [])
        if finding.offsets is None:
            place.unknown.append((None, "the offsets of the hour's batches are not known"))
            return place
        fetched = await self._fetch(finding.cluster, finding.source, finding.offsets, budget)
        if fetched.reason is not None:
            place.unknown.append((OffsetSpan(first=fetched.up_to, last=finding.offsets.last), fetched.reason))
        headers = [header for _, header in fetched.batches]
        of_hour, _ = _of_hour(finding.hour_ms, fetched.batches, ())
        for twice in repeated_batches(header for _, header in of_hour):
            original = Whereabouts("", twice.original.first, twice.original.last)
            detail = f"the batch of {original} is there a second time"
            place.differences.append(
                RecordDifference(
                    kind=DiscrepancyKind.DOUBLED, offsets=twice.offsets, records=twice.records, detail=detail
                )
            )
        for gap in sequence_gaps(headers):
            detail = f"producer {gap.producer_id} numbered records that are not in the log"
            span = OffsetSpan(first=gap.after, last=gap.before)
            place.differences.append(
                RecordDifference(kind=DiscrepancyKind.MISSING, offsets=span, records=gap.records, detail=detail)
            )
        return place

    async def _of_table(self, finding: Finding, budget: _Budget) -> _Place:
        """Compare the offsets in a table's files with those of the log that was loaded."""
        place = _Place([], [], [])
        if finding.offsets is None or self._tables is None:
            what = "the offsets of the hour are not known" if self._tables is not None else "the audit reads no tables"
            place.unknown.append((finding.offsets, f"{what}: run pipeline load verify -b for the table"))
            return place
        cluster, partition = finding.cluster, finding.source
        if finding.replica is not None and self._hub is not None and finding.after.tier != "live":
            cluster, partition = self._hub, finding.replica
        held = await self._tables.offsets(
            finding.at.name, partition.topic, partition.partition, finding.offsets, budget.time_left_s
        )
        if isinstance(held, str):
            place.unknown.append((finding.offsets, held))
            return place
        place.unknown += [(None, f"a file of the table: {reason}") for reason in held.damaged]
        fetched = await self._fetch(cluster, partition, finding.offsets, budget)
        if fetched.reason is not None:
            place.unknown.append((OffsetSpan(first=fetched.up_to, last=finding.offsets.last), fetched.reason))
        batches, _ = _of_hour(finding.hour_ms, fetched.batches, ())
        try:
            records = await budget.open(batches, finding.offsets)
        except PipelineError as error:
            place.unknown.append((finding.offsets, f"a batch cannot be opened: {error}"))
            return place
        place.differences += compare_with_files(records, held)
        return place

    async def _fetch(
        self, cluster: str, partition: TopicPartition, span: OffsetSpan, budget: _Budget, max_bytes: int | None = None
    ) -> FetchedSpan:
        if budget.is_spent:
            reason = "bytes or time for it were spent: narrow a smaller range"
            return FetchedSpan(batches=(), up_to=span.first, reason=reason)
        allowed = budget.bytes_left if max_bytes is None else min(max_bytes, budget.bytes_left)
        fetched = await self._logs.fetch(cluster, partition, span, max_bytes=allowed, timeout_s=budget.time_left_s)
        budget.bytes_left -= sum(header.size_bytes for _, header in fetched.batches)
        return fetched


def _opened(batches: Sequence[Batch], span: OffsetSpan, max_bytes: int) -> tuple[list[PlacedContent], int]:
    records = placed_contents(batches, span, max_bytes=max_bytes)
    return records, sum(map(held_bytes, records))


def _is_within(offset: int, spans: Sequence[OffsetSpan]) -> bool:
    return any(each.first <= offset <= each.last for each in spans)


def _findings(finding: Finding, place: _Place) -> list[Finding]:
    found = [_finding_of(finding, each) for each in join_differences(place.differences)]
    found += [_explained(finding, each) for each in place.gaps]
    found += [_not_narrowed(finding, span, reason) for span, reason in place.unknown]
    if len(found) > MAX_FINDINGS:
        reason = f"{len(found) - MAX_FINDINGS} more places are not listed"
        found = [*found[:MAX_FINDINGS], _not_narrowed(finding, None, reason)]
    return found or [_nothing_found(finding, place)]


def _damage(each: DifferentRange) -> RecordDifference:
    records = max(each.source_records, each.replica_records)
    return RecordDifference(
        kind=DiscrepancyKind.CHANGED, offsets=each.offsets, records=records, detail=each.detail or "damaged"
    )


def _of_whole_range(each: DifferentRange) -> RecordDifference:
    is_missing = not each.replica_records
    kind = DiscrepancyKind.MISSING if is_missing else DiscrepancyKind.UNEXPLAINED
    detail = "" if is_missing else "the source has nothing there"
    return RecordDifference(
        kind=kind, offsets=each.offsets, records=each.source_records or each.replica_records, detail=detail
    )


def _of_hour(hour_ms: int, ours: Sequence[Batch], theirs: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Return the batches of the hour, and all that share offsets with them: a copy may have other times and bounds."""
    if hour_ms == OLDER:
        return list(ours), list(theirs)
    runs: list[tuple[int, int, bool]] = []
    """First and last offset of batches that share offsets, and whether one of them is of the hour."""
    for header in sorted((header for _, header in (*ours, *theirs)), key=lambda header: header.base_offset):
        first, last = header.base_offset, header.last_offset
        is_of_hour = window_start(header.base_timestamp, HOUR_MS) == hour_ms
        if runs and first <= runs[-1][1]:
            before = runs.pop()
            first, last, is_of_hour = before[0], max(before[1], last), before[2] or is_of_hour
        runs.append((first, last, is_of_hour))

    def is_kept(header: BatchHeader) -> bool:
        return runs[bisect_right(runs, header.base_offset, key=lambda run: run[0]) - 1][2]

    left, right = ([batch for batch in batches if is_kept(batch[1])] for batches in (ours, theirs))
    return left, right


def _of_headers(ours: Sequence[Batch], theirs: Sequence[Batch], each: DifferentRange) -> list[RecordDifference]:
    """Return how batches with equal records differ."""
    by_offset = {header.base_offset: header for _, header in theirs}
    found = []
    for _, header in ours:
        if not each.offsets.first <= header.last_offset <= each.offsets.last:
            continue
        other = by_offset.get(header.base_offset)
        fields = [] if other is None else header_fields_that_differ(header, other)
        if other is None or fields or other.crc != header.crc:
            what = ", ".join(fields) if fields else "the bounds" if other is None else "the encoding"
            span = OffsetSpan(first=header.base_offset, last=header.last_offset)
            detail = f"the records are equal, and {what} of the batch differs"
            found.append(
                RecordDifference(kind=DiscrepancyKind.CHANGED, offsets=span, records=header.record_count, detail=detail)
            )
    return found


def _finding_of(finding: Finding, each: RecordDifference) -> Finding:
    is_lost = bool(each.lost) and not each.foreign
    status = _BRANCHES.get(each.kind)
    if status is None:  # misplaced
        status = Status.CHANGED if each.lost and each.foreign else Status.MISSING if is_lost else Status.EXTRA
    return replace(
        finding,
        status=status,
        kind=each.kind,
        records=0 if status is Status.CHANGED else each.records,
        offsets=each.offsets,
        explanation=None,
        witness=None,
        quarantined=0,
        text=_sentence(finding, each),
    )


def _sentence(finding: Finding, each: RecordDifference) -> str:
    place = f"{finding.source} of {finding.cluster}"
    where = f"{finding.at} {finding.replica or finding.source}"
    records = records_text(each.records)
    match each.kind:
        case DiscrepancyKind.MISSING:
            text = f"{records} of {place} missing at {where}"
        case DiscrepancyKind.DOUBLED:
            text = f"{records} doubled at {where}"
        case DiscrepancyKind.CHANGED:
            text = f"{records} of {place} changed at {where}"
        case DiscrepancyKind.REORDERED:
            text = f"{records} at another offset at {where}"
        case DiscrepancyKind.MISPLACED:
            text = f"{records} in another partition at {where}"
        case _:
            text = f"{records} more at {where} than at {finding.after}"
    told = [each.detail] if each.detail else []
    if each.origin is not None:
        again = " a second time" if each.kind is DiscrepancyKind.DOUBLED else ""
        told.append(f"it has what the source has at {each.origin}{again}")
    if each.whereto is not None:
        told.append(f"what should be there is at {each.whereto}")
    return f"{_offsets(each.offsets)}: {text}" + (f": {'; '.join(told)}" if told else "")


def _offsets(span: OffsetSpan) -> str:
    return f"offset {span.first}" if span.first == span.last else f"offsets {span.first} to {span.last}"


def _explained(finding: Finding, gap: DifferentRange) -> Finding:
    text = f"{_offsets(gap.offsets)}: {records_text(gap.source_records)} in the mirror's ledger of gaps"
    return replace(
        finding,
        status=Status.EXPLAINED,
        kind=DiscrepancyKind.MISSING,
        records=gap.source_records,
        offsets=gap.offsets,
        explanation=Explanation.GAP,
        witness=None,
        text=text,
    )


def _not_narrowed(finding: Finding, span: OffsetSpan | None, reason: str) -> Finding:
    where = "" if span is None else f"{_offsets(span)}: "
    witness = Witness(name="narrowing", reason=reason, cluster=finding.cluster, partition=finding.source)
    return replace(
        finding, status=Status.UNKNOWN, offsets=span, witness=witness, text=f"{where}not narrowed further: {reason}"
    )


def _nothing_found(finding: Finding, place: _Place) -> Finding:
    """Say that the logs have no difference now (invariant B)."""
    compared = None if place.comparison is None else place.comparison.compared
    span = compared or finding.offsets
    where = "the hour's offsets" if span is None else _offsets(span)
    if compared is not None:
        reason = (
            f"the logs of both brokers are equal now in {where}, so the difference is in what is no longer there, or "
            "in the counts"
        )
    elif place.comparison is not None:
        reason = f"the logs of both brokers have nothing in common now in {where}"
    elif finding.after.tier == "produced":
        reason = f"nothing was found in {where}: no batch is repeated, no producer's numbering has a gap"
    else:
        reason = f"the files hold all records that the log has now in {where}"
    return _not_narrowed(finding, span, reason)
