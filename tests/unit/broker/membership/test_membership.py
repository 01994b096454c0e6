"""Brokers as members of a cluster: what becomes of partitions when they die, come back, stop or lose their session."""

import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.broker.cluster.view import NO_BROKER
from pipeline.coordination.interface import ANY_VERSION, CoordinationClient
from pipeline.coordination.partition_states import read_states
from pipeline.coordination.znodes import (
    BrokerRegistration,
    ClusterId,
    PartitionState,
    TopicAssignment,
    broker_epoch_path,
    broker_path,
    topic_path,
)
from pipeline.errors import ConfigurationError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pipeline.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from tests.support.broker_in_process import Broker, Start, batch

DEADLINE_S = 60
FAST = {"replica_lag_time_max_ms": 20_000, "replica_fetch_wait_max_ms": 50, "replica_fetch_backoff_ms": 50}
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
    response = await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert response.topics[0].error_code == 0, response.topics[0]


async def until_leading(broker: Broker, name: TopicPartition) -> None:
    with trio.fail_after(DEADLINE_S):
        while name not in broker.handle.replicas.partitions or not broker.handle.replicas.partitions[name].is_leader:
            await trio.sleep(0.01)


async def produce(broker: Broker, name: TopicPartition, value: bytes) -> int:
    """Append as soon as the broker leads: one that has just lost its registration may only be about to resign."""
    with trio.fail_after(DEADLINE_S):
        while True:
            await until_leading(broker, name)
            result = await broker.produce(name.topic, batch(value), partition=name.partition)
            if result.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                break
            await trio.sleep(0.01)
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


async def test_a_broker_that_stops_names_the_new_leader_to_its_clients(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with (
        zookeeper_twin.open() as client,
        start(1, **FAST) as first,
        trio.open_nursery() as nursery,
        start(2, **FAST) as second,
    ):
        await create(first, "t", [2, 1])
        await produce(second, T0, b"a")
        await until(client, T0, lambda state: len(state.isr) == 2)

        async def produce_until_refused() -> None:
            with trio.fail_after(DEADLINE_S):
                while not (result := await second.produce("t", batch(b"b"))).error_code:
                    await trio.sleep(0.01)
            assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert result.current_leader.leader_id == 1

        nursery.start_soon(produce_until_refused)


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


async def test_a_broker_whose_sessions_expire_while_it_joins_follows_the_view_afterwards(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    async with zookeeper_twin.open() as client, start(1, **FAST) as broker:
        await create(broker, "t", [1])
        assert await produce(broker, T0, b"a") == 0
        cluster_id = (await client.get(ClusterId.PATH)).data
        await client.delete(ClusterId.PATH)  # nobody joins meanwhile
        for _ in range(10):  # it learns of some of them without having been connected in between
            zookeeper_twin.expire(broker.zookeeper)
        with trio.fail_after(DEADLINE_S):
            while broker.handle.replicas.partitions[T0].is_leader:
                await trio.sleep(0.01)
        await client.create(ClusterId.PATH, cluster_id)
        assert await produce(broker, T0, b"b") == 1
        await create(broker, "u", [1])
        assert await produce(broker, U0, b"a") == 0
        path = broker_path(BrokerId(1))
        epoch = await client.set(broker_epoch_path(BrokerId(1)), b"")
        with trio.fail_after(DEADLINE_S):
            while BrokerRegistration.decode(BrokerId(1), (await client.get(path)).data).epoch <= epoch:
                await trio.sleep(0.01)


@pytest.mark.parametrize("is_removed", [True, False])
async def test_a_broker_whose_registration_somebody_else_changed_joins_again(
    start: Start, zookeeper_twin: MemoryZooKeeper, *, is_removed: bool
) -> None:
    async with zookeeper_twin.open() as client, start(1, **FAST) as first, start(2, **FAST) as second:
        await create(first, "t", [2, 1])
        await create(first, "u", [2])
        await produce(second, T0, b"a")
        await produce(second, U0, b"a")
        await until(client, T0, lambda state: len(state.isr) == 2)
        path = broker_path(BrokerId(2))
        former = BrokerRegistration.decode(BrokerId(2), (await client.get(path)).data)
        if is_removed:
            await client.delete(path)
        else:
            await client.set(path, b"not a registration")
        alone = await until(client, U0, lambda state: state.leader_epoch > 0 and state.leader == 2)
        assert alone.isr == (2,)
        assert await produce(second, U0, b"b") == 1
        leader = first if (await until(client, T0, lambda state: len(state.isr) == 2)).leader == 1 else second
        assert await produce(leader, T0, b"b") == 1
        stat = await client.exists(path)
        assert stat is not None and stat.ephemeral_owner == second.zookeeper.session_id
        found = BrokerRegistration.decode(BrokerId(2), (await client.get(path)).data)
        assert found.epoch > former.epoch
        assert found.listeners == former.listeners


async def test_a_registration_of_another_broker_of_this_id_is_not_overwritten(
    start: Start, zookeeper_twin: MemoryZooKeeper
) -> None:
    path, epoch_path = broker_path(BrokerId(1)), broker_epoch_path(BrokerId(1))
    others = BrokerRegistration(id=BrokerId(1), listeners=(), timestamp_ms=0).encode()
    has_looked = False

    def register_other(client: MemoryClient, asked: str) -> None:
        nonlocal has_looked
        if client is not broker.zookeeper:
            return
        if has_looked:  # at the registration, which is to be written next
            zookeeper_twin.before_request = None
            zookeeper_twin.expire(client)
            zookeeper_twin.znodes.set(epoch_path, b"", ANY_VERSION)
            zookeeper_twin.znodes.create(path, others, other.session, sequential=False, make_parents=False)
        has_looked = asked == path

    async with zookeeper_twin.open() as other:
        with pytest.raises(ConfigurationError, match="registered already"):
            async with start(1) as broker:
                zookeeper_twin.before_request = register_other
                await other.set(epoch_path, b"")
                with trio.move_on_after(DEADLINE_S):
                    await trio.sleep_forever()
        assert await other.get(path) == (others, 0)


async def test_every_registration_bears_a_higher_broker_epoch(start: Start, zookeeper_twin: MemoryZooKeeper) -> None:
    async def registered_epoch(broker: Broker) -> int:
        view = broker.handle.replicas.in_sync.view
        with trio.fail_after(DEADLINE_S):
            while True:
                found = await broker.zookeeper.get_or_none(broker_path(BrokerId(1)))
                if found is not None:
                    epoch = BrokerRegistration.decode(BrokerId(1), found.data).epoch
                    if epoch == view.own_epoch == view.brokers[BrokerId(1)].epoch:
                        return epoch
                await trio.sleep(0.01)

    async with start(1) as broker:
        first = await registered_epoch(broker)
        zookeeper_twin.expire(broker.zookeeper)
        with trio.fail_after(DEADLINE_S):
            while (second := await registered_epoch(broker)) == first:
                await trio.sleep(0.01)
        assert 0 <= first < second
    async with start(1) as broker:
        assert await registered_epoch(broker) > second


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_broker_whose_epoch_somebody_else_changed_comes_into_sync(
    start: Start, zookeeper_twin: MemoryZooKeeper, *, is_removed: bool
) -> None:
    async with zookeeper_twin.open() as client, start(1, **FAST) as first, start(2, **FAST):
        await create(first, "t", [1])
        if is_removed:
            await client.delete(broker_epoch_path(BrokerId(2)))
        else:
            await client.set(broker_epoch_path(BrokerId(2)), b"")
        wanted = ReassignablePartition(partition_index=0, replicas=[BrokerId(1), BrokerId(2)])
        topic = ReassignableTopic(name="t", partitions=[wanted])
        response = await first.ask(AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=30_000))
        assert response.error_code == 0, response
        await until(client, T0, lambda state: set(state.isr) == {1, 2})


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


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_topic_made_while_its_brokers_are_dead_but_registered_is_led_when_they_are_back(
    start: Start, zookeeper_twin: MemoryZooKeeper, is_recreated: bool
) -> None:
    async with zookeeper_twin.open() as client, zookeeper_twin.open() as sessions, start(1, **FAST) as first:
        async with (
            start(2, controlled_shutdown_enable=False, **FAST) as second,
            start(3, controlled_shutdown_enable=False, **FAST) as third,
        ):
            if is_recreated:
                await create(first, "t", [2, 3])
                await produce(second, T0, b"of the topic before")
                with trio.fail_after(DEADLINE_S):
                    while T0 not in third.handle.replicas.partitions:
                        await trio.sleep(0.01)
            paths = [broker_path(BrokerId(number)) for number in (2, 3)]
            dead = [(await client.get(path)).data for path in paths]
        for path, data in zip(paths, dead, strict=True):  # as if they had been killed
            await sessions.create(path, data, ephemeral=True)
        with trio.fail_after(DEADLINE_S):
            while len((await first.ask(MetadataRequest(topics=[]))).brokers) < 3:
                await trio.sleep(0.01)
        if is_recreated:
            deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000)
            assert (await first.ask(deletion)).responses[0].error_code == 0
        await create(first, "t", [2, 3])
        state = await until(client, T0, lambda state: True)
        assert (state.leader, state.isr) == (2, (2, 3))
        async with start(3, **FAST) as third, start(2, **FAST) as second:
            state = await until(client, T0, lambda state: state.leader in {2, 3} and len(state.isr) == 2)
            assert await produce(third if state.leader == 3 else second, T0, b"a") == 0


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
            timeout_ms=DEADLINE_S * 1000, topics=[ReassignableTopic(name="t", partitions=[wanted])]
        )
        response = await first.ask(request)
        assert response.responses[0].partitions[0].error_code == 0, response
        await until(client, T0, lambda state: state.isr == (2, 3) and state.leader == 2)
        with trio.fail_after(DEADLINE_S):
            while TopicAssignment.decode("t", (await client.get(topic_path("t"))).data).partitions != {0: (2, 3)}:
                await trio.sleep(0.01)
            while (tmp_path / "broker-1" / "t-0").exists():
                await trio.sleep(0.01)
        # One epoch for the new leader, one in which the former replica let its log go.
        await until(client, T0, lambda state: state.leader_epoch == 2)
        assert await produce(second, T0, b"b") == 1
        assert third.handle.replicas.partitions[T0].log.log_start_offset == 0


def _fields(state: PartitionState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in PartitionState.__slots__}
