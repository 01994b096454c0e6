"""The judge of the fault tests finds what is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.cluster.client import Place, Read, Written, copies_in, judge, sent_again, without

PLACE = ("topic", 0)
OTHER = ("topic", 1)


def judged(records: Mapping[Place, Sequence[tuple[bytes, int]]], read: set[int]) -> list[str]:
    log = {place: dict(enumerate(of_place)) for place, of_place in records.items()}
    return judge(Written(sent=4, acknowledged={0, 1, 2}), log, Read(values=read)).faults


@pytest.mark.parametrize("unacknowledged", [[], [(b"b", 3)]])
def test_the_judge_accepts_a_log_without_losses(unacknowledged: Any) -> None:
    log = {PLACE: [(b"a", 0), (b"a", 2)], OTHER: [(b"b", 1), *unacknowledged]}
    assert judged(log, {0, 1, 2, 3}) == []


def test_a_lost_record_is_found() -> None:
    assert judged({PLACE: [(b"a", 0), (b"a", 1)]}, {0, 1, 2}) == ["1 lost [2]"]


def test_a_doubled_record_is_found() -> None:
    assert judged({PLACE: [(b"a", 0), (b"a", 1), (b"a", 2)], OTHER: [(b"a", 2)]}, {0, 1, 2}) == [
        "1 doubled ['2 at topic-0 offset 2, topic-1 offset 0']"
    ]


@pytest.mark.parametrize(
    ("epochs", "excused"),
    [([(7, 0), (7, 1)], [1]), ([(7, 0), (7, 0)], []), ([(7, 0), (8, 1)], []), ([(7, 2), (7, 1)], [])],
    ids=["a newer epoch", "the same epoch", "another producer", "an older epoch"],
)
def test_a_record_that_the_client_sent_again_in_a_newer_epoch_is_not_doubled(epochs: Any, excused: Any) -> None:
    log = {PLACE: {0: (b"a", 0), 1: (b"a", 0), 2: (b"b", 1)}}
    copies = copies_in(log)
    assert copies == {0: [(PLACE, 0), (PLACE, 1)]}
    again = sent_again(copies.values(), {(PLACE, offset): epoch for offset, epoch in enumerate(epochs)})
    assert again == {(PLACE, offset) for offset in excused}
    assert len(without(log, again)[PLACE]) == 3 - len(excused)


def test_copies_in_two_partitions_are_doubled_in_any_epoch() -> None:
    log = {PLACE: {0: (b"a", 0)}, OTHER: {0: (b"a", 0)}}
    assert sent_again(copies_in(log).values(), {(PLACE, 0): (7, 0), (OTHER, 0): (7, 1)}) == set()


def test_a_record_before_an_older_one_of_its_key_is_found() -> None:
    log = {PLACE: [(b"a", 0), (b"b", 2), (b"b", 1)]}
    assert judged(log, {0, 1, 2}) == ["1 out of order [1]"]


def test_a_record_that_the_group_did_not_read_is_found() -> None:
    assert judged({PLACE: [(b"a", 0), (b"a", 1), (b"a", 2)]}, {0, 2}) == ["1 unread [1]"]


def test_failed_records_are_told() -> None:
    written = Written(sent=1)
    written.failed["timed out"] += 1
    assert judge(written, {}, Read()).faults == ["1 failed: timed out"]
