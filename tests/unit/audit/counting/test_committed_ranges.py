"""Ranges of committed batches: model of a group whose members commit, hand over, seek and are killed."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.audit.counting.committed_ranges import CommittedRange
from pipeline.records.batch import BatchHeader
from pipeline.records.batch_hashes import header_table

SIZES = (3, 1, 4, 2, 5, 1, 3, 2, 4, 5)
ENDS = [int(end) for end in np.cumsum(SIZES)]
LOG_END = ENDS[-1]


def header(base: int, records: int) -> BatchHeader:
    return BatchHeader(base, 100, 0, 2, base, 0, records - 1, 0, 0, -1, -1, -1, records)


LOG = [header(end - size, size) for end, size in zip(ENDS, SIZES, strict=True)]


@dataclass
class Member:
    """A member and what it counted: for each range the offsets after its batches."""

    range: CommittedRange = field(default_factory=CommittedRange)
    counted: dict[int, list[int]] = field(default_factory=dict)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)

    def fetch(self, position: int, batches: int) -> int:
        """Fetch from a position on, as brokers answer; return the offset after the batches."""
        found = [each for each in LOG if each.next_offset > position][:batches]
        if not found:
            return position
        self.range.fetched(header_table(found), position, found[-1].next_offset)
        return found[-1].next_offset

    def commit(self, offset: int) -> None:
        table = self.range.committed(offset)
        ends = (table["base_offset"] + table["last_offset_delta"] + 1).tolist()
        if self.range.end_offset >= 0:
            self.counted.setdefault(self.range.number, []).extend(ends)
            self.spans[self.range.number] = self.range.start_offset, self.range.end_offset


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fetch", "commit", "hand over", "lost commit", "kill", "seek", "move"]),
        st.integers(0, 5),
    ),
    max_size=40,
)


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_ranges_hold_each_committed_batch_once_and_holes_show(steps: list[tuple[str, int]]) -> None:
    members = [Member(), Member()]
    lost: list[Member] = []
    owner, committed, position, at = 0, 0, 0, 0
    for step, amount in steps:
        member = members[owner]
        match step:
            case "fetch":
                position = member.fetch(position, amount)
            case "commit":
                at = min(position, committed + amount * 2) if amount < 5 else position
                if at > committed:
                    committed = at
                    member.commit(at)
            case "lost commit":  # the offset is stored, and the member does not hear of it
                committed = max(committed, min(position, committed + amount))
            case "hand over":
                member.range.give_up()
                owner, position = 1 - owner, committed
            case "kill":
                lost.append(member)
                members[owner] = Member()
                position = committed
            case "seek":
                position = min(committed + amount, LOG_END)
            case "move":  # to another stream of the member: what was not handed out comes again
                position = max(committed, position - amount)
    everyone = [*members, *lost]
    counted = [end for each in everyone for ends in each.counted.values() for end in ends]
    spans = sorted(span for each in everyone for span in each.spans.values())
    assert len(counted) == len(set(counted))  # invariant A
    for each in everyone:
        for number, (start, end) in each.spans.items():  # a range holds all of its batches
            assert sorted(each.counted[number]) == [found for found in ENDS if start < found <= end]
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start


def test_a_commit_within_a_batch_leaves_the_batch_to_the_next_member() -> None:
    first, second = Member(), Member()
    first.fetch(0, 3)
    first.commit(6)
    first.range.give_up()
    second.fetch(6, 2)
    second.commit(10)
    assert first.counted == {0: [3, 4]}
    assert first.spans == {0: (0, 6)}
    assert second.counted == {0: [8, 10]}
    assert second.spans == {0: (6, 10)}


def test_what_another_member_committed_meanwhile_is_a_hole() -> None:
    member = Member()
    member.fetch(0, 3)
    member.commit(3)
    member.range.give_up()
    member.fetch(8, 2)
    member.commit(10)
    assert member.spans == {0: (0, 3), 1: (8, 10)}
    assert member.counted == {0: [3], 1: [10]}


def test_a_partition_that_comes_back_where_it_was_fetched_to_does_not_count_what_others_committed() -> None:
    member = Member()
    assert member.fetch(0, 4) == 10
    member.commit(4)
    member.range.give_up()
    member.fetch(10, 1)  # another member has committed 10
    member.commit(15)
    assert member.counted == {0: [3, 4], 1: [15]}


def test_records_that_are_read_again_after_a_seek_are_not_counted_again() -> None:
    member = Member()
    member.fetch(0, 4)
    member.commit(10)
    member.fetch(0, 5)
    member.commit(4)
    member.commit(15)
    assert member.counted == {0: [3, 4, 8, 10, 15]}
    assert member.spans == {0: (0, 15)}


def test_a_commit_beyond_what_was_fetched_counts_what_was_seen_alone() -> None:
    member = Member()
    member.fetch(0, 2)
    member.commit(20)
    member.fetch(20, 1)
    member.commit(21)
    assert member.spans == {0: (0, 4), 1: (20, 21)}


def test_batches_that_are_too_many_are_a_hole() -> None:
    member = Member()
    member.fetch(0, 2)
    member.commit(3)
    member.range.forget_waiting()
    member.fetch(4, 2)
    member.commit(10)
    assert member.spans == {0: (0, 3), 1: (4, 10)}
    assert member.range.waiting == 0
