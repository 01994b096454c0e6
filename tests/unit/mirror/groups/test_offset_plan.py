"""Which committed offsets are written to the hub: as they are, in time, and never over somebody else's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.admin.groups import CommittedOffset
from pipeline.mirror.groups.offset_plan import (
    MAX_COMMIT_BYTES,
    MAX_COMMIT_PARTITIONS,
    MAX_MARKS,
    GroupMarksError,
    MarksKey,
    append_marks,
    commits_of,
    decode_marks,
    decode_marks_key,
    encode_marks,
    mark_of,
    marks_after,
    merge_marks,
    plan_group,
)
from pipeline.model import TopicPartition

CLICKS = TopicPartition("clicks", 3)


def at(offset: int, metadata: str | None = "", epoch: int = -1) -> CommittedOffset:
    return CommittedOffset(offset=offset, metadata=metadata, leader_epoch=epoch)


def test_an_offset_is_copied_with_its_metadata_and_without_its_epoch() -> None:
    plan = plan_group({CLICKS: at(7, "näch\tste", epoch=4)}, {CLICKS: None}, {}, {CLICKS: 7})
    assert plan.writes == {CLICKS: at(7, "näch\tste")}


def test_an_offset_beyond_the_replica_waits() -> None:
    for ends in ({CLICKS: 6}, {}):
        plan = plan_group({CLICKS: at(7)}, {CLICKS: None}, {}, ends)
        assert (plan.writes, plan.waiting) == ({}, [CLICKS])


def test_a_partition_that_the_hub_did_not_answer_for_waits() -> None:
    assert plan_group({CLICKS: at(7)}, {}, {}, {CLICKS: 9}).waiting == [CLICKS]


@pytest.mark.parametrize("there", [at(5), at(7, "note"), at(7, epoch=2)])
def test_an_offset_without_a_mark_is_left_alone(there: CommittedOffset) -> None:
    plan = plan_group({CLICKS: at(9)}, {CLICKS: there}, {"clicks": {3: ["7"], 5: ["5"]}}, {CLICKS: 9})
    assert (plan.writes, plan.moved_on) == ({}, [CLICKS])


def test_a_copy_follows_its_source_also_backwards_and_is_written_once() -> None:
    marks = {"clicks": {3: ["7"]}}
    assert plan_group({CLICKS: at(2)}, {CLICKS: at(7)}, marks, {CLICKS: 9}).writes == {CLICKS: at(2)}
    plan = plan_group({CLICKS: at(7, epoch=3)}, {CLICKS: at(7)}, marks, {CLICKS: 9})
    assert (plan.writes, plan.waiting, plan.moved_on) == ({}, [], [])


def test_null_metadata_equal_empty_ones() -> None:
    assert mark_of(at(7, None)) == mark_of(at(7))


def test_marks_hold_the_commit_before_and_after_a_lost_answer() -> None:
    before = {"clicks": {3: ["1", "2"], 4: ["8"]}}
    after = marks_after({CLICKS: at(3)}, {CLICKS: at(1)}, before)
    assert after == {"clicks": {3: ["2", "1", "3"], 4: ["8"]}}
    assert marks_after({CLICKS: at(3)}, {CLICKS: None}, {}) == {"clicks": {3: ["3"]}}


@given(st.lists(st.sampled_from("abcdef")), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=2))
def test_marks_are_few_and_the_newest_are_kept(known: list[str], newer: list[str]) -> None:
    marks = append_marks(known, *newer)
    assert len(marks) <= MAX_MARKS
    assert len(set(marks)) == len(marks)
    assert marks[-1] == newer[-1]
    assert set(newer) <= set(marks)


def test_records_are_read_as_they_were_written() -> None:
    key = MarksKey(source="east", group='a/"b"', topic="clicks")
    assert decode_marks_key(key.encode()) == key
    assert decode_marks(encode_marks({3: ["1", "2:ab"], 10: []})) == {3: ["1", "2:ab"], 10: []}


def test_records_of_two_mirrors_are_merged() -> None:
    assert merge_marks({3: ["1", "2"]}, {3: ["1", "4"], 5: ["9"]}) == {3: ["2", "1", "4"], 5: ["9"]}


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"version":2,"marks":{}}', b'{"version":1,"marks":{"a":[]}}'])
def test_an_unreadable_record_is_an_error(value: bytes) -> None:
    with pytest.raises(GroupMarksError):
        decode_marks(value)


def test_an_unreadable_key_is_an_error() -> None:
    for key in (b"", b"7", b'["east"]'):
        with pytest.raises(GroupMarksError):
            decode_marks_key(key)


def test_a_record_that_no_broker_takes_is_an_error() -> None:
    with pytest.raises(GroupMarksError, match="too many partitions"):
        encode_marks({number: ["1234567890"] for number in range(60_000)})


def test_commits_are_divided_into_requests_of_bounded_size() -> None:
    many = {TopicPartition("clicks", number): at(number) for number in range(MAX_COMMIT_PARTITIONS + 1)}
    large = {TopicPartition("large", number): at(number, "x" * 4096) for number in range(100)}
    requests = commits_of({**many, **large})
    assert {each: one for request in requests for each, one in request.items()} == {**many, **large}
    assert max(map(len, requests)) <= MAX_COMMIT_PARTITIONS
    assert max(sum(len(one.metadata or "") for one in request.values()) for request in requests) <= MAX_COMMIT_BYTES
    assert commits_of({}) == []
