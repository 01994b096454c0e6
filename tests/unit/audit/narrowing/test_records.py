"""Records of two copies: each difference is found at its offset, and has its name."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.judgement.verdicts import DiscrepancyKind, OffsetSpan
from pipeline.audit.narrowing.records import (
    Elsewhere,
    PlacedContent,
    RecordContent,
    RecordDifference,
    TooManyRecordsError,
    compare_records,
    header_fields_that_differ,
    join_differences,
    placed_contents,
    placed_elsewhere,
    unlike_contents,
)
from pipeline.audit.narrowing.sequences import repeated_batches, sequence_gaps
from pipeline.records.batch import BatchHeader, iterate_headers, read_header
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.mirrors import batch_at


def content(name: str, timestamp_ms: int = 1) -> RecordContent:
    return RecordContent(timestamp_ms, None, name.encode(), ())


def placed(**records: int) -> list[PlacedContent]:
    """Records by name, at their offsets."""
    return [PlacedContent(offset=offset, content=content(name[0])) for name, offset in records.items()]


def found(source: list[PlacedContent], replica: list[PlacedContent]) -> list[tuple[str, int]]:
    return [(each.kind.value, each.offsets.first) for each in compare_records(source, replica)]


SOURCE = placed(a=0, b=1, c=2, d=3)


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        (placed(a=0, b=1, c=2, d=3), []),
        (placed(a=0, c=2, d=3), [("missing", 1)]),
        ([], [("missing", 0), ("missing", 1), ("missing", 2), ("missing", 3)]),
        (placed(a=0, x=1, c=2, d=3), [("changed", 1)]),
        (placed(a=0, b=1, c=2, d=3, d2=4), [("doubled", 4)]),
        (placed(a=0, b=1, c=2, d=3, x=4), [("unexplained", 4)]),
        (placed(a=0, c=1, b=2, d=3), [("reordered", 1), ("reordered", 2)]),
        (placed(a=0, a2=1, c=2, d=3), [("doubled", 1), ("missing", 1)]),
        (placed(a=0, b=1, c=2), [("missing", 3)]),
    ],
)
def test_each_kind_is_named_at_its_offset(replica: list[PlacedContent], expected: list[tuple[str, int]]) -> None:
    assert found(SOURCE, replica) == expected


def test_equal_records_are_no_doubled_ones() -> None:
    source = placed(a=0, a2=1, a3=2)
    assert found(source, placed(a=0, a2=1, a3=2)) == []
    assert found(source, placed(a=0, a2=1)) == [("missing", 2)]
    assert found(source, placed(a=0, a2=1, a3=2, a4=3)) == [("doubled", 3)]


def test_what_is_outside_of_the_ranges_counts() -> None:
    """One lost and one doubled: the doubled record is an equal one elsewhere, outside of the ranges that differ."""
    source, replica = placed(b=7), placed(a=7)
    assert found(source, replica) == [("changed", 7)]
    elsewhere = Elsewhere()
    elsewhere.note(placed(a=3, z=4), unlike_contents(source, replica))
    assert elsewhere.counts == {content("a"): 1}
    differences = compare_records(source, replica, elsewhere, elsewhere)
    assert [(each.kind, each.offsets.first) for each in differences] == [("doubled", 7), ("missing", 7)]
    assert str(differences[0].origin) == "offset 3"


def test_a_changed_record_says_which_fields() -> None:
    record = PlacedContent(offset=0, content=RecordContent(1, b"k", b"v", (("h", b"1"),)))
    for change, name in (
        ({"timestamp_ms": 2}, "timestamp"),
        ({"key": None}, "key"),
        ({"value": b""}, "value"),
        ({"headers": ()}, "headers"),
        ({"key": b"x", "value": None}, "key, value"),
    ):
        other = replace(record, content=record.content._replace(**change))
        (difference,) = compare_records([record], [other])
        assert difference.kind is DiscrepancyKind.CHANGED and difference.detail == f"{name} differs"


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abcx"), max_size=8))
def test_numbers_add_up(source: list[str], replica: list[str]) -> None:
    ours, theirs = (
        [PlacedContent(offset=offset, content=content(name)) for offset, name in enumerate(names)]
        for names in (source, replica)
    )
    differences = compare_records(ours, theirs)
    counts = {kind: sum(each.records for each in differences if each.kind is kind) for kind in DiscrepancyKind}
    more = counts[DiscrepancyKind.DOUBLED] + counts[DiscrepancyKind.UNEXPLAINED]
    assert len(theirs) - len(ours) == more - counts[DiscrepancyKind.MISSING]
    assert (differences == []) == (ours == theirs)


def test_records_swapped_between_two_partitions_are_misplaced_in_both() -> None:
    here, there = compare_records(placed(a=5), placed(b=5)), compare_records(placed(b=9), placed(a=9))
    (first,), (second,) = (
        placed_elsewhere(here, {"clicks-1": there}),
        placed_elsewhere(there, {"clicks-0": here}),
    )
    assert first.kind is second.kind is DiscrepancyKind.MISPLACED
    assert str(first.whereto) == str(first.origin) == "offset 9 of clicks-1"
    assert str(second.origin) == "offset 5 of clicks-0"
    assert placed_elsewhere(here, {"clicks-2": compare_records(placed(x=1), placed(y=1))}) == here


def test_neighbours_of_one_kind_are_joined() -> None:
    differences = join_differences(compare_records(SOURCE, placed(a=0, d=3)))
    assert [(each.offsets, each.records) for each in differences] == [(OffsetSpan(first=1, last=2), 2)]
    assert isinstance(differences[0], RecordDifference) and len(differences[0].lost) == 2


@pytest.mark.long
def test_many_neighbours_are_joined_in_a_moment() -> None:
    """An hour that a replica lacks may have a million records."""
    many = [PlacedContent(offset=offset, content=content("x", offset)) for offset in range(30_000)]
    began_s = time.thread_time()
    (lost,) = join_differences(compare_records(many, []))
    assert lost.records == len(lost.lost) == 30_000
    assert time.thread_time() - began_s < 5


def test_records_that_would_take_too_much_memory_are_refused() -> None:
    """Batches are compressed: a few of them may have more records than the memory can hold."""
    builder = BatchBuilder(Codec.ZSTD, 1 << 20)
    while builder.append(None, bytes(1_000), (), 1):
        pass
    data = memoryview(builder.build())
    header = read_header(data)
    assert header.size_bytes < 10_000
    batches = [(data, header)] * 50
    assert len(placed_contents(batches[:1])) == header.record_count
    with pytest.raises(TooManyRecordsError, match="narrow a smaller range"):
        placed_contents(batches, max_bytes=10 << 20)


def test_batches_are_opened_within_a_span() -> None:
    data = memoryview(batch_at(10, b"a", b"b", b"c"))
    batches = [(data, read_header(data))]
    assert [record.offset for record in placed_contents(batches)] == [10, 11, 12]
    assert [record.content.value for record in placed_contents(batches, OffsetSpan(first=11, last=11))] == [b"b"]


def test_header_fields_are_named() -> None:
    header = read_header(batch_at(0, b"a"))
    other = header._replace(crc=1, producer_id=7, partition_leader_epoch=5)
    assert header_fields_that_differ(header, other) == ["producer_id"]


def headers_at(*sequences: tuple[int, int, int]) -> list[BatchHeader]:
    """Batches of one record: offset, producer id and sequence number."""
    return [
        read_header(batch_at(offset, b"a"))._replace(
            base_offset=offset, producer_id=producer, producer_epoch=0, base_sequence=sequence, crc=offset
        )
        for offset, producer, sequence in sequences
    ]


def test_gaps_of_sequence_numbers_are_lost_records() -> None:
    headers = headers_at((0, 1, 0), (1, 1, 1), (2, 2, 5), (3, 1, 4), (4, 2, 6))
    assert [(gap.after, gap.before, gap.records, gap.producer_id) for gap in sequence_gaps(headers)] == [(1, 3, 2, 1)]
    wrapped = headers_at((0, 1, 2**31 - 1), (1, 1, 0), (2, 1, 2))
    assert [gap.records for gap in sequence_gaps(wrapped)] == [1]


def test_a_batch_that_was_sent_again_makes_no_gap() -> None:
    headers = headers_at((0, 1, 0), (1, 1, 1), (2, 1, 2), (3, 1, 0), (4, 1, 3), (5, 1, 5))
    assert [(gap.after, gap.before, gap.records) for gap in sequence_gaps(headers)] == [(4, 5, 1)]


def test_a_batch_that_was_sent_again_is_found() -> None:
    data = batch_at(0, b"a") + batch_at(1, b"b") + batch_at(2, b"a")
    (repeated,) = repeated_batches(header for _, header in iterate_headers(data))
    assert repeated.offsets == OffsetSpan(first=2, last=2) and repeated.original == OffsetSpan(first=0, last=0)
