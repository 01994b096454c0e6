"""What a broker writes as it joins: it leaves, it claims, and never over what somebody else wrote."""

import uuid
from dataclasses import replace

import pytest
import trio

from pipeline.broker.cluster.own_states import (
    claim_leaderships,
    claimed_state,
    leave_lost,
    leave_moved_away,
    left_state,
    moved_away_state,
    own_partitions,
)
from pipeline.broker.cluster.view import NO_BROKER, ClusterView, PartitionView, TopicView
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.coordination.deleted_topics import record_path
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.partition_states import StateChange, read_states, write_states
from pipeline.coordination.znodes import PartitionState, topic_path
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.testing.memory_zookeeper import MemoryZooKeeper

OWN, OTHER = BrokerId(1), BrokerId(2)
CONFIG = BrokerConfig.from_settings(
    {"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "memory:0", "listeners": "PLAINTEXT://127.0.0.1:0"}
)


def state(index: int, leader: int, isr: tuple[int, ...], epoch: int = 3) -> PartitionState:
    return PartitionState(
        topic="t",
        partition=index,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(map(BrokerId, isr)),
        controller_epoch=0,
    )


async def cluster(
    client: CoordinationClient,
    *states: PartitionState,
    replicas: tuple[int, ...] = (1, 2),
    adding: tuple[int, ...] = (),
) -> ClusterView:
    """A topic in ZooKeeper, and a view that knows it."""
    await client.create(topic_path("t"))
    await write_states(client, [StateChange(topic_id=uuid.UUID(int=1), state=found, version=None) for found in states])
    view = ClusterView("cluster")
    view.set_topic(
        TopicView(
            name="t",
            topic_id=uuid.UUID(int=1),
            partitions={
                found.partition: PartitionView(
                    replicas=tuple(map(BrokerId, replicas)), adding=tuple(map(BrokerId, adding))
                )
                for found in states
            },
            settings=topic_settings({}, CONFIG),
        )
    )
    names = [TopicPartition("t", found.partition) for found in states]
    view.accept_states(view.asking(names), await read_states(client, names))
    return view


def seen(view: ClusterView) -> list[tuple[int, int, tuple[int, ...]]]:
    topic = view.topic("t")
    assert topic is not None
    return [(found.leader, found.leader_epoch, found.isr) for found in topic.partitions.values()]


@pytest.mark.parametrize(
    ("known", "factor", "left"),
    [
        (state(0, 1, (1, 2)), 2, state(0, -1, (2,), 4)),
        (state(0, 2, (1, 2)), 2, state(0, 2, (2,))),
        (state(0, 1, (1,)), 2, state(0, -1, (), 4)),
        (state(0, -1, (1,)), 2, state(0, -1, ())),
        (state(0, 2, (2,)), 2, state(0, 2, (2,))),
        (state(0, 1, (1,)), 1, None),
        (state(0, 1, (1, 2)), 1, state(0, -1, (2,), 4)),  # 2 is being added and has all
    ],
)
def test_a_broker_that_stops_leaves_the_isr_of_its_partitions(
    known: PartitionState, factor: int, left: PartitionState | None
) -> None:
    assert left_state(known, OWN, factor) == left


@pytest.mark.parametrize(
    ("known", "left"),
    [
        (state(0, 1, (1, 2)), state(0, -1, (2,), 4)),
        (state(0, 1, (1,)), state(0, -1, (1,), 4)),
        (state(0, -1, (1,)), None),
        (state(0, 2, (1, 2)), state(0, 2, (2,))),
    ],
)
def test_a_broker_leaves_the_isr_of_a_partition_that_it_cannot_read(
    known: PartitionState, left: PartitionState | None
) -> None:
    assert left_state(known, OWN, 2, may_return=True) == left
    assert left_state(known, OWN, 1, may_return=True) == left


def test_a_broker_claims_the_partitions_that_it_led() -> None:
    assert claimed_state(state(0, 1, (1, 2)), OWN) == state(0, 1, (1, 2), 4)
    assert claimed_state(state(0, 2, (1, 2)), OWN) is None
    assert claimed_state(state(0, NO_BROKER, (1,)), OWN) is None


async def test_a_broker_claims_its_leaderships_in_the_next_epoch_with_the_present_isr() -> None:
    async with MemoryZooKeeper().open() as client:
        view = await cluster(client, state(0, 1, (1, 2)), state(1, 2, (1, 2)), state(2, 1, (1,)))
        newer = state(2, 2, (2,), 9)  # nobody told the view yet
        await client.set(newer.path, newer.encode())
        assert await claim_leaderships(client, view, OWN, own_partitions(view, OWN)) == [TopicPartition("t", 0)]
        assert seen(view) == [(1, 4, (1, 2)), (2, 3, (1, 2)), (2, 9, (2,))]
        assert own_partitions(view, BrokerId(3)) == []


async def test_isrs_are_left_in_zookeeper_and_in_the_view() -> None:
    async with MemoryZooKeeper().open() as client:
        view = await cluster(client, state(0, 1, (1, 2)), state(1, 2, (2,)), state(2, 1, (1,)))
        names = [TopicPartition("t", index) for index in range(3)]
        assert await leave_lost(client, view, OWN, names) == []
        assert seen(view) == [(-1, 4, (2,)), (2, 3, (2,)), (-1, 4, ())]
        found = await read_states(client, names)
        assert [found[name].state.isr for name in names] == [(2,), (2,), ()]


async def test_a_broker_claims_no_partition_of_a_recreated_topic_before_its_view_knows_it() -> None:
    async with MemoryZooKeeper().open() as client:
        view = await cluster(client, state(0, 1, (1, 2)))
        await client.create(record_path(uuid.UUID(int=1)))
        with trio.fail_after(60):
            assert await claim_leaderships(client, view, OWN, own_partitions(view, OWN)) == []
        found = await read_states(client, [TopicPartition("t", 0)])
        assert [(written.state, written.version) for written in found.values()] == [(state(0, 1, (1, 2)), 0)]


@pytest.mark.parametrize(("replicas", "adding"), [((1,), ()), ((2, 1), (2,))])
async def test_a_partition_with_a_single_replica_is_led_on_while_it_is_moved(
    replicas: tuple[int, ...], adding: tuple[int, ...]
) -> None:
    async with MemoryZooKeeper().open() as client:
        view = await cluster(client, state(0, 1, (1,)), replicas=replicas, adding=adding)
        name = TopicPartition("t", 0)
        assert await leave_lost(client, view, OWN, [name]) == [name]
        assert await claim_leaderships(client, view, OWN, own_partitions(view, OWN)) == [name]
        assert seen(view) == [(1, 4, (1,))]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (state(0, 2, (2, 1)), state(0, 2, (2,), epoch=4)),
        (state(0, 2, (2, 3)), state(0, 2, (2, 3), epoch=4)),
        (state(0, 1, (1, 2)), None),
        (state(0, -1, (2, 1)), None),
        (state(0, 2, (1,)), None),
    ],
    ids=["in sync", "not in sync", "leads", "led by nobody", "alone in sync"],
)
def test_a_log_that_is_to_be_removed_is_let_go_in_an_epoch_in_which_nobody_counts_on_it(
    before: PartitionState, after: PartitionState | None
) -> None:
    assert moved_away_state(before, OWN) == after


async def test_a_replica_that_is_assigned_again_or_whose_state_changed_is_not_released() -> None:
    names = [TopicPartition("t", 0), TopicPartition("t", 1)]
    async with MemoryZooKeeper().open() as client:
        view = await cluster(client, state(0, 2, (2, 1)), state(1, 1, (1, 2)), replicas=(2,))
        topic = view.topic("t")
        assert topic is not None
        view.set_topic(replace(topic, assignment_version=0))
        assert await leave_moved_away(client, view, OWN, names) == {names[0]}
        found = view.partition(names[0])
        assert found is not None
        assert (found.isr, found.leader_epoch) == ((OTHER,), 4)
        await client.set(topic_path("t"), b"assigned again")
        assert await leave_moved_away(client, view, OWN, names) == frozenset()
