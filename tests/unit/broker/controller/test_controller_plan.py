"""The controller's decisions: a table of single partitions, and rules that hold for any cluster."""

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.broker.cluster.view import NO_BROKER, PartitionView, TopicView
from pipeline.broker.controller.controller_plan import (
    ClusterState,
    ControllerPlan,
    ElectPreferred,
    ElectUnclean,
    Event,
    Look,
    Rebalance,
    plan,
    target_replicas,
)
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.protocol.errors import ErrorCode

CONFIG = BrokerConfig.from_settings(
    {"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "memory:0", "listeners": "PLAINTEXT://127.0.0.1:0"}
)
CLEAN = topic_settings({}, CONFIG)
LOOK = Look()
UNCLEAN = topic_settings({"unclean.leader.election.enable": "true"}, CONFIG)


def brokers(text: str) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(letter)) for letter in text)


def partition(
    replicas: str, leader: int, isr: str, *, epoch: int = 5, adding: str = "", removing: str = ""
) -> PartitionView:
    return PartitionView(
        replicas=brokers(replicas),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=brokers(isr),
        state_version=3,
        adding=brokers(adding),
        removing=brokers(removing),
    )


def state(*partitions: PartitionView, live: str, stopping: str = "", allow_unclean: bool = False) -> ClusterState:
    topic = TopicView(
        name="t",
        topic_id=uuid.UUID(int=1),
        partitions=dict(enumerate(partitions)),
        settings=UNCLEAN if allow_unclean else CLEAN,
    )
    return ClusterState(topics=[topic], live=frozenset(brokers(live)), shutting_down=frozenset(brokers(stopping)))


def decided(planned: ControllerPlan) -> tuple[int, int, str] | None:
    """Leader, epoch and ISR of the one decision."""
    if not planned.decisions:
        return None
    (decision,) = planned.decisions
    return decision.leader, decision.leader_epoch, "".join(map(str, decision.isr))


@pytest.mark.parametrize(
    ("known", "live", "stopping", "allow_unclean", "expected"),
    [
        pytest.param(partition("123", 1, "123"), "123", "", False, None, id="all well"),
        pytest.param(partition("123", 1, "13"), "123", "", False, None, id="growth is the leader's"),
        pytest.param(partition("123", 1, "123"), "23", "", False, (2, 6, "23"), id="leader dead"),
        pytest.param(partition("123", 1, "13"), "23", "", False, (3, 6, "3"), id="only one in sync is alive"),
        pytest.param(partition("123", 1, "123"), "13", "", False, (1, 5, "13"), id="follower dead"),
        pytest.param(partition("123", 1, "1"), "23", "", False, (-1, 6, "1"), id="the last one dies"),
        pytest.param(partition("123", 1, "12"), "3", "", False, (-1, 6, "12"), id="the last ones die together"),
        pytest.param(partition("123", -1, "12", epoch=6), "3", "", False, None, id="still nobody"),
        pytest.param(partition("123", -1, "12", epoch=6), "23", "", False, (2, 7, "2"), id="one of them comes back"),
        pytest.param(partition("123", 1, "1"), "23", "", True, (2, 6, "2"), id="unclean"),
        pytest.param(partition("123", -1, "", epoch=6), "13", "", False, None, id="left by the last"),
        pytest.param(partition("123", -1, "", epoch=6), "13", "", True, (1, 7, "1"), id="left by the last, unclean"),
        pytest.param(partition("123", 1, "1"), "", "", True, (-1, 6, "1"), id="nobody alive"),
        pytest.param(partition("123", 1, "123"), "123", "1", False, (2, 6, "23"), id="leader stops"),
        pytest.param(partition("123", 1, "123"), "123", "2", False, (1, 5, "13"), id="follower stops"),
        pytest.param(partition("123", 1, "1"), "123", "1", False, None, id="the last one stops"),
        pytest.param(partition("123", 1, "123"), "123", "123", False, None, id="all stop"),
        pytest.param(partition("123", 1, "123"), "23", "23", False, (2, 6, "23"), id="leader dead, the others stop"),
        pytest.param(partition("1", 1, "1"), "2", "", False, (-1, 6, "1"), id="one replica, dead"),
        pytest.param(partition("1", -1, "1", epoch=6), "12", "", False, (1, 7, "1"), id="one replica, back"),
        pytest.param(partition("1", -1, "", epoch=6), "12", "", False, (1, 7, "1"), id="one replica, left"),
        pytest.param(
            partition("21", -1, "", epoch=6, adding="2", removing="1"),
            "12",
            "",
            False,
            (1, 7, "1"),
            id="one replica, left while it was moved",
        ),
        pytest.param(
            partition("21", -1, "", epoch=6, adding="2", removing="1"),
            "2",
            "",
            False,
            None,
            id="one replica, left while it was moved, dead",
        ),
        pytest.param(
            partition("21", -1, "", epoch=6, adding="2", removing="1"),
            "2",
            "",
            True,
            (2, 7, "2"),
            id="the new one, uncleanly",
        ),
        pytest.param(partition("12", -1, "", epoch=6, removing="1"), "12", "", False, None, id="one of two is let go"),
        pytest.param(partition("23", 1, "123"), "123", "", False, (2, 6, "23"), id="leader is no replica any more"),
        pytest.param(partition("12", 1, "123"), "123", "", False, (1, 5, "12"), id="removed replica leaves the ISR"),
        pytest.param(
            partition("321", 1, "1", adding="3", removing="12"),
            "23",
            "",
            True,
            (2, 6, "2"),
            id="uncleanly, not the new one",
        ),
        pytest.param(
            partition("341", 1, "13", adding="34", removing="1"), "134", "", False, None, id="target not in sync"
        ),
        pytest.param(
            partition("341", 1, "134", adding="34", removing="1"), "134", "", False, (3, 6, "134"), id="handing over"
        ),
        pytest.param(
            partition("341", 1, "134", adding="34", removing="1"),
            "34",
            "",
            False,
            (3, 6, "34"),
            id="moved, old one dead",
        ),
    ],
)
def test_leaders_and_isr_are_planned_for_each_kind_of_partition_state(
    known: PartitionView, live: str, stopping: str, allow_unclean: bool, expected: tuple[int, int, str] | None
) -> None:
    assert decided(plan(state(known, live=live, stopping=stopping, allow_unclean=allow_unclean), Look())) == expected


@pytest.mark.parametrize(
    ("live", "stopping", "expected"),
    [("123", "", (1, 0, "123")), ("23", "", (2, 0, "23")), ("123", "1", (2, 0, "23")), ("4", "", None)],
)
def test_a_new_partition(live: str, stopping: str, expected: tuple[int, int, str] | None) -> None:
    assert (
        decided(plan(state(PartitionView(replicas=brokers("123")), live=live, stopping=stopping), Look())) == expected
    )


@pytest.mark.parametrize(
    ("known", "broken", "allow_unclean", "expected"),
    [
        pytest.param(partition("123", -1, "", epoch=6), "1", True, (2, 7, "2"), id="another one, uncleanly"),
        pytest.param(partition("123", -1, "", epoch=6), "123", True, None, id="none of them, uncleanly"),
        pytest.param(partition("123", 1, "123"), "1", False, (2, 6, "23"), id="another one in sync"),
        pytest.param(partition("123", 1, "1"), "1", False, (-1, 6, "1"), id="the only one in sync waits for its disk"),
        pytest.param(partition("123", -1, "1", epoch=6), "1", False, None, id="and goes on waiting"),
        pytest.param(partition("123", -1, "1", epoch=6), "", False, (1, 7, "1"), id="and leads again"),
        pytest.param(partition("123", 1, "1"), "1", True, (2, 6, "2"), id="another one, uncleanly, for the only one"),
        pytest.param(partition("1", 1, "1"), "1", True, (-1, 6, "1"), id="the only one"),
        pytest.param(partition("1", -1, "1", epoch=6), "", True, (1, 7, "1"), id="the only one, repaired"),
    ],
)
def test_a_replica_that_was_lost_to_a_disk_is_not_elected(
    known: PartitionView, broken: str, allow_unclean: bool, expected: tuple[int, int, str] | None
) -> None:
    lost = {broker: frozenset({TopicPartition("t", 0)}) for broker in brokers(broken)}
    before = replace(state(known, live="123", allow_unclean=allow_unclean), offline_replicas=lost)
    assert decided(plan(before, Look())) == expected
    by_hand = plan(before, ElectPreferred())
    assert not by_hand.decisions or by_hand.decisions[0].leader not in lost


@pytest.mark.parametrize(
    "known", [partition("12", 1, "12"), partition("12", 2, "12"), partition("12", -1, "12", epoch=6)]
)
def test_dead_replicas_stay_in_sync_where_a_live_replica_was_lost(known: PartitionView) -> None:
    lost = {BrokerId(1): frozenset({TopicPartition("t", 0)})}
    after = plan(replace(state(known, live="1"), offline_replicas=lost), Look())
    assert decided(after) == (None if known.leader == -1 else (-1, 6, "12"))
    back = plan(state(partition("12", -1, "2", epoch=6), live="12"), Look())
    assert decided(back) == (2, 7, "2")


def relied_on(known: PartitionView, live: str, event: Event = LOOK, *, lost: str = "") -> list[tuple[int, ...]]:
    without = {broker: frozenset({TopicPartition("t", 0)}) for broker in brokers(lost)}
    planned = plan(replace(state(known, live=live), offline_replicas=without), event)
    return [decision.relies_on for decision in planned.decisions]


def test_a_decision_relies_on_the_registrations_of_the_members_that_it_keeps() -> None:
    """Without them a dead member, which has everything, would leave the ISR for one that lost its log."""
    assert relied_on(partition("12", 1, "12"), "1") == [(1,)]
    assert relied_on(partition("123", 1, "123"), "23") == [(2, 3)]
    assert relied_on(partition("123", -1, "12", epoch=6), "23") == [(2,)]
    assert relied_on(partition("123", 2, "12"), "123", ElectPreferred()) == [(1, 2)]
    assert relied_on(partition("12", 1, "12"), "1", lost="1") == [()]  # no leader: all stay
    assert relied_on(partition("12", 1, "12"), "") == [()]


def test_another_replica_is_elected_by_hand_in_the_place_of_one_that_lost_its_disk() -> None:
    for known in (partition("21", 1, "1", adding="2"), partition("21", -1, "1", adding="2")):
        for lost, expected in ((frozenset({TopicPartition("t", 0)}), True), (frozenset(), False)):
            before = replace(state(known, live="12"), offline_replicas={BrokerId(1): lost})
            decisions = plan(before, ElectUnclean()).decisions
            assert any(decision.leader == 2 for decision in decisions) is expected


def test_partitions_that_get_another_leader_come_before_those_whose_isr_shrinks() -> None:
    followed, led = partition("312", 3, "123"), partition("123", 1, "123")
    planned = plan(state(followed, led, followed, led, live="123", stopping="1"), Look())
    assert [decision.topic_partition.partition for decision in planned.decisions] == [1, 3, 0, 2]


def test_a_reassignment_ends_when_its_target_is_in_sync_and_led() -> None:
    moved = partition("341", 3, "134", adding="34", removing="1")
    assert plan(state(moved, live="134"), Look()).over == {TopicPartition("t", 0): brokers("34")}
    assert not plan(state(replace(moved, isr=brokers("13")), live="134"), Look()).over


@pytest.mark.parametrize(
    ("known", "live", "event", "expected"),
    [
        (partition("123", 2, "123"), "123", ElectPreferred, (1, 6, "123")),
        (partition("123", 1, "123"), "123", ElectPreferred, ErrorCode.ELECTION_NOT_NEEDED),
        (partition("123", 2, "23"), "123", ElectPreferred, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (partition("123", 2, "123"), "23", ElectPreferred, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (partition("123", 2, "2"), "123", ElectUnclean, ErrorCode.ELECTION_NOT_NEEDED),
        (partition("123", -1, "2"), "13", ElectUnclean, (1, 6, "1")),
        (partition("123", -1, ""), "3", ElectUnclean, (3, 6, "3")),
        (partition("123", -1, "2"), "", ElectUnclean, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_elections_by_hand(
    known: PartitionView,
    live: str,
    event: type[ElectPreferred | ElectUnclean],
    expected: tuple[int, int, str] | ErrorCode,
) -> None:
    name = TopicPartition("t", 0)
    planned = plan(state(known, live=live), event([name, TopicPartition("t", 7)]))
    assert planned.results[TopicPartition("t", 7)] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(expected, ErrorCode):
        assert (planned.results[name], planned.decisions) == (expected, [])
    else:
        assert (planned.results[name], decided(planned)) == (ErrorCode.NONE, expected)
    assert plan(state(known, live=live), event()).results == {name: planned.results[name]}


def test_preferred_leaders_come_back_where_too_many_are_led_by_others() -> None:
    partitions = [partition("12", 2, "12"), partition("12", 1, "12"), partition("21", 2, "12"), partition("12", 2, "2")]
    planned = plan(state(*partitions, live="12"), Rebalance(50))
    assert [(item.topic_partition.partition, item.leader) for item in planned.decisions] == [(0, 1)]
    assert not plan(state(*partitions, live="12"), Rebalance(70)).decisions


# Any cluster

subsets = st.lists(st.integers(0, 4).map(BrokerId), unique=True, max_size=5)


@st.composite
def partitions(draw: st.DrawFn) -> PartitionView:
    replicas = draw(st.lists(st.integers(0, 4).map(BrokerId), unique=True, min_size=1, max_size=5))
    if draw(st.integers(0, 5)) == 0:
        return PartitionView(replicas=tuple(replicas))
    isr = draw(subsets)
    leader = draw(st.sampled_from([NO_BROKER, *isr]))
    removing = draw(st.lists(st.sampled_from(replicas), unique=True, max_size=len(replicas) - 1))
    staying = [replica for replica in replicas if replica not in removing]
    adding = draw(st.lists(st.sampled_from(staying), unique=True)) if draw(st.booleans()) else []
    return PartitionView(
        replicas=tuple(replicas),
        leader=leader,
        leader_epoch=LeaderEpoch(draw(st.integers(0, 9))),
        isr=tuple(isr),
        state_version=0,
        adding=tuple(adding),
        removing=tuple(removing),
    )


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    live = frozenset(draw(subsets))
    topics = [
        TopicView(
            name=name,
            topic_id=uuid.UUID(int=number),
            partitions=dict(enumerate(draw(st.lists(partitions(), max_size=3)))),
            settings=draw(st.sampled_from([CLEAN, UNCLEAN])),
        )
        for number, name in enumerate("ab")
    ]
    stopping = frozenset(draw(st.lists(st.sampled_from(sorted(live)), unique=True))) if live else frozenset()
    return ClusterState(topics=topics, live=live, shutting_down=stopping)


events: Sequence[Event] = [Look(), ElectPreferred(), ElectUnclean(), Rebalance(10)]


def carried_out(before: ClusterState, planned: ControllerPlan) -> ClusterState:
    topics = []
    for topic in before.topics:
        changed = dict(topic.partitions)
        for decision in planned.decisions:
            if decision.topic_partition.topic == topic.name:
                index = decision.topic_partition.partition
                changed[index] = replace(
                    changed[index],
                    leader=decision.leader,
                    leader_epoch=decision.leader_epoch,
                    isr=decision.isr,
                    state_version=changed[index].state_version + 1,
                )
        for name, replicas in planned.over.items():
            if name.topic == topic.name:
                changed[name.partition] = replace(changed[name.partition], replicas=replicas, adding=(), removing=())
        topics.append(replace(topic, partitions=changed))
    return replace(before, topics=topics)


@pytest.mark.long
@given(before=states(), event=st.sampled_from(events))
@settings(max_examples=150)
def test_invariants_hold_for_every_plan(before: ClusterState, event: Event) -> None:
    planned = plan(before, event)
    assert planned == plan(before, event)
    for decision in planned.decisions:
        old, is_new = decision.before, decision.before.state_version < 0
        if decision.leader != NO_BROKER:
            assert decision.leader in decision.isr
            assert decision.leader in before.live
            assert set(decision.relies_on) == before.live & set(decision.isr)
            assert decision.leader in old.replicas
            assert is_new or decision.leader in old.isr or decision.is_unclean
            assert set(decision.isr) <= set(old.replicas)
        if decision.is_unclean:
            topic = next(topic for topic in before.topics if topic.name == decision.topic_partition.topic)
            is_only_one = not old.isr and old.origin_replicas == (decision.leader,)
            assert topic.settings.unclean_leader_election or isinstance(event, ElectUnclean) or is_only_one
            assert not before.live & set(old.isr) & set(old.replicas)
        else:
            assert is_new or set(decision.isr) <= set(old.isr)
        assert decision.isr or not old.isr
        if is_new:
            assert decision.leader_epoch == 0
        else:
            assert decision.leader_epoch == old.leader_epoch + (decision.leader != old.leader)


@pytest.mark.long
@given(before=states())
@settings(max_examples=150)
def test_looking_comes_to_rest_with_leaders_wherever_there_can_be_one(before: ClusterState) -> None:
    known = before
    for _ in range(4):
        planned = plan(known, Look())
        if planned.is_empty:
            break
        again = plan(carried_out(known, replace(planned, over={})), Look())
        assert not again.decisions, "what was decided is decided"
        known = carried_out(known, planned)
    else:
        raise AssertionError("it does not come to rest")
    for topic in known.topics:
        for found in topic.partitions.values():
            able = known.live & set(found.isr) & set(found.replicas)
            assert (found.leader in able) if able else (found.leader == NO_BROKER)
            assert able or found.isr or len(found.origin_replicas) > 1 or not known.live & set(found.origin_replicas)
            if found.adding or found.removing:
                assert found.state_version < 0 or not set(target_replicas(found)) <= able - known.shutting_down
