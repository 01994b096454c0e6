"""Comparison of two sides by sums: equal ranges are passed, different ones are bisected down to the batches.

Invariants:

- Each offset of the range is in exactly one of: ranges with equal sums, differences, ranges that were not compared.
- Offsets below a clean offset count as compared only if their sums are equal: compaction rewrites batches in each
  cluster at its own time, and a broker raises the clean offset before it sums over rewritten batches.
- A range that a side lost by retention meanwhile is not compared, and is no difference.
- A partition costs at most MAX_QUESTIONS questions for its differences. MAX_LISTED differences and as many recorded
  gaps are listed, and all are counted.
- No compared range reaches over a bound of a recorded gap. So recorded gaps, however many, are told from differences
  without questions.
- Batches with other bytes are equal only if their frames and their contents are: as many batches and records at equal
  offsets, with the same times and producers, and the same plain records. Without brokers that can tell, such batches
  are not compared.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

from pipeline.client.admin.range_sums import PartitionSums
from pipeline.errors import PipelineError
from pipeline.mirror.verification.sides import RangeGoneError, Side
from pipeline.records.batch_sums import NO_BATCHES, BatchSums, SumKind

MAX_QUESTIONS = 2000
MAX_LISTED = 20
COMPACTED = "may have been compacted on one side"
DELETED = "deleted by retention meanwhile"
NOT_OPENED = (
    "the bytes differ, perhaps by recompression (compression.type) alone, and a broker is too old to compare contents: "
    "upgrade it"
)


class DifferenceKind(StrEnum):
    """Difference of a replica from its source."""

    MISSING = "missing at the replica"
    EXTRA = "extra at the replica"
    OTHER = "other content"
    NOT_NARROWED = "different somewhere"
    DAMAGED_SOURCE = "damaged at the source"
    DAMAGED_REPLICA = "damaged at the replica"
    RECORDED_GAP = "recorded gap"
    """A difference that the mirror's gap ledger explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Batches of one kind of difference, which follow each other. Offsets: inclusive, of the batches."""

    kind: DifferenceKind
    first_offset: int
    last_offset: int
    source: BatchSums = NO_BATCHES
    replica: BatchSums = NO_BATCHES
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UncomparedRange:
    """Offsets from `from_offset` on and before `up_to_offset` that were not compared."""

    from_offset: int
    up_to_offset: int
    reason: str


@dataclass(slots=True)
class Comparison:
    """The result of a comparison, as far as it came. `compared` sums the source's batches of the compared ranges."""

    compared: BatchSums = NO_BATCHES
    differences: list[Difference] = field(default_factory=list)
    more_differences: int = 0
    """Differences beyond those listed."""
    uncompared: list[UncomparedRange] = field(default_factory=list)
    recorded_gaps: int = 0
    """Differences that the gap ledger explains, listed or not."""
    by_contents: int = 0
    """Batches that were compared by their contents, since their bytes differ, and are equal."""
    _last_noted: Difference | None = None
    _is_last_listed: bool = False

    @property
    def is_different(self) -> bool:
        """True if there is a difference that no recorded gap explains."""
        return self.more_differences > 0 or any(
            found.kind is not DifferenceKind.RECORDED_GAP for found in self.differences
        )

    @property
    def is_list_full(self) -> bool:
        """True if MAX_LISTED differences are listed, beside recorded gaps."""
        return sum(found.kind is not DifferenceKind.RECORDED_GAP for found in self.differences) >= MAX_LISTED

    def note_difference(self, found: Difference, *, follows: bool = False) -> None:
        """Note a difference. `follows`: no equal batch lies between the difference and the last one."""
        last, self._last_noted = self._last_noted, found
        if last is not None and follows and last.kind is found.kind and last.detail is None is found.detail:
            if self._is_last_listed:
                listed = self.differences[-1]
                self.differences[-1] = replace(
                    listed,
                    last_offset=max(listed.last_offset, found.last_offset),
                    source=listed.source + found.source,
                    replica=listed.replica + found.replica,
                )
            return
        if found.kind is DifferenceKind.RECORDED_GAP:
            self.recorded_gaps += 1
            self._is_last_listed = self.recorded_gaps <= MAX_LISTED
        else:
            self._is_last_listed = not self.is_list_full
            self.more_differences += self.is_list_full
        if self._is_last_listed:
            self.differences.append(found)

    def note_uncompared(self, from_offset: int, up_to_offset: int, reason: str) -> None:
        """Note a range that was not compared; it is joined with the last one if that is next to it."""
        if from_offset >= up_to_offset:
            return
        if self.uncompared and self.uncompared[-1].reason == reason:
            last = self.uncompared[-1]
            if last.up_to_offset == from_offset or len(self.uncompared) >= MAX_LISTED:
                self.uncompared[-1] = replace(last, up_to_offset=up_to_offset)
                return
        self.uncompared.append(UncomparedRange(from_offset=from_offset, up_to_offset=up_to_offset, reason=reason))


Gaps = Sequence[tuple[int, int]]
"""First and last offsets of recorded gaps."""


@dataclass(slots=True)
class _Narrowed:
    """Parts of a range with different sums, in order."""

    compared: BatchSums = NO_BATCHES
    """Sums of the source over the headers of all parts that were compared."""
    different: list[tuple[int, int, Difference | None]] = field(default_factory=list)
    """Different parts, and parts without batches (None)."""
    not_opened: list[tuple[int, int]] = field(default_factory=list)
    """Parts whose batches may differ in their codecs alone."""
    by_contents: int = 0
    read: list[tuple[BatchSums, BatchSums]] = field(default_factory=list)
    """Sums over contents of both sides, which count damage."""

    @property
    def is_equal(self) -> bool:
        """True if all parts are equal."""
        return not self.not_opened and all(found is None for _, _, found in self.different)


class Comparer:
    """Compares one source partition with its replica."""

    def __init__(
        self, source: Side, replica: Side, gaps: Gaps, advance: Callable[[int], None], replaced: Gaps = ()
    ) -> None:
        """`gaps` explain batches that the replica lacks; `replaced` all differences, as the source has lost its end."""
        self.result = Comparison()
        self._source = source
        self._replica = replica
        self._sums_contents = source.sums_contents and replica.sums_contents
        self._gaps = gaps
        self._replaced = replaced
        self._bounds = sorted({bound for first, last in (*gaps, *replaced) for bound in (first, last + 1)})
        self._advance = advance
        self._clean_offset = 0
        self._is_compaction_unknown = False
        self._questions_left = MAX_QUESTIONS
        self._is_begun = False
        self._last_end = -1
        """The end of the last different range."""

    async def compare(self, start: int, end: int, start_now: Callable[[], Awaitable[int]]) -> None:
        """Compare the batches whose last offsets lie from `start` on and before `end`.

        `start_now` returns the offset from which on both sides have records now. Raises PipelineError if a side cannot
        be reached; `result` has what was compared before.
        """
        at = start
        while at < end:
            try:
                reached = await self._compare_next(at, self._next_bound(at, end))
            except RangeGoneError:
                reached = min(await start_now(), end)
                if reached <= at:
                    raise
                self.result.note_uncompared(at, reached, DELETED)
            self._advance(reached - at)
            at = reached

    def _next_bound(self, at: int, end: int) -> int:
        """Return the first bound of a recorded gap behind `at`; `end` if there is none before."""
        index = bisect_right(self._bounds, at)
        return min(end, self._bounds[index]) if index < len(self._bounds) else end

    async def _compare_next(self, at: int, end: int) -> int:
        """Compare the next part of the range, as long as the source sums at a time. Return the end of the part."""
        if not self._is_begun:  # empty ranges: the clean offsets alone
            for side in (self._source, self._replica):
                self._note(await side.sums(at, at))
            self._is_begun = True
        if at < self._clean_offset:
            return self._pass_compacted(at, end)
        source = self._note(await self._source.sums(at, end))
        reached = source.next_offset
        if reached == at:
            return await self._pass_damage(self._source, DifferenceKind.DAMAGED_SOURCE, at, end, source)
        replica = await self._total(self._replica, at, reached)
        if replica.next_offset == reached:
            return await self._judge(at, reached, source.sums, replica.sums)
        sound = replica.next_offset
        if sound > at:
            again = await self._total(self._source, at, sound)
            return await self._judge(at, sound, again.sums, replica.sums)
        return await self._pass_damage(self._replica, DifferenceKind.DAMAGED_REPLICA, at, end, replica)

    async def _total(
        self, side: Side, from_offset: int, up_to_offset: int, kind: SumKind = SumKind.HEADERS
    ) -> PartitionSums:
        """Return the sums over the whole range, or up to damage."""
        found = self._note(await side.sums(from_offset, up_to_offset, kind))
        while found.next_offset < up_to_offset and found.damage is None:
            more = self._note(await side.sums(found.next_offset, up_to_offset, kind))
            _check_progress(more, found.next_offset)
            found = replace(more, sums=found.sums + more.sums)
        return found

    def _note(self, found: PartitionSums) -> PartitionSums:
        if found.clean_offset is None:
            self._is_compaction_unknown = True
        else:
            self._clean_offset = max(self._clean_offset, found.clean_offset)
        return found

    async def _pass_damage(self, side: Side, kind: DifferenceKind, at: int, end: int, found: PartitionSums) -> int:
        """Note damage, and return the next offset at which the side can be read."""
        _check_progress(found, at)
        step = 1
        while at + step < end and await side.damage_at(at + step) is not None:
            step *= 2
        reached = min(at + step, end)
        self.result.note_difference(
            Difference(kind=kind, first_offset=at, last_offset=reached - 1, detail=found.damage)
        )
        return reached

    def _pass_compacted(self, from_offset: int, up_to_offset: int) -> int:
        reached = min(self._clean_offset, up_to_offset)
        self.result.note_uncompared(from_offset, reached, COMPACTED)
        return reached

    async def _of_both(self, from_offset: int, up_to_offset: int, kind: SumKind) -> tuple[BatchSums, BatchSums]:
        """Return the sums of both sides over a range that could be read before."""
        source, replica = [
            await self._total(side, from_offset, up_to_offset, kind) for side in (self._source, self._replica)
        ]
        if min(source.next_offset, replica.next_offset) < up_to_offset:
            raise PipelineError(
                f"the log between offsets {from_offset} and {up_to_offset} was damaged meanwhile: verify again"
            )
        return source.sums, replica.sums

    async def _judge(self, from_offset: int, up_to_offset: int, source: BatchSums, replica: BatchSums) -> int:
        """Note how the sums over a range compare. Return the offset up to which that is known."""
        narrowed = _Narrowed(compared=source)
        if not source.is_equal_to(replica):
            narrowed = await self._narrow(from_offset, up_to_offset, source, replica)
            if self._is_compaction_unknown and not narrowed.is_equal:
                self.result.note_uncompared(from_offset, up_to_offset, COMPACTED)
                return up_to_offset
            if from_offset < self._clean_offset:
                return self._pass_compacted(from_offset, up_to_offset)
        self.result.compared += narrowed.compared
        self.result.by_contents += narrowed.by_contents
        for start, end, found in narrowed.different:
            follows = start == self._last_end
            if found is not None:
                self.result.note_difference(found, follows=follows)
            if found is not None or follows:
                self._last_end = end
        for start, end in narrowed.not_opened:
            self.result.note_uncompared(start, end, NOT_OPENED)
        damaged = {
            (kind, sums.damaged_offset): sums
            for pair in ((source, replica), *narrowed.read)
            for kind, sums in zip((DifferenceKind.DAMAGED_SOURCE, DifferenceKind.DAMAGED_REPLICA), pair, strict=True)
            if sums.damaged_batches
        }
        for (kind, first), sums in damaged.items():
            detail = f"{sums.damaged_batches} wrong checksums, the first in the batch of offset {first}"
            self.result.note_difference(
                Difference(kind=kind, first_offset=first, last_offset=sums.last_offset, detail=detail)
            )
        return up_to_offset

    async def _narrow(self, from_offset: int, up_to_offset: int, source: BatchSums, replica: BatchSums) -> _Narrowed:
        """Compare a range with different sums by contents where only these tell, and bisect the rest.

        A log of unknown compaction is not bisected.
        """
        narrowed = _Narrowed()
        ranges = [(from_offset, up_to_offset, source, replica, SumKind.HEADERS)]
        while ranges:
            start, end, left, right, kind = ranges.pop()
            if left.is_equal_to(right):
                narrowed.different += [] if left.batches else [(start, end, None)]
                if kind is SumKind.CONTENTS:
                    narrowed.by_contents += left.batches
                else:
                    narrowed.compared += left
                continue
            may_be_recompressed = kind is SumKind.HEADERS and _have_equal_places(left, right)
            if may_be_recompressed and self._sums_contents:
                frames = await self._of_both(start, end, SumKind.FRAMES)
                if frames[0].is_equal_to(frames[1]):
                    contents = await self._of_both(start, end, SumKind.CONTENTS)
                    narrowed.compared += left
                    narrowed.read.append(contents)
                    ranges.append((start, end, *contents, SumKind.CONTENTS))
                    continue
            may_ask = self._questions_left > 0 and not self.result.is_list_full
            is_alone = max(left.batches, right.batches) == 1
            if is_alone or self._is_compaction_unknown or not (left.batches and right.batches and may_ask):
                if may_be_recompressed and not self._sums_contents:
                    narrowed.not_opened.append((start, end))
                    continue
                pairs = _apart(left, right)
                split = [start, *(max(pair[0].last_offset, pair[1].last_offset) + 1 for pair in pairs[:-1]), end]
                narrowed.different += [
                    (*bounds, self._describe(*pair)) for bounds, pair in zip(pairwise(split), pairs, strict=True)
                ]
                narrowed.compared += left if kind is SumKind.HEADERS else NO_BATCHES
                continue
            first = max(start, min(left.first_offset, right.first_offset))
            middle = (first + min(end, max(left.last_offset, right.last_offset) + 1)) // 2
            self._questions_left -= 4
            halves = [
                (begin, stop, *await self._of_both(begin, stop, kind), kind)
                for begin, stop in ((start, middle), (middle, end))
            ]
            ranges += reversed(halves)
        return narrowed

    def _describe(self, source: BatchSums, replica: BatchSums) -> Difference:
        if not replica.batches:
            kind = DifferenceKind.MISSING
        elif not source.batches:
            kind = DifferenceKind.EXTRA
        elif source.batches == replica.batches == 1:
            kind = DifferenceKind.OTHER
        else:
            kind = DifferenceKind.NOT_NARROWED
        firsts = [sums.first_offset for sums in (source, replica) if sums.batches]
        first, last = min(firsts), max(source.last_offset, replica.last_offset)
        return Difference(
            kind=self._explained(kind, first, last),
            first_offset=first,
            last_offset=last,
            source=source,
            replica=replica,
        )

    def _explained(self, kind: DifferenceKind, first: int, last: int) -> DifferenceKind:
        gaps = (*self._gaps, *self._replaced) if kind is DifferenceKind.MISSING else self._replaced
        is_recorded = any(begin <= first and last <= end for begin, end in gaps)
        return DifferenceKind.RECORDED_GAP if is_recorded else kind

    def note_beyond_source(self, source_end: int, replica_end: int) -> None:
        """Note that the replica goes on where its source ends."""
        if replica_end > source_end:
            kind = self._explained(DifferenceKind.EXTRA, source_end, replica_end - 1)
            detail = f"the source ends at offset {source_end}"
            self.result.note_difference(
                Difference(kind=kind, first_offset=source_end, last_offset=replica_end - 1, detail=detail)
            )


def _have_equal_places(source: BatchSums, replica: BatchSums) -> bool:
    """True if both sides may have the same batches in other codecs."""
    return (source.batches, source.records, source.first_offset, source.last_offset) == (
        replica.batches,
        replica.records,
        replica.first_offset,
        replica.last_offset,
    )


def _apart(source: BatchSums, replica: BatchSums) -> list[tuple[BatchSums, BatchSums]]:
    """Return the sums of both sides; two batches that share no offset are two differences."""
    if source.batches == replica.batches == 1:
        if source.last_offset < replica.first_offset:
            return [(source, NO_BATCHES), (NO_BATCHES, replica)]
        if replica.last_offset < source.first_offset:
            return [(NO_BATCHES, replica), (source, NO_BATCHES)]
    return [(source, replica)]


def _check_progress(found: PartitionSums, from_offset: int) -> None:
    if found.next_offset <= from_offset and found.damage is None:
        raise PipelineError(f"a broker does not sum on from offset {from_offset}")
