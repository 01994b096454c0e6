"""What a broker writes as it joins: it leaves, it claims, and never over what somebody else wrote."""

import uuid

import pytest

from pipeline.broker.claims import claim, claimed_state, leave, left_state, own_partitions
from pipeline.broker.cluster_view import NO_BROKER, ClusterView, PartitionView, TopicView
from pipeline.broker.config import BrokerConfig
from pipeline.broker.topic_settings import topic_settings
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
    client: CoordinationClient, *states: PartitionState, replicas: tuple[int, ...] = (1, 2)
) -> ClusterView:
    """A topic in ZooKeeper, and a view that knows it."""
    await client.create(topic_path("t"))
    await write_states(client, [StateChange(state=found, version=None) for found in states])
    view = ClusterView("cluster")
    view.set_topic(
        TopicView(
            name="t",
            topic_id=uuid.UUID(int=1),
            partitions={found.partition: PartitionView(replicas=tuple(map(BrokerId, replicas))) for found in states},
            settings=topic_settings({}, CONFIG),
        )
    )
    names = [TopicPartition("t", found.partition) for found in states]
    view.accept_states(view.topic_ids(names), await read_states(client, names))
    return view


def seen(view: ClusterView) -> list[tuple[int, int, tuple[int, ...]]]:
    topic = view.topic("t")
    assert topic is not None
    return [(found.leader, found.leader_epoch, found.isr) for found in topic.partitions.values()]


@pytest.mark.parametrize(
    ("known", "count", "left"),
    [
        (state(0, 1, (1, 2)), 2, state(0, -1, (2,), 4)),
        (state(0, 2, (1, 2)), 2, state(0, 2, (2,))),
        (state(0, 1, (1,)), 2, state(0, -1, (), 4)),
        (state(0, -1, (1,)), 2, state(0, -1, ())),
        (state(0, 2, (2,)), 2, state(0, 2, (2,))),
        (state(0, 1, (1,)), 1, None),
    ],
)
def test_leaving(known: PartitionState, count: int, left: PartitionState | None) -> None:
    assert left_state(known, OWN, count) == left


def test_claiming() -> None:
    assert claimed_state(state(0, 1, (1, 2)), OWN) == state(0, 1, (1, 2), 4)
    assert claimed_state(state(0, 2, (1, 2)), OWN) is None
    assert claimed_state(state(0, NO_BROKER, (1,)), OWN) is None


async def test_what_was_led_is_claimed_in_the_next_epoch_as_it_is_now() -> None:
    async with MemoryZooKeeper().open() as client:
        view = await cluster(client, state(0, 1, (1, 2)), state(1, 2, (1, 2)), state(2, 1, (1,)))
        newer = state(2, 2, (2,), 9)  # nobody told the view yet
        await client.set(newer.path, newer.encode())
        assert await claim(client, view, OWN) == [TopicPartition("t", 0)]
        assert seen(view) == [(1, 4, (1, 2)), (2, 3, (1, 2)), (2, 9, (2,))]
        assert own_partitions(view, BrokerId(3)) == []


async def test_isrs_are_left_in_zookeeper_and_in_the_view() -> None:
    async with MemoryZooKeeper().open() as client:
        view = await cluster(client, state(0, 1, (1, 2)), state(1, 2, (2,)), state(2, 1, (1,)))
        names = [TopicPartition("t", index) for index in range(3)]
        assert await leave(client, view, OWN, names) == []
        assert seen(view) == [(-1, 4, (2,)), (2, 3, (2,)), (-1, 4, ())]
        found = await read_states(client, names)
        assert [found[name].state.isr for name in names] == [(2,), (2,), ()]


async def test_one_of_a_single_replica_is_led_on_and_named() -> None:
    async with MemoryZooKeeper().open() as client:
        view = await cluster(client, state(0, 1, (1,)), replicas=(1,))
        name = TopicPartition("t", 0)
        assert await leave(client, view, OWN, [name]) == [name]
        assert await claim(client, view, OWN) == [name]
        assert seen(view) == [(1, 4, (1,))]
