"""The gap ledger: records that are read back, records that nobody wrote, and the fold."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.mirror.journals.gaps import (
    Gap,
    GapLedger,
    GapReason,
    GapRecordError,
    decode_gap,
    gap_of,
    recreation_of,
)
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.model import TopicPartition

CLICKS = TopicPartition("clicks", 0)
SOURCE = SourcePartition(cluster="east", partition=CLICKS, topic_id=UUID(int=7))
REPLICA = TopicPartition("clicks", 3)
ASSIGNMENT = Assignment(source=SOURCE, replica=REPLICA)
RANGES = [reason for reason in GapReason if reason is not GapReason.RECREATED]
"""Reasons of gaps whose end is known."""


def gap(first: int, last: int, reason: GapReason = GapReason.RETENTION, **fields: Any) -> Gap:
    return gap_of(ASSIGNMENT, first, last, reason, now_ms=1_700_000_000_000, **fields)


def ledger_of(*gaps: Gap) -> GapLedger:
    ledger = GapLedger()
    for one in gaps:
        ledger.apply(one)
    return ledger


@given(
    st.integers(0, 2**62),
    st.integers(0, 2**60),
    st.sampled_from(RANGES),
    st.sampled_from([None, "an id"]),
    st.sampled_from(["", "why"]),
)
def test_a_gap_is_read_back_as_it_was_written(first: Any, more: Any, reason: Any, cluster_id: Any, detail: Any) -> None:
    written = gap(first, first + more, reason, cluster_id=cluster_id, detail=detail)
    key, value = written.encode()
    assert key == b"east/clicks/0"
    assert decode_gap(value) == written
    assert written.missing_at_most == more + 1


def test_the_end_of_a_recreated_topic_is_read_back_and_counts_once_for_its_id() -> None:
    ended = recreation_of(ASSIGNMENT, 12, now_ms=1_700_000_000_000, cluster_id="an id", detail="why")
    assert json.loads(ended.encode()[1])["last"] is None
    assert decode_gap(ended.encode()[1]) == ended
    assert (ended.missing_at_most, ended.topic_id) == (None, UUID(int=7))
    later = recreation_of(ASSIGNMENT, 15, now_ms=1, cluster_id="an id", detail="")
    ledger = ledger_of(gap(12, 19), ended, later)
    assert list(ledger)[1:] == [ended]
    assert ledger.is_replaceable(SOURCE)
    assert not ledger.is_replaceable(replace(SOURCE, topic_id=UUID(int=8)))
    assert ledger.continues_at("east", REPLICA, 12) == 20  # the old copy goes nowhere
    assert ledger.continues_at("east", TopicPartition("clicks", 4), 12) == 12  # nor does the new topic's
    assert ledger.totals["east", GapReason.RECREATED].offsets is None


FIELDS = json.loads(gap(1, 2).encode()[1])
WRONG: list[dict[str, Any]] = [
    {"version": 2},
    {"source": ""},
    {"source": "a\nb"},
    {"topic": None},
    {"partition": -1},
    {"partition": True},
    {"partition": 2**31},
    {"replica_topic": 7},
    {"first": 3},
    {"first": 1.5},
    {"last": 2**63},
    {"time_ms": 2**62},
    {"reason": "fun"},
    {"last": None},
    {"reason": "recreated"},
    {"reason": "recreated", "topic_id": "7"},
    {"cluster_id": []},
    {"detail": "x" * 2000},
]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[" * 10_000,
        b"[]",
        b"x" * 20_000,
        *(json.dumps({**FIELDS, **wrong}).encode() for wrong in WRONG),
        *(json.dumps({k: v for k, v in FIELDS.items() if k != field}).encode() for field in ("version", "last")),
    ],
)
def test_a_record_that_is_no_gap_is_refused(value: Any) -> None:
    with pytest.raises(GapRecordError):
        decode_gap(value)


def test_a_gap_that_is_recorded_twice_is_one() -> None:
    ledger = ledger_of(gap(5, 9), gap(5, 9), gap(5, 19), gap(10, 19))
    assert [(one.first, one.last) for one in ledger] == [(5, 9), (10, 19)]
    assert ledger.continues_at("east", REPLICA, 5) == 20
    assert ledger.continues_at("east", REPLICA, 6) == 6
    assert ledger.continues_at("west", REPLICA, 5) == 5


def test_a_truncated_range_moves_no_replica_that_ends_where_the_range_begins() -> None:
    ledger = ledger_of(gap(5, 9, GapReason.TRUNCATED), gap(5, 11, GapReason.TRUNCATED))
    assert len(list(ledger)) == 2
    assert ledger.continues_at("east", REPLICA, 5) == 5
    assert [ledger.truncated_from("east", REPLICA, end) for end in (5, 9, 10, 11, 12)] == [None, None, 5, None, 5]


def test_a_truncated_range_begins_where_the_source_lost_most() -> None:
    ledger = ledger_of(*(gap(first, 9, GapReason.TRUNCATED) for first in (7, 3, 5)))
    assert len(list(ledger)) == 3
    assert ledger.truncated_from("east", REPLICA, 10) == 3


def test_a_truncated_range_that_follows_another_is_skipped() -> None:
    ledger = ledger_of(gap(5, 9, GapReason.TRUNCATED), gap(10, 11, GapReason.TRUNCATED))
    assert ledger.continues_at("east", REPLICA, 10) == 12


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10), st.sampled_from(RANGES))))
def test_deleted_offsets_are_counted_once(found: list[tuple[int, int, GapReason]]) -> None:
    gaps = [gap(first, first + more, reason) for first, more, reason in found]
    ledger = ledger_of(*gaps)
    offsets = {
        offset
        for one in ledger
        if one.reason in (GapReason.START, GapReason.RETENTION)
        for offset in range(one.first, one.last + 1)
    }
    assert ledger.deleted_offsets().get(("east", REPLICA), 0) == len(offsets)
