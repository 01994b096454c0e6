"""Brokers as members of a cluster: what becomes of partitions when they die, come back, stop or lose their session."""

import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import trio

from pipeline.broker.cluster_view import NO_BROKER
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.partition_states import read_states
from pipeline.coordination.znodes import PartitionState, TopicAssignment, topic_path
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pipeline.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.unit.broker.conftest import Broker, Start, batch

DEADLINE_S = 20
FAST = {"replica_lag_time_max_ms": 2000, "replica_fetch_wait_max_ms": 50, "replica_fetch_backoff_ms": 50}
T0 = TopicPartition("t", 0)
U0 = TopicPartition("u", 0)


async def until(
    client: CoordinationClient, name: TopicPartition, condition: Callable[[PartitionState], bool]
) -> PartitionState:
    """Wait for a state of a partition."""
    with trio.fail_after(DEADLINE_S):
        while True:
            found = (await read_states(client, [name])).get(name)
            if found is not None and condition(found.state):
                return found.state
            await trio.sleep(0.01)


async def create(broker: Broker, name: str, *assignments: list[int]) -> None:
    """A topic with these replicas."""
    placed = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=[BrokerId(replica) for replica in replicas])
        for index, replicas in enumerate(assignments)
    ]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=placed)
    response = await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
    assert response.topics[0].error_code == 0, response.topics[0]


async def until_leading(broker: Broker, name: TopicPartition) -> None:
    with trio.fail_after(DEADLINE_S):
        while name not in broker.handle.replicas.partitions or not broker.handle.replicas.partitions[name].is_leader:
            await trio.sleep(0.01)


async def produce(broker: Broker, name: TopicPartition, value: bytes) -> int:
    await until_leading(broker, name)
    result = await broker.produce(name.topic, batch(value), partition=name.partition)
    assert result.error_code == 0, result
    return result.base_offset


async def test_a_stopped_leader_is_followed_by_an_in_sync_replica_and_joins_again(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with zookeeper_twin.open() as client, start(1, **FAST) as first, AsyncExitStack() as rest:
        await rest.enter_async_context(start(3, **FAST))
        async with start(2, **FAST) as second:
            await create(first, "t", [2, 1, 3])
            assert await produce(second, T0, b"a") == 0
            state = await until(client, T0, lambda state: len(state.isr) == 3)
            assert (state.leader, state.leader_epoch) == (2, 0)
        state = await until(client, T0, lambda state: state.leader == 1)
        assert (state.leader_epoch, state.isr) == (1, (1, 3))
        assert await produce(first, T0, b"b") == 1
        async with start(2, **FAST) as second:
            state = await until(client, T0, lambda state: len(state.isr) == 3)
            assert (state.leader, state.leader_epoch) == (1, 1)


async def test_a_session_that_expires_costs_the_leadership(start: Start, zookeeper_twin: MemoryZooKeeper) -> None:
    async with zookeeper_twin.open() as client, start(1, **FAST) as first, start(2, **FAST) as second:
        await create(first, "t", [2, 1])
        await create(first, "u", [2])
        await produce(second, T0, b"a")
        await until(client, T0, lambda state: len(state.isr) == 2)
        zookeeper_twin.expire(second.zookeeper)
        state = await until(client, T0, lambda state: state.leader_epoch > 0)
        assert state.leader in {1, 2}  # the other one's, or claimed anew if it came back before that was noticed
        alone = await until(client, U0, lambda state: state.leader_epoch > 0 and state.leader == 2)
        assert alone.isr == (2,)
        assert await produce(second, U0, b"b") == 0
        leader = first if (await until(client, T0, lambda state: len(state.isr) == 2)).leader == 1 else second
        assert await produce(leader, T0, b"b") == 1


async def test_a_follower_that_lost_its_disk_is_not_elected(
    start: Start, zookeeper_twin: MemoryZooKeeper, tmp_path: Path
) -> None:
    async with zookeeper_twin.open() as client:
        async with start(1, **FAST) as first, start(2, controlled_shutdown_enable=False, **FAST):
            await create(first, "t", [1, 2])
            await produce(first, T0, b"a")
            await until(client, T0, lambda state: len(state.isr) == 2)
        # both are gone at once, both in sync; then one of them comes back with nothing
        found = (await read_states(client, [T0]))[T0]
        await client.set(
            found.state.path, PartitionState(**{**_fields(found.state), "isr": (1, 2), "leader": 1}).encode()
        )
        shutil.rmtree(tmp_path / "broker-2")
        async with start(2, **FAST):
            state = await until(client, T0, lambda state: state.leader == NO_BROKER)
            assert state.isr == (1,)
        async with start(1, **FAST) as first:
            state = await until(client, T0, lambda state: state.leader == 1)
            assert (await first.fetch("t", 0)).high_watermark == 1


async def test_the_last_in_sync_replica_does_not_lead_on_without_its_log(
    start: Start, zookeeper_twin: MemoryZooKeeper, tmp_path: Path
) -> None:
    async with zookeeper_twin.open() as client:
        async with start(1, **FAST) as first:
            async with start(2, **FAST):
                await create(first, "t", [1, 2])
            await until(client, T0, lambda state: state.isr == (1,))
            await produce(first, T0, b"a")
        shutil.rmtree(tmp_path / "broker-1")
        async with start(1, **FAST), start(2, **FAST):
            state = await until(client, T0, lambda state: state.isr == ())
            assert state.leader == NO_BROKER
        async with start(2, unclean_leader_election_enable=True, **FAST):
            assert (await until(client, T0, lambda state: state.leader == 2)).isr == (2,)


async def test_partitions_move_to_other_brokers(start: Start, zookeeper_twin: MemoryZooKeeper, tmp_path: Path) -> None:
    async with (
        zookeeper_twin.open() as client,
        start(1, **FAST) as first,
        start(2, **FAST) as second,
        start(3, **FAST) as third,
    ):
        await create(first, "t", [1, 2])
        assert await produce(first, T0, b"a") == 0
        wanted = ReassignablePartition(partition_index=0, replicas=[2, 3])
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=5000, topics=[ReassignableTopic(name="t", partitions=[wanted])]
        )
        response = await first.ask(request)
        assert response.responses[0].partitions[0].error_code == 0, response
        state = await until(client, T0, lambda state: state.isr == (2, 3) and state.leader == 2)
        with trio.fail_after(DEADLINE_S):
            while TopicAssignment.decode("t", (await client.get(topic_path("t"))).data).partitions != {0: (2, 3)}:
                await trio.sleep(0.01)
            while (tmp_path / "broker-1" / "t-0").exists():
                await trio.sleep(0.01)
        assert state.leader_epoch == 1
        assert await produce(second, T0, b"b") == 1
        assert third.handle.replicas.partitions[T0].log.log_start_offset == 0


def _fields(state: PartitionState) -> dict[str, object]:
    return {name: getattr(state, name) for name in PartitionState.__slots__}
