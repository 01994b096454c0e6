"""The rules of groups, states and removals, on made-up cases."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.model import BrokerId, Offset, TopicPartition
from pipeline.testing.simulation.group_rules import NO_GENERATION, GroupRules
from pipeline.testing.simulation.removal_rules import RemovalRules
from pipeline.testing.simulation.state_rules import StateInZooKeeper, StateRules, judge_states
from pipeline.testing.simulation.watermark_rules import WatermarkRules

HERE = TopicPartition("orders", 0)
OFFSET = Offset(5)


def state(leader: int, epoch: int, *isr: int) -> StateInZooKeeper:
    return StateInZooKeeper(leader=leader, leader_epoch=epoch, isr=isr)


@pytest.mark.parametrize(
    ("before", "now", "problem"),
    [
        (state(1, 1, 1, 2), state(2, 2, 2), None),
        (state(1, 1, 1, 2), state(1, 2, 1, 2), None),
        (state(1, 1, 1), state(-1, 2), None),
        (state(1, 1, 1, 2), state(3, 2, 3, 1, 2), "elects a replica that was not in sync"),
        (state(1, 1, 1, 2), state(1, 1, 2), "is led by a replica that is not in sync"),
        (state(1, 3, 1, 2), state(1, 2, 1, 2), "the leader epoch goes back"),
        (state(1, 1, 1, 2), state(2, 1, 1, 2), "another leader in the same epoch"),
        (state(-1, 1), state(-1, 1, 3), "somebody is in sync again where nobody was"),
    ],
)
def test_a_state_follows_another(before: StateInZooKeeper, now: StateInZooKeeper, problem: str | None) -> None:
    assert judge_states(before, now, is_single=False) == ([] if problem is None else [problem])


def test_the_only_replica_leads_with_what_is_left() -> None:
    assert judge_states(state(-1, 1), state(1, 2, 1), is_single=True) == []


def test_the_only_replica_stays_in_sync_while_it_is_moved() -> None:
    rules = StateRules()
    rules.written(HERE, state(1, 1, 1), is_single=False, has_one_origin=True)
    assert rules.problems == []
    rules.written(HERE, state(-1, 2), is_single=False, has_one_origin=True)
    assert len(rules.problems) == 1


def test_states_of_a_topic_that_is_recreated_begin_anew() -> None:
    rules = StateRules()
    for written in (state(1, 7, 1), None, state(2, 0, 2)):
        rules.written(HERE, written, is_single=False)
    assert rules.problems == []


def synced(rules: GroupRules, member: str, generation: int, at_s: float) -> None:
    rules.synced(member, generation, least=rules.least_generation(at_s), now_s=at_s)
    rules.is_member(member, generation, asked_s=at_s)


def test_a_generation_goes_back_only_when_nobody_lives() -> None:
    rules = GroupRules("team", session_timeout_s=3)
    synced(rules, "a", 4, at_s=0)
    synced(rules, "b", 5, at_s=1)
    assert rules.problems == []
    synced(rules, "c", 1, at_s=4.5)
    assert rules.problems == []
    synced(rules, "a", 2, at_s=5)
    synced(rules, "b", 1, at_s=6)
    assert rules.problems == ["team: b syncs generation 1, while 2 lives"]


def test_a_member_that_left_does_not_live() -> None:
    rules = GroupRules("team", session_timeout_s=3)
    synced(rules, "a", 4, at_s=0)
    rules.left("a")
    assert rules.least_generation(0) == NO_GENERATION
    synced(rules, "b", 1, at_s=1)
    assert rules.problems == []


def test_a_late_answer_is_judged_by_what_was_known_when_it_was_asked_for() -> None:
    rules = GroupRules("team", session_timeout_s=3)
    synced(rules, "a", 5, at_s=1)
    rules.synced("b", 4, least=NO_GENERATION, now_s=1)
    assert rules.problems == []


def test_a_partition_has_one_owner_in_a_generation() -> None:
    rules = GroupRules("team", session_timeout_s=3)
    rules.owns("a", 1, (HERE,))
    rules.owns("a", 1, (HERE,))
    rules.owns("b", 2, (HERE,))
    assert rules.problems == []
    rules.owns("c", 2, (HERE,))
    assert rules.problems == ["team: orders-0 has two owners in generation 2: b, c"]


def test_a_committed_offset_goes_back_only_if_somebody_commits_a_lower_one() -> None:
    rules = GroupRules("team", session_timeout_s=3)
    rules.committing(HERE, OFFSET)
    assert HERE not in rules.committed
    rules.has_committed(HERE, OFFSET)
    rules.committing(HERE, Offset(7))
    rules.fetched("a", HERE, rules.committed[HERE], OFFSET)
    assert rules.problems == []
    rules.fetched("a", HERE, rules.committed[HERE], Offset(4))
    assert len(rules.problems) == 1
    rules.committing(HERE, Offset(2))
    rules.fetched("a", HERE, rules.committed[HERE], Offset(2))
    assert len(rules.problems) == 1


def test_a_log_is_removed_only_when_somebody_asked_for_it() -> None:
    rules = RemovalRules()
    rules.moved[HERE] = None
    rules.removed(BrokerId(1), HERE, (2, 3))
    rules.deleted["views"] = None
    rules.removed(BrokerId(1), TopicPartition("views", 0), None)
    assert rules.problems == []
    rules.removed(BrokerId(1), HERE, None)
    rules.removed(BrokerId(1), TopicPartition("orders", 1), None)
    assert len(rules.problems) == 2


@pytest.mark.parametrize("has_lost_power", [True, False])
def test_a_move_to_a_machine_that_has_just_lost_its_power_takes_what_was_not_flushed(has_lost_power: bool) -> None:
    rules, log = WatermarkRules(min_isr=1), SimpleNamespace(log_end_offset=OFFSET, topic_id=None, failure=None)
    replica: Any = SimpleNamespace(topic_partition=HERE, own_id=BrokerId(1), log=log, is_leader=True)
    rules.loaded(BrokerId(1), replica)
    rules.moved(replica, Offset(0), OFFSET, 1)
    if has_lost_power:
        rules.lost_power(BrokerId(1), {HERE: (1, 2)})
    rules.left_alone(HERE, BrokerId(1))
    assert rules.committed((HERE, None)) == (None if has_lost_power else OFFSET)
