"""What wishes to move replicas make of a topic's znode (KIP-455)."""

import time
import uuid

import pytest

from pipeline.broker.cluster.view import PartitionView
from pipeline.broker.controller.reassignment import Target, ended, reassign
from pipeline.coordination.znodes import TopicAssignment
from pipeline.model import BrokerId, LeaderEpoch
from pipeline.protocol.errors import ErrorCode

LIVE = frozenset(map(BrokerId, range(1, 7)))


def brokers(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(letter)) for letter in text)


def assignment(replicas: str, adding: str = "", removing: str = "") -> TopicAssignment:
    return TopicAssignment(
        topic="t",
        topic_id=uuid.UUID(int=1),
        partitions={0: brokers(replicas), 1: brokers("1")},
        adding_replicas={0: brokers(adding)} if adding else {},
        removing_replicas={0: brokers(removing)} if removing else {},
    )


def known(isr: str) -> dict[int, PartitionView]:
    found = PartitionView(
        replicas=(), leader=brokers(isr)[0], leader_epoch=LeaderEpoch(0), isr=brokers(isr), state_version=0
    )
    return {0: found, 1: found}


@pytest.mark.parametrize(
    ("before", "target", "after", "loses_replicas"),
    [
        pytest.param(assignment("123"), "345", assignment("34512", "45", "12"), False, id="moved"),
        pytest.param(assignment("123"), "321", assignment("321"), False, id="another order"),
        pytest.param(assignment("123"), "12", assignment("123", removing="3"), False, id="fewer"),
        pytest.param(assignment("12"), "123", assignment("123", "3"), False, id="more"),
        pytest.param(assignment("34512", "45", "12"), None, assignment("312"), True, id="stopped"),
        pytest.param(assignment("34512", "45", "12"), "126", assignment("1263", "6", "3"), True, id="elsewhere"),
    ],
)
def test_replicas_that_come_and_go(
    before: TopicAssignment, target: str | None, after: TopicAssignment, loses_replicas: bool
) -> None:
    wanted: Target = None if target is None else brokers(target)
    decided = reassign(before, known("123"), {0: wanted}, LIVE, may_change_factor=True)
    assert decided.results[0].code == ErrorCode.NONE
    assert decided.assignment == after
    assert decided.losing_replicas == ((0,) if loses_replicas else ())
    if wanted is not None:
        assert ended(after, {0: wanted}) == assignment(target or "")


@pytest.mark.parametrize(
    ("before", "target", "isr", "may_change", "code"),
    [
        (assignment("123"), "", "123", True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assignment("123"), "144", "123", True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assignment("123"), "129", "123", True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assignment("123"), "12", "123", False, ErrorCode.INVALID_REPLICATION_FACTOR),
        (assignment("123"), None, "123", True, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (assignment("34512", "45", "12"), None, "45", True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (assignment("34512", "45", "12"), "126", "4", True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        pytest.param(
            assignment("34912", "49", "12"), None, "94", True, ErrorCode.INVALID_REPLICA_ASSIGNMENT, id="only new ones"
        ),
        pytest.param(
            assignment("459", "45", "9"), None, "49", True, ErrorCode.INVALID_REPLICA_ASSIGNMENT, id="the other is dead"
        ),
    ],
)
def test_refused_wishes_leave_everything_as_it_is(
    before: TopicAssignment, target: str | None, isr: str, may_change: bool, code: ErrorCode
) -> None:
    wanted: Target = None if target is None else brokers(target)
    decided = reassign(before, known(isr), {0: wanted, 7: brokers("1")}, LIVE, may_change_factor=may_change)
    assert decided.results[0].code == code
    assert decided.results[7].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert decided.assignment == before


def test_partitions_of_one_topic_are_moved_by_one_write() -> None:
    wishes: dict[int, Target] = {0: brokers("3"), 1: brokers("2")}
    decided = reassign(assignment("1"), known("1"), wishes, LIVE, may_change_factor=True)
    assert decided.assignment.partitions == {0: brokers("31"), 1: brokers("21")}
    assert decided.assignment.adding_replicas == {0: brokers("3"), 1: brokers("2")}
    assert decided.assignment.removing_replicas == {0: brokers("1"), 1: brokers("1")}


def test_a_wish_costs_as_much_in_a_large_topic_as_in_a_small_one() -> None:
    count, view = 5000, known("1")[0]
    large = TopicAssignment(topic="t", topic_id=uuid.UUID(int=1), partitions=dict.fromkeys(range(count), brokers("1")))
    wishes: dict[int, Target] = dict.fromkeys(range(count), brokers("2"))
    started_s = time.thread_time()
    decided = reassign(large, dict.fromkeys(range(count), view), wishes, LIVE, may_change_factor=True)
    over = ended(decided.assignment, dict.fromkeys(range(count), brokers("2")))
    assert time.thread_time() - started_s < 1
    assert decided.assignment.partitions == dict.fromkeys(range(count), brokers("21"))
    assert over.partitions == dict.fromkeys(range(count), brokers("2"))
    assert (over.adding_replicas, over.removing_replicas) == ({}, {})


def test_a_wish_for_very_many_replicas_costs_little() -> None:
    target = tuple(map(BrokerId, range(30_000)))
    started_s = time.thread_time()
    decided = reassign(assignment("123"), known("123"), {0: target}, LIVE, may_change_factor=True)
    assert time.thread_time() - started_s < 0.5
    assert decided.results[0].code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert decided.assignment == assignment("123")
