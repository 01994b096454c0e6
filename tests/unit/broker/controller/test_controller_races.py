"""What the controller planned, and what changed in ZooKeeper before it wrote."""

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from pipeline.coordination.deleted_topics import record_path
from pipeline.coordination.interface import Operation, SetNode
from pipeline.coordination.partition_states import StateChange, read_states, write_states
from pipeline.coordination.znodes import (
    BrokerRegistration,
    Listener,
    TopicAssignment,
    broker_epoch_path,
    partition_state_path,
    topic_path,
)
from pipeline.errors import BadVersionError
from pipeline.model import BROKER_IDS, BrokerId, HostPort, LeaderEpoch, TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.controllers import DEADLINE_S, is_led, make_topic, make_unclean, register, running, state_of


async def test_a_topic_made_anew_between_plan_and_write_is_planned_anew() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        plain = rig.client.client.transaction
        replaced = False

        async def transaction(operations: Sequence[Operation]) -> None:
            nonlocal replaced
            if not replaced and any(operation.path.startswith(topic_path("t")) for operation in operations):
                replaced = True
                await other.delete(topic_path("t"))
                await make_topic(other, "t", [(3, 1)])
                found = await other.get(topic_path("t"))
                await other.set(topic_path("t"), found.data)
            await plain(operations)

        rig.client.client.transaction = transaction
        await make_topic(other, "t", [(1, 2)])
        await rig.until(is_led("t", 1))
        with trio.fail_after(DEADLINE_S):
            while (await state_of(other, "t")).isr != (1,):
                await trio.lowlevel.checkpoint()
        assert replaced


async def test_no_state_is_written_below_a_topic_recreated_while_live_brokers_were_read() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        plain = rig.client.client.children
        asked = trio.Event()

        async def children(path: str) -> Sequence[str]:
            found = await plain(path)
            if path == BROKER_IDS and not asked.is_set():
                asked.set()
                await other.delete(topic_path("new"))
                await rig.until(lambda view: view.topic("new") is None)
                recreated = TopicAssignment(
                    topic="new", topic_id=uuid.UUID(int=7), partitions={0: (BrokerId(3), BrokerId(4))}
                )
                await other.create(recreated.path, recreated.encode())
                await rig.until(lambda view: view.topic("new") is not None)
            return list(found)

        await make_unclean(other, "t")
        async with zookeeper.open() as dying:
            await register(dying, 2)
            await rig.until(lambda view: 2 in view.brokers)
            await make_topic(other, "t", [(2, 1)])
            await rig.until(is_led("t", 1))
            known = await state_of(other, "t")
            await write_states(
                other, [StateChange(topic_id=uuid.UUID(int=1), state=replace(known, isr=(BrokerId(2),)), version=0)]
            )
            name = TopicPartition("t", 0)
            await rig.until(lambda view: (found := view.partition(name)) is not None and found.isr == (2,))
            await rig.controller._reigning()._writing.acquire()
            await make_topic(other, "before", [(1,)])  # planned first, so that the next plan is one of all topics
            await rig.until(lambda view: view.topic("before") is not None)
            await trio.testing.wait_all_tasks_blocked()
            await make_topic(other, "new", [(1,)])
            await rig.until(lambda view: view.topic("new") is not None)
        await rig.until(lambda view: 2 not in view.brokers)
        rig.client.client.children = children
        rig.controller._reigning()._writing.release()
        await rig.until(lambda view: (found := view.partition(name)) is not None and found.leader == 1)
        assert asked.is_set()
        await trio.testing.wait_all_tasks_blocked()
        assert await read_states(other, [TopicPartition("new", 0)]) == {}


@pytest.mark.parametrize("is_new_life", [False, True])
async def test_no_dead_replica_leaves_the_isr_for_one_that_lost_its_log_unseen(*, is_new_life: bool) -> None:
    """The view lags behind: the survivor's registration names a lost replica by now, or its next life has begun."""
    zookeeper, name, survivor = MemoryZooKeeper(), TopicPartition("t", 0), BrokerId(2)
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        await other.create(broker_epoch_path(survivor))
        registered = BrokerRegistration(
            id=survivor, listeners=(Listener(address=HostPort("127.0.0.1", 9092)),), timestamp_ms=0, epoch=0
        )
        await other.create(registered.path, registered.encode(), ephemeral=True)
        async with zookeeper.open() as dying:
            await register(dying, 3)
            await rig.until(lambda view: {2, 3} <= view.brokers.keys())
            await make_topic(other, "t", [(2, 3)])
            await rig.until(is_led("t", 1))
            plain, refusals = rig.client.client.transaction, 0

            async def transaction(operations: Sequence[Operation]) -> None:
                nonlocal refusals
                if refusals == 0 and any(operation.path == partition_state_path("t", 0) for operation in operations):
                    if is_new_life:
                        await other.set(broker_epoch_path(survivor), b"")
                    else:
                        told = replace(registered, offline_replicas={"t": (0,)})
                        await other.set(registered.path, told.encode())
                try:
                    await plain(operations)
                except BadVersionError as error:
                    refusals += error.path in {registered.path, broker_epoch_path(survivor)}
                    raise

            rig.client.client.transaction = transaction
        if is_new_life:
            with trio.fail_after(DEADLINE_S):
                while refusals < 2:  # judged again in vain, for the view still has the former life
                    await trio.testing.wait_all_tasks_blocked()
                    rig.view.set_brokers(dict(rig.view.brokers))
            assert (await state_of(other, "t")).isr == (2, 3)
            told = replace(registered, epoch=1, offline_replicas={"t": (0,)})
            await other.delete(registered.path)
            await other.create(registered.path, told.encode(), ephemeral=True)
        await rig.until(lambda view: (found := view.partition(name)) is not None and found.leader == -1)
        assert refusals
        assert (await state_of(other, "t")).isr == (2, 3)


async def test_a_reassignment_does_not_end_on_a_state_that_was_another_by_then() -> None:
    """Who is let go deletes its log: it may be the last one in sync."""
    zookeeper, name = MemoryZooKeeper(), TopicPartition("t", 0)
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        await register(other, 2)
        await rig.until(lambda view: 2 in view.brokers)
        await make_topic(other, "t", [(2, 1)])
        await rig.until(is_led("t", 1))
        plain = rig.client.client.transaction
        ends = 0

        async def transaction(operations: Sequence[Operation]) -> None:
            nonlocal ends
            if any(operation.path == topic_path("t") for operation in operations):
                ends += 1
            if ends == 2:
                state = await state_of(other, "t")
                lone = replace(state, leader=BrokerId(1), leader_epoch=LeaderEpoch(9), isr=(BrokerId(1),))
                version = (await other.get(state.path)).version
                assert (
                    await write_states(other, [StateChange(topic_id=uuid.UUID(int=1), state=lone, version=version)])
                )[name] is not None
            await plain(operations)

        rig.client.client.transaction = transaction
        await rig.controller.reassign({name: (BrokerId(2),)}, timeout_s=DEADLINE_S)
        await rig.until(lambda view: (found := view.partition(name)) is not None and found.leader_epoch == 9)
        await trio.testing.wait_all_tasks_blocked()
        assert TopicAssignment.decode("t", (await other.get(topic_path("t"))).data).removing_replicas == {0: (1,)}
        assert ends == 2


async def test_a_replica_removed_after_the_plan_is_not_elected() -> None:
    """The view may not show yet that a reassignment is over, while its target is shutting down, or dies."""
    zookeeper, name = MemoryZooKeeper(), TopicPartition("t", 0)
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        async with zookeeper.open() as dying:
            await register(dying, 2)
            await rig.until(lambda view: 2 in view.brokers)
            await make_topic(other, "t", [(2, 1)])
            await rig.until(is_led("t", 1))
            plain = rig.client.client.transaction
            moved = TopicAssignment.decode("t", (await other.get(topic_path("t"))).data)
            moved = replace(moved, partitions={0: (BrokerId(2),)})

            async def transaction(operations: Sequence[Operation]) -> None:
                if any(operation.path == partition_state_path("t", 0) for operation in operations):
                    rig.client.client.transaction = plain
                    await other.set(moved.path, moved.encode())
                await plain(operations)

            rig.client.client.transaction = transaction
        await rig.until(lambda view: (found := view.partition(name)) is not None and found.leader_epoch > 0)
        await trio.testing.wait_all_tasks_blocked()
        state = await state_of(other, "t")
        assert (state.leader, state.isr) == (-1, (2,))


async def test_an_assignment_of_a_deleted_topic_is_not_written_over_that_of_a_recreated_one() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        await register(other, 2)
        await rig.until(lambda view: 2 in view.brokers)
        await make_topic(other, "t", [(1,)])
        await rig.until(is_led("t", 1))
        name, client = TopicPartition("t", 0), rig.client.client
        plain, topic = client.transaction, TopicAssignment.decode("t", (await other.get(topic_path("t"))).data)
        recreated = replace(topic, topic_id=uuid.UUID(int=9), partitions={0: (BrokerId(1),)})

        async def wake_late(operations: Sequence[Operation]) -> None:
            if any(operation.path == topic_path("t") for operation in operations):
                client.transaction = plain
                await other.create(record_path(topic.id))
                await other.set(recreated.path, recreated.encode())
                version = (await other.get(recreated.path)).version
                operations = [
                    replace(each, version=version) if isinstance(each, SetNode) else each for each in operations
                ]
            await plain(operations)

        client.transaction = wake_late
        outcomes = await rig.controller.reassign({name: (BrokerId(2),)}, timeout_s=DEADLINE_S)
        assert outcomes[name].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert TopicAssignment.decode("t", (await other.get(topic_path("t"))).data) == recreated


async def test_a_topic_gets_its_states_once_a_record_of_its_deletion_is_gone() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        record = record_path(uuid.uuid5(uuid.NAMESPACE_URL, "t"))
        await other.create(record)
        await make_topic(other, "t", [(1,)])
        await make_topic(other, "u", [(1,)])
        await rig.until(is_led("u", 1))
        topic = rig.view.topic("t")
        assert topic is not None
        assert not topic.is_led
        await other.delete(record)
        await rig.until(is_led("t", 1))
