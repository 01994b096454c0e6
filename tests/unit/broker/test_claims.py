"""Claims of leadership: the next epoch each, by few requests, whatever others write meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.broker.claims import claim
from pipeline.coordination.interface import CreateNode, NodeValue, Operation
from pipeline.coordination.znodes import (
    PartitionState,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from pipeline.model import BrokerId, LeaderEpoch
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper

OWN = BrokerId(1)
OTHER = BrokerId(2)
TOPIC = "t"


def state(index: int, epoch: int, leader: BrokerId = OWN) -> PartitionState:
    return PartitionState(
        topic=TOPIC, partition=index, leader=leader, leader_epoch=LeaderEpoch(epoch), isr=(leader,), controller_epoch=0
    )


class Spy:
    """Another client's hand at a chosen moment, and a count of requests."""

    def __init__(self, client: MemoryClient) -> None:
        self._client = client
        self.requests: list[str] = []
        self.between: list[Sequence[Operation] | PartitionState | str] = []

    def __getattr__(self, name: str) -> Any:
        self.requests.append(name)
        return getattr(self._client, name)

    async def get_each(self, paths: Sequence[str]) -> list[NodeValue | None]:
        self.requests.append("get_each")
        found = await self._client.get_each(paths)
        match self.between.pop(0) if self.between else None:
            case PartitionState() as stolen:
                await self._client.set(stolen.path, stolen.encode())
            case "lose":
                self._client.lose_next_answer()
            case [*operations]:
                await self._client.transaction(operations)
        return found


async def epochs(client: MemoryClient, count: int) -> list[tuple[int, int]]:
    found = await client.get_each([partition_state_path(TOPIC, index) for index in range(count)])
    states = [PartitionState.decode(TOPIC, 0, value.data) for value in found if value is not None]
    return [(item.leader, item.leader_epoch) for item in states]


async def test_a_new_topic_and_then_the_next_epoch_by_two_requests() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path(TOPIC))
        spy = Spy(client)
        assert await claim(spy, OWN, TOPIC, range(300)) == {index: state(index, 0) for index in range(300)}
        spy.requests.clear()
        assert await claim(spy, OWN, TOPIC, range(300)) == {index: state(index, 1) for index in range(300)}
        assert spy.requests == ["get_each", "transaction"]
        assert await epochs(client, 300) == [(OWN, 1)] * 300


async def test_nothing_is_made_of_a_topic_that_is_gone() -> None:
    async with MemoryZooKeeper().open() as client:
        assert await claim(client, OWN, TOPIC, [0, 1]) == {}
        assert await client.exists(topic_path(TOPIC)) is None


async def test_one_that_somebody_else_wrote_meanwhile_does_not_stop_the_others() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path(TOPIC))
        await claim(client, OWN, TOPIC, range(3))
        spy = Spy(client)
        spy.between.append(state(1, 7, OTHER))
        assert await claim(spy, OWN, TOPIC, range(3)) == {0: state(0, 1), 1: state(1, 8), 2: state(2, 1)}
        assert await epochs(client, 3) == [(OWN, 1), (OWN, 8), (OWN, 1)]


async def test_znodes_that_others_made_half_or_meanwhile() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(topic_path(TOPIC))
        await client.create(partition_path(TOPIC, 1))
        spy = Spy(client)
        spy.between.append([CreateNode(path=partition_path(TOPIC, 0))])
        assert await claim(spy, OWN, TOPIC, range(3)) == {index: state(index, 0) for index in range(3)}
        assert await epochs(client, 3) == [(OWN, 0)] * 3


async def test_a_topic_that_is_deleted_meanwhile() -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(partitions_path(TOPIC))
        spy = Spy(client)

        async def get_each(paths: Sequence[str]) -> list[NodeValue | None]:
            await client.delete(partitions_path(TOPIC))
            await client.delete(topic_path(TOPIC))
            return [None for _ in paths]

        spy.get_each = get_each  # type: ignore[method-assign]
        assert await claim(spy, OWN, TOPIC, [0]) == {}
        assert await client.exists(topic_path(TOPIC)) is None


@pytest.mark.parametrize("known", [True, False])
async def test_a_write_whose_answer_was_lost_is_read_back(known: bool, autojump_clock: object) -> None:
    async with MemoryZooKeeper().open() as client:
        await client.create(partitions_path(TOPIC))
        if known:
            await claim(client, OWN, TOPIC, range(3))
        spy = Spy(client)
        spy.between.append("lose")
        epoch = 1 if known else 0
        assert await claim(spy, OWN, TOPIC, range(3)) == {index: state(index, epoch) for index in range(3)}
        assert await epochs(client, 3) == [(OWN, epoch)] * 3
