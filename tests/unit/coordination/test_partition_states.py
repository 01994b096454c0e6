"""States of many partitions: conditional writes that tell everybody, whatever others write meanwhile."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.coordination.cluster_znodes import STATE_CHANGES, decode_state_change
from pipeline.coordination.deleted_topics import DeletedTopic, record_path
from pipeline.coordination.interface import CheckNode, CreateNode, Operation, SetNode
from pipeline.coordination.partition_states import WRITTEN_AT_ONCE, StateChange, Written, read_states, write_states
from pipeline.coordination.znodes import (
    PartitionState,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from pipeline.errors import BadVersionError
from pipeline.model import BrokerId, LeaderEpoch, TopicPartition
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper

TOPIC = "t"
TOPIC_ID = uuid.UUID(int=1)


def state(index: int, epoch: int = 0, leader: int = 1, topic: str = TOPIC) -> PartitionState:
    return PartitionState(
        topic=topic,
        partition=index,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=(BrokerId(leader),),
        controller_epoch=0,
    )


def change(index: int, version: int | None, epoch: int = 0, **more: Any) -> StateChange:
    return StateChange(topic_id=TOPIC_ID, state=state(index, epoch), version=version, **more)


class Spy:
    """Another client's hand before a chosen transaction, and a count of requests."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self.requests: list[str] = []
        self.before: list[Sequence[Operation] | str] = []

    def __getattr__(self, name: str) -> Any:
        self.requests.append(name)
        return getattr(self._client, name)

    async def transaction(self, operations: Sequence[Operation]) -> None:
        self.requests.append("transaction")
        match self.before.pop(0) if self.before else None:
            case "lose":
                self._client.lose_next_answer()
            case [*others]:
                await self._client.transaction(others)
        await self._client.transaction(operations)


def name(index: int, topic: str = TOPIC) -> TopicPartition:
    return TopicPartition(topic, index)


async def told(client: MemoryClient) -> list[list[TopicPartition]]:
    paths = [f"{STATE_CHANGES}/{child}" for child in await client.children(STATE_CHANGES)]
    return [decode_state_change(path, (await client.get(path)).data) for path in paths]


async def test_new_states_then_their_next_versions_by_few_requests() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path(TOPIC))
        await client.create(STATE_CHANGES)
        await client.create(DeletedTopic.PARENT)
        spy = Spy(client)
        written = await write_states(spy, [change(index, None) for index in range(WRITTEN_AT_ONCE + 1)])
        assert written == {name(index): Written(state(index), 0) for index in range(WRITTEN_AT_ONCE + 1)}
        assert spy.requests == ["get_each", "transaction"] * 2
        spy.requests.clear()
        written = await write_states(spy, [change(index, 0, 1) for index in range(WRITTEN_AT_ONCE)])
        assert written == {name(index): Written(state(index, 1), 1) for index in range(WRITTEN_AT_ONCE)}
        assert spy.requests == ["transaction"]
        found = await read_states(client, [name(0), name(WRITTEN_AT_ONCE), name(9999)])
        assert found == {name(0): (state(0, 1), 1), name(WRITTEN_AT_ONCE): (state(WRITTEN_AT_ONCE), 0)}
        assert [len(partitions) for partitions in await told(client)] == [WRITTEN_AT_ONCE, 1, WRITTEN_AT_ONCE]


async def test_a_state_that_changed_meanwhile_does_not_stop_other_writes() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path(TOPIC))
        await write_states(client, [change(index, None) for index in range(3)])
        spy = Spy(client)
        spy.before.append([SetNode(path=partition_state_path(TOPIC, 1), data=state(1, 7, 2).encode())])
        written = await write_states(spy, [change(index, 0, 1) for index in range(3)])
        assert written == {name(0): (state(0, 1), 1), name(1): None, name(2): (state(2, 1), 1)}
        assert (await read_states(client, [name(1)]))[name(1)].state == state(1, 7, 2)
        assert (await told(client))[-1] == [name(0), name(2)]


async def test_znodes_that_others_made_half_or_meanwhile() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path(TOPIC))
        await client.create(partition_path(TOPIC, 1))
        spy = Spy(client)
        spy.before.append(
            [
                CreateNode(path=partition_path(TOPIC, 0)),
                CreateNode(path=partition_state_path(TOPIC, 0), data=state(0, 3).encode()),
                CreateNode(path=partition_path(TOPIC, 2)),
            ]
        )
        written = await write_states(spy, [change(index, None) for index in range(3)])
        assert written == {name(0): None, name(1): (state(1), 0), name(2): (state(2), 0)}


async def test_no_state_is_written_for_a_topic_that_is_gone_or_recreated() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path("there"))
        there = StateChange(topic_id=TOPIC_ID, state=state(0, topic="there"), version=None, topic_version=0)
        moved = StateChange(topic_id=TOPIC_ID, state=state(1, topic="there"), version=None, topic_version=5)
        assert await write_states(client, [change(0, None), change(1, 4), there]) == {
            name(0): None,
            name(1): None,
            name(0, "there"): (there.state, 0),
        }
        assert await write_states(client, [moved, change(0, None, topic_version=0)]) == {
            name(1, "there"): None,
            name(0): None,
        }
        assert await client.exists(topic_path(TOPIC)) is None


async def test_only_the_states_of_deleted_topics_are_left_out() -> None:
    async with MemoryZooKeeper().open() as client:
        for topic in (TOPIC, "there"):
            await client.create(topic_path(topic))
        there = StateChange(topic_id=uuid.UUID(int=2), state=state(0, topic="there"), version=None)
        await write_states(client, [change(0, None), there])
        await client.set(DeletedTopic.PARENT, b"")  # the first write made it
        assert await client.children(DeletedTopic.PARENT) == ()
        await client.create(record_path(TOPIC_ID))
        again = replace(there, version=0)
        assert await write_states(client, [change(0, 0, 1), change(1, None), again]) == {
            name(0): None,
            name(1): None,
            name(0, "there"): (there.state, 1),
        }
        assert await read_states(client, [name(0), name(1)]) == {name(0): (state(0), 0)}


async def test_a_check_that_does_not_hold_stops_everything() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(partitions_path(TOPIC))
        await client.create("/controller_epoch", b"2")
        with pytest.raises(BadVersionError) as raised:
            await write_states(client, [change(0, None)], [CheckNode(path="/controller_epoch", version=1)])
        assert raised.value.path == "/controller_epoch"
        assert await read_states(client, [name(0)]) == {}


@pytest.mark.parametrize("known", [True, False])
async def test_a_write_whose_answer_was_lost_is_read_back(known: bool, autojump_clock: object) -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path(TOPIC))
        await client.create(STATE_CHANGES)
        await client.create(DeletedTopic.PARENT)
        if known:
            await write_states(client, [change(index, None) for index in range(3)])
        spy = Spy(client)
        spy.before.append("lose")
        version, epoch = (0, 1) if known else (None, 0)
        written = await write_states(spy, [change(index, version, epoch) for index in range(3)])
        assert written == {name(index): (state(index, epoch), epoch) for index in range(3)}
        assert spy.requests.count("transaction") == 1
