"""Comparison of two sides in memory: every difference is found, nothing else, whatever a broker sums at a time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.admin.range_sums import PartitionSums
from pipeline.errors import PipelineError
from pipeline.mirror.verification import comparison
from pipeline.mirror.verification.comparison import COMPACTED, DELETED, NOT_OPENED, Comparer, DifferenceKind
from pipeline.mirror.verification.sides import RangeGoneError
from pipeline.records.batch_sums import NO_BATCHES, BatchSums, SumKind

Batch = tuple[int, int, int]
"""First and last offset, and what is in the batch."""


class MemorySide:
    """A side whose broker sums at most so many batches at a time. `recoded` are batches in another codec."""

    def __init__(
        self,
        batches: Sequence[Batch],
        at_once: int = 3,
        *,
        clean_offset: int | None = 0,
        recoded: Collection[Batch] = (),
        sums_contents: bool = True,
    ) -> None:
        self.batches = list(batches)
        self.recoded = frozenset(recoded)
        self.sums_contents = sums_contents
        self.opened = 0
        self.at_once = at_once
        self.clean_offset = clean_offset
        self.start = 0
        self.damaged: range = range(0)
        self.asked = 0

    async def sums(self, from_offset: int, up_to_offset: int, kind: SumKind = SumKind.HEADERS) -> PartitionSums:
        self.asked += 1
        assert self.sums_contents or kind is SumKind.HEADERS
        if from_offset < self.start:
            raise RangeGoneError("gone")
        sums, at, left = NO_BATCHES, from_offset, self.at_once
        damage = "damaged" if from_offset in self.damaged else None
        for first, last, content in self.batches:
            if damage or not from_offset <= last < up_to_offset:
                continue
            if not left:
                return PartitionSums(sums=sums, next_offset=at, clean_offset=self.clean_offset)
            if last in self.damaged:
                damage = "damaged"
                continue
            left -= 1
            at = last + 1
            self.opened += kind is SumKind.CONTENTS
            covered = {
                SumKind.HEADERS: (first, last, content, (first, last, content) in self.recoded),
                SumKind.FRAMES: (first, last),
                SumKind.CONTENTS: (first, last, content),
            }[kind]
            sums += BatchSums(
                batches=1,
                records=last - first + 1,
                size_bytes=0 if kind is SumKind.FRAMES else content,
                digest=hash((kind, covered)) % 2**63,
                first_offset=first,
                last_offset=last,
            )
        next_offset = at if damage else up_to_offset
        return PartitionSums(sums=sums, next_offset=next_offset, clean_offset=self.clean_offset, damage=damage)

    async def damage_at(self, offset: int) -> str | None:
        return "damaged" if offset in self.damaged else None


async def compared(
    source: MemorySide,
    replica: MemorySide,
    end: int,
    *,
    gaps: Sequence[tuple[int, int]] = (),
    replaced: Sequence[tuple[int, int]] = (),
) -> comparison.Comparison:
    passed: list[int] = []
    comparer = Comparer(source, replica, gaps, passed.append, replaced)

    async def start_now() -> int:
        return max(source.start, replica.start)

    await comparer.compare(0, end, start_now)
    assert sum(passed) == end
    return comparer.result


def log_of(widths: Sequence[tuple[int, int, int]]) -> list[Batch]:
    """Batches from gaps before them, numbers of records and contents."""
    batches, at = [], 0
    for gap, records, content in widths:
        batches.append((at + gap, at + gap + records - 1, content))
        at += gap + records
    return batches


logs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 2)), max_size=30).map(log_of)


@dataclass
class Pair:
    """Two sides, and the batches by which they differ."""

    source: MemorySide
    replica: MemorySide
    end: int
    lost: set[Batch]
    changed: set[Batch]
    extra: set[Batch]
    recoded: set[Batch]
    """Batches of the replica in another codec; some of them have other contents, too."""


@st.composite
def pairs(draw: st.DrawFn, *, sums_contents: bool = True) -> Pair:
    log = draw(logs)
    some = st.sets(st.sampled_from(log)) if log else st.just(set[Batch]())
    lost = draw(some)
    changed = draw(some) - lost
    extra = draw(some) - lost - changed
    at_once = st.integers(1, 8)
    held = [
        (first, last, content + 10 * ((first, last, content) in changed))
        for first, last, content in log
        if (first, last, content) not in lost
    ]
    recoded = draw(st.sets(st.sampled_from(held))) if held else set()
    source = MemorySide([batch for batch in log if batch not in extra], draw(at_once))
    replica = MemorySide(held, draw(at_once), recoded=recoded, sums_contents=sums_contents)
    return Pair(source, replica, log[-1][1] + 1 if log else 0, lost, changed, extra, recoded)


@given(pair=pairs())
async def test_each_difference_is_found_and_nothing_else(pair: Pair) -> None:
    found = await compared(pair.source, pair.replica, pair.end)
    limit = comparison.MAX_LISTED
    differing = pair.lost | pair.changed | pair.extra
    assert found.is_different == bool(differing)
    if len(found.differences) < limit:
        log = {*pair.source.batches, *pair.extra}
        by_kind = {
            DifferenceKind.MISSING: pair.lost,
            DifferenceKind.EXTRA: pair.extra,
            DifferenceKind.OTHER: pair.changed,
        }
        for kind, batches in by_kind.items():
            covered = [each for each in found.differences if each.kind is kind]
            listed = {
                batch
                for batch in log
                for each in covered
                if each.first_offset <= batch[0] <= batch[1] <= each.last_offset
            }
            assert listed >= batches
            assert not listed & (log - differing)
            counted = [each.source if kind is not DifferenceKind.EXTRA else each.replica for each in covered]
            assert sum(sums.batches for sums in counted) == len(batches)
    assert found.compared.batches == len(pair.source.batches)
    assert found.compared.size_bytes == sum(content for _, _, content in pair.source.batches)
    assert found.uncompared == []
    assert found.by_contents >= len(pair.recoded & {*pair.source.batches})
    if not (pair.recoded or pair.changed):
        assert pair.source.opened == pair.replica.opened == found.by_contents == 0


@given(pair=pairs(sums_contents=False))
async def test_without_contents_batches_of_other_bytes_are_never_equal(pair: Pair) -> None:
    found = await compared(pair.source, pair.replica, pair.end)
    assert found.is_different == bool(pair.lost | pair.extra)
    assert {each.reason for each in found.uncompared} <= {NOT_OPENED}
    for first, last, _ in pair.recoded - pair.extra:
        assert found.is_different or any(
            each.from_offset <= first <= last < each.up_to_offset for each in found.uncompared
        )
    assert found.by_contents == pair.source.opened == 0


async def test_only_ranges_of_recompressed_batches_are_opened() -> None:
    log = [(number, number, 1) for number in range(1000)]
    source, replica = MemorySide(log, 100), MemorySide(log, 100, recoded=log[250:270])
    found = await compared(source, replica, 1000)
    assert (found.is_different, found.uncompared, found.by_contents) == (False, [], 100)
    assert (source.opened, replica.opened) == (100, 100)


async def test_recompressed_batches_of_a_log_of_unknown_compaction_are_compared() -> None:
    log = [(number, number, 1) for number in range(9)]
    found = await compared(MemorySide(log, clean_offset=None), MemorySide(log, recoded=log), 9)
    assert (found.by_contents, found.uncompared, found.differences) == (9, [], [])
    other = [*log[:4], (4, 4, 2), *log[5:]]
    found = await compared(MemorySide(log, clean_offset=None), MemorySide(other, recoded=other), 9)
    (skipped,) = found.uncompared
    assert (skipped.from_offset, skipped.up_to_offset, skipped.reason) == (3, 6, COMPACTED)
    assert found.by_contents == 6


@pytest.mark.long
@pytest.mark.parametrize("at_once", [1, 7, 1000])
async def test_very_many_differences_are_counted_and_cost_no_more(at_once: int) -> None:
    log = [(number, number, 1) for number in range(4000)]
    other = [(number, number, 1 + number % 2) for number in range(4000)]
    source, replica = MemorySide(log, at_once), MemorySide(other, at_once)
    found = await compared(source, replica, 4000)
    assert len(found.differences) == comparison.MAX_LISTED
    assert found.more_differences > 0
    assert source.asked + replica.asked < 2 * (comparison.MAX_QUESTIONS + 3 * 4000 // at_once + 10)


async def test_offsets_that_may_have_been_compacted_are_not_compared() -> None:
    log = [(number, number, 1) for number in range(20)]
    found = await compared(MemorySide(log, clean_offset=8), MemorySide(log[5:]), 20)
    (skipped,) = found.uncompared
    assert (skipped.from_offset, skipped.up_to_offset, skipped.reason) == (0, 8, COMPACTED)
    assert (found.compared.batches, found.differences) == (12, [])


async def test_a_compaction_meanwhile_makes_no_difference() -> None:
    class Compacted(MemorySide):
        async def sums(self, from_offset: int, up_to_offset: int, kind: SumKind = SumKind.HEADERS) -> PartitionSums:
            if self.asked == 2:
                self.batches, self.clean_offset = self.batches[10:], 10
            return await super().sums(from_offset, up_to_offset, kind)

    log = [(number, number, 1) for number in range(20)]
    found = await compared(MemorySide(log), Compacted(log), 20)
    assert found.differences == []
    assert {each.reason for each in found.uncompared} == {COMPACTED}
    assert found.uncompared[-1].up_to_offset == 10


async def test_a_different_range_of_a_log_of_unknown_compaction_is_not_compared() -> None:
    log = [(number, number, 1) for number in range(9)]
    found = await compared(MemorySide(log, clean_offset=None), MemorySide([*log[:4], *log[5:]]), 9)
    (skipped,) = found.uncompared
    assert (skipped.from_offset, skipped.up_to_offset, found.compared.batches) == (3, 6, 6)


async def test_records_that_retention_deletes_meanwhile_are_no_difference() -> None:
    class Deleting(MemorySide):
        async def sums(self, from_offset: int, up_to_offset: int, kind: SumKind = SumKind.HEADERS) -> PartitionSums:
            if self.asked == 3:
                self.start = 11
            return await super().sums(from_offset, up_to_offset, kind)

    log = [(number, number, 1) for number in range(20)]
    found = await compared(MemorySide(log), Deleting(log), 20)
    assert found.differences == []
    assert [(each.up_to_offset, each.reason) for each in found.uncompared] == [(11, DELETED)]


@pytest.mark.parametrize("is_at_source", [False, True])
async def test_damage_is_passed_and_the_rest_is_compared(is_at_source: bool) -> None:
    log = [(number, number, 1) for number in range(40)]
    whole, damaged = MemorySide(log), MemorySide([*log[:30], (30, 30, 2), *log[31:]])
    damaged.damaged = range(10, 15)
    found = await compared(*((damaged, whole) if is_at_source else (whole, damaged)), 40)
    kind = DifferenceKind.DAMAGED_SOURCE if is_at_source else DifferenceKind.DAMAGED_REPLICA
    first, second = found.differences
    assert (first.kind, first.first_offset, first.detail) == (kind, 10, "damaged")
    assert 14 <= first.last_offset < 20
    assert (second.kind, second.first_offset) == (DifferenceKind.OTHER, 30)


async def test_a_broker_that_does_not_sum_on_is_an_error() -> None:
    log = [(number, number, 1) for number in range(20)]
    with pytest.raises(PipelineError, match="does not sum on from offset 0"):
        await compared(MemorySide(log, 0), MemorySide(log), 20)


async def test_gaps_explain_only_what_lies_within_them() -> None:
    log = [(number, number, 1) for number in range(20)]
    found = await compared(MemorySide(log), MemorySide([*log[:5], *log[9:12], *log[13:]]), 20, gaps=[(5, 8)])
    assert [each.kind for each in found.differences] == [DifferenceKind.RECORDED_GAP, DifferenceKind.MISSING] or [
        each.kind for each in found.differences
    ] == [DifferenceKind.RECORDED_GAP] * found.recorded_gaps + [DifferenceKind.MISSING]
    assert found.is_different


@pytest.mark.long
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_very_many_recorded_gaps_make_no_difference(width: int, is_replaced: bool) -> None:
    log = [(number, number, 1) for number in range(6000)]
    gaps = [(first, first + width - 1) for first in range(5, 6000, 50)]
    lost = {number for first, last in gaps for number in range(first, last + 1)}
    held = [(number, number, 2) if number in lost else batch for number, batch in enumerate(log)]
    if not is_replaced:
        held = [batch for batch in log if batch[0] not in lost]
    source, replica = MemorySide(log, 1000), MemorySide(held, 1000)
    found = await compared(source, replica, 6000, **{"replaced" if is_replaced else "gaps": gaps})
    assert (found.is_different, found.more_differences, found.recorded_gaps) == (False, 0, len(gaps))
    assert len(found.differences) == comparison.MAX_LISTED
    replica.batches.remove(log[4000])
    found = await compared(source, replica, 6000, **{"replaced" if is_replaced else "gaps": gaps})
    (missing,) = [each for each in found.differences if each.kind is not DifferenceKind.RECORDED_GAP]
    assert (missing.kind, missing.first_offset, missing.last_offset) == (DifferenceKind.MISSING, 4000, 4000)
