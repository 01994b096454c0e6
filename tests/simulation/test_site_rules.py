"""The rules of mirror groups and pauses, on made-up cases."""

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.mirror.journals.pauses import PauseScope
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.testing.simulation.mirrors.mirror_group_rules import MirrorGroupRules
from pipeline.testing.simulation.mirrors.pause_rules import covers
from pipeline.testing.simulation.state_rules import StateInZooKeeper

REPLICA = TopicPartition("orders", 0)
UNIT = ("east", "orders", 0)
OTHER = ("east", "orders", 1)


class Replica:
    """Broker 1's replica, which leads in an epoch."""

    topic_partition = REPLICA
    own_id = BrokerId(1)

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = LeaderEpoch(leader_epoch)


def rules(leader: int = 1, leader_epoch: int = 3) -> MirrorGroupRules:
    zookeeper: Any = SimpleNamespace(on_changes=lambda _znodes: None)
    state = StateInZooKeeper(leader=leader, leader_epoch=leader_epoch, isr=(leader,))
    return MirrorGroupRules(zookeeper, lambda _replica: state)


@pytest.mark.parametrize(
    ("assignments", "problems"),
    [
        ([{UNIT: ("a", 5)}, {UNIT: ("a", 5), OTHER: ("b", 6)}, {UNIT: ("b", 7), OTHER: ("b", 6)}], 0),
        ([{UNIT: ("a", 5)}, {UNIT: ("b", 5)}], 1),
        ([{UNIT: ("a", 5)}, {UNIT: ("a", 6)}], 1),
        ([{UNIT: ("a", 5)}, {}, {UNIT: ("a", 5)}], 1),
        ([{UNIT: ("a", 5)}, {UNIT: ("b", 7)}, {UNIT: ("a", 5)}], 1),
    ],
    ids=["epochs rise", "an epoch of two members", "a new epoch for what stays", "an old epoch again", "overwritten"],
)
def test_a_unit_that_moves_gets_an_epoch_above_all_others(
    assignments: list[dict[tuple[str, str, int], tuple[str, int]]], problems: int
) -> None:
    found = rules()
    for assigned in assignments:
        found.judge(assigned)
    assert len(found.problems) == problems, found.problems


@pytest.mark.parametrize(
    ("epoch", "leader_epoch", "problems"), [(8, 3, 0), (9, 3, 0), (7, 3, 1), (-1, 3, 1), (7, 2, 0)]
)
def test_no_batch_of_an_older_copier_is_appended_by_the_leader(epoch: int, leader_epoch: int, problems: int) -> None:
    partition: Any = Replica(leader_epoch)
    found = rules()
    found.claimed(REPLICA, 8)
    found.checked(partition, epoch)
    found.appended(partition)
    assert len(found.problems) == problems


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (PauseScope(flow="east"), True),
        (PauseScope(flow="west"), False),
        (PauseScope(source="east"), True),
        (PauseScope(source="east", topic="orders"), True),
        (PauseScope(source="west", topic="orders"), False),
        (PauseScope(source="east", topic="orders", partition=0), True),
        (PauseScope(source="east", topic="orders", partition=1), False),
    ],
    ids=str,
)
def test_a_pause_holds_the_partitions_of_its_scope(scope: PauseScope, expected: bool) -> None:
    assert covers(scope, "east", REPLICA) == expected
