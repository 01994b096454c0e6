"""The controller against a ZooKeeper in memory: elections of itself and of leaders, and how few requests they take."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from pipeline.broker.cluster.view import NO_BROKER
from pipeline.broker.controller import reign
from pipeline.broker.controller.reassignment import TargetResult
from pipeline.broker.controller.reign import Reign
from pipeline.coordination.cluster_znodes import STATE_CHANGES, ControllerEpoch, ControllerNode
from pipeline.coordination.interface import CoordinationClient, Operation
from pipeline.coordination.partition_states import StateChange, write_states
from pipeline.coordination.znodes import (
    PartitionState,
    TopicAssignment,
    broker_path,
    topic_path,
)
from pipeline.errors import NodeExistsError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.controllers import DEADLINE_S, Rig, is_led, make_topic, make_unclean, register, running, state_of

LOST, WAITS = TopicPartition("lost", 0), TopicPartition("waits", 0)


async def test_another_broker_becomes_controller_when_the_first_one_is_gone() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 2) as second:
        async with running(zookeeper, 1) as first:
            assert (second.controller.is_active, first.controller.is_active) == (True, False)
            assert first.view.controller == 2
            with pytest.raises(KafkaError) as raised:
                await first.controller.elect(None, is_unclean=False, timeout_s=DEADLINE_S)
            assert raised.value.code == ErrorCode.NOT_CONTROLLER
            zookeeper.expire(second.client.client)
            with trio.fail_after(DEADLINE_S):
                while (await first.client.get(ControllerEpoch.PATH)).data != b"2":
                    await trio.lowlevel.checkpoint()
            node = ControllerNode.decode((await first.client.get(ControllerNode.PATH)).data)
        await second.until(lambda view: view.controller == 2)
        epoch = ControllerEpoch.decode((await second.client.get(ControllerEpoch.PATH)).data).epoch
        assert epoch == (2 if node.broker == 2 else 3)


async def test_an_election_whose_answer_was_lost_counts() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open() as other:
        await other.create(ControllerNode.PATH, ControllerNode(broker=BrokerId(9), timestamp_ms=0).encode())
        async with running(zookeeper, 1) as rig:
            rig.client.client.lose_next_answer()
            await other.delete(ControllerNode.PATH)
            await rig.until(lambda view: view.controller == 1)
            assert rig.controller.is_active
            assert (await rig.client.get(ControllerEpoch.PATH)).data == b"1"


async def test_a_controller_that_came_and_went_before_anybody_looked_is_followed_by_another() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open() as other:
        await other.create(ControllerNode.PATH, ControllerNode(broker=BrokerId(9), timestamp_ms=0).encode())
        async with running(zookeeper, 1) as one, running(zookeeper, 2) as two:
            standing: list[Rig] = []
            both, elected, refused, gone = trio.Event(), trio.Event(), trio.Event(), trio.Event()

            def stand_late(rig: Rig) -> None:
                plain = rig.client.client.transaction

                async def transaction(operations: Sequence[Operation]) -> None:
                    if gone.is_set() or not any(item.path == ControllerNode.PATH for item in operations):
                        await plain(operations)
                        return
                    if rig not in standing:
                        standing.append(rig)
                        if len(standing) == 2:
                            both.set()
                        await both.wait()
                    if rig is standing[0]:
                        await plain(operations)
                        elected.set()
                        await refused.wait()
                        zookeeper.expire(rig.client.client)  # stopped for longer than its session, once it was elected
                        gone.set()
                    else:
                        await elected.wait()
                        try:
                            await plain(operations)
                        except NodeExistsError:
                            refused.set()
                            await gone.wait()  # stopped, too
                            raise

                rig.client.client.transaction = transaction

            stand_late(one)
            stand_late(two)
            await other.delete(ControllerNode.PATH)
            with trio.fail_after(DEADLINE_S):
                await gone.wait()
                while await other.exists(ControllerNode.PATH) is None:
                    await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            assert one.controller.is_active != two.controller.is_active
            assert one.view.controller == two.view.controller == (1 if one.controller.is_active else 2)


@pytest.mark.parametrize("data", [ControllerNode(broker=BrokerId(1), timestamp_ms=77).encode(), b"nobody", b"9"])
async def test_a_controller_is_elected_again_after_its_znode_was_overwritten(data: bytes) -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as one, running(zookeeper, 2) as two:
        await two.client.set(ControllerNode.PATH, data)
        with trio.fail_after(DEADLINE_S):
            while (await two.client.get(ControllerEpoch.PATH)).data != b"2":
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert one.controller.is_active != two.controller.is_active
        assert one.view.controller == two.view.controller == (1 if one.controller.is_active else 2)


async def test_an_epoch_that_cannot_be_read_leaves_no_controller_until_it_is_written_again() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as one, running(zookeeper, 2) as two:
        await two.client.set(ControllerEpoch.PATH, b"no number")
        for rig in one, two:
            await rig.until(lambda view: view.controller == NO_BROKER)  # which `pipeline cluster describe` tells
        await two.client.set(ControllerEpoch.PATH, b"7")
        for rig in one, two:
            await rig.until(lambda view: view.controller != NO_BROKER)
        assert (await two.client.get(ControllerEpoch.PATH)).data == b"8"


async def test_the_writes_of_an_older_controller_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_told(_: Reign) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Reign, "_wait_until_superseded", not_told)
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as old, zookeeper.open() as other:
        await make_topic(other, "t", [(2, 1)])
        await old.until(is_led("t", 1))
        await register(other, 2)
        found = await other.get(ControllerEpoch.PATH)
        await other.set(ControllerEpoch.PATH, b"2", found.version)  # another was elected
        with pytest.raises(KafkaError) as raised:
            await old.controller.reassign({TopicPartition("t", 0): (BrokerId(1),)}, timeout_s=DEADLINE_S)
        assert raised.value.code == ErrorCode.NOT_CONTROLLER
        before = await state_of(other, "t")
        changed = PartitionState(
            topic="t", partition=0, leader=before.leader, leader_epoch=before.leader_epoch,
            isr=(BrokerId(1), BrokerId(2)), controller_epoch=1,
        )  # fmt: skip
        await other.set(before.path, changed.encode())
        await old.controller._elected.reign.states.read_all() if old.controller._elected else None
        with pytest.raises(KafkaError):
            await old.controller.elect(None, is_unclean=False, timeout_s=DEADLINE_S)
        assert await state_of(other, "t") == changed


async def test_a_lost_broker_with_2000_leaders_costs_few_requests() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        async with zookeeper.open() as dying:
            await register(dying, 2)
            await rig.until(lambda view: 2 in view.brokers)
            for topic in range(10):
                await make_topic(other, f"t{topic}", [(2, 1)] * 200)
            for topic in range(10):
                await rig.until(is_led(f"t{topic}", 200))
            rig.client.requests.clear()
            started = time.thread_time()
        await rig.until(
            lambda view: all(found.leader == 1 for topic in view.topics() for found in topic.partitions.values())
        )
        assert time.thread_time() - started < 3
        assert 2000 / 250 <= rig.client.requests.count("transaction") <= 2000 / 250 + 2
        assert len(rig.client.requests) < 40, rig.client.requests
        assert (await state_of(other, "t3", 7)).leader_epoch == 1
        assert rig.controller.counts.leader_elections == 2000


async def test_topics_that_are_made_together_share_transactions() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        rig.client.requests.clear()
        for topic in range(100):
            await make_topic(other, f"t{topic}", [(1,)] * 5)
        for topic in range(100):
            await rig.until(is_led(f"t{topic}", 5))
        assert rig.client.requests.count("transaction") < 50


async def test_preferred_leaders_by_hand_and_reassignments() -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        await make_topic(other, "t", [(2, 1), (1,)])
        await rig.until(is_led("t", 2))
        await register(other, 2)
        await rig.until(lambda view: 2 in view.brokers)
        first = TopicPartition("t", 0)
        state = await state_of(other, "t")
        joined = PartitionState(
            topic="t", partition=0, leader=state.leader, leader_epoch=state.leader_epoch,
            isr=(BrokerId(1), BrokerId(2)), controller_epoch=1,
        )  # fmt: skip
        await other.set(state.path, joined.encode())
        await other.create(
            f"{STATE_CHANGES}/isr_change_", b'{"version":1,"partitions":[{"topic":"t","partition":0}]}', sequential=True
        )
        await rig.until(lambda view: (view.partition(first) or state).isr == (1, 2))
        codes = await rig.controller.elect(None, is_unclean=False, timeout_s=DEADLINE_S)
        assert codes == {first: ErrorCode.NONE, TopicPartition("t", 1): ErrorCode.ELECTION_NOT_NEEDED}
        assert (await state_of(other, "t")).leader == 2
        targets = {
            first: (BrokerId(1),),
            TopicPartition("t", 1): (BrokerId(9),),
            TopicPartition("t", 5): (BrokerId(1),),
            TopicPartition("u", 0): None,
        }
        outcomes = await rig.controller.reassign(targets, timeout_s=DEADLINE_S)
        assert [outcome.code for outcome in outcomes.values()] == [0, 39, 3, 3]
        with trio.fail_after(DEADLINE_S):
            while TopicAssignment.decode("t", (await other.get(topic_path("t"))).data).partitions[0] != (1,):
                await trio.lowlevel.checkpoint()
            while (await state_of(other, "t")).isr != (1,):
                await trio.lowlevel.checkpoint()
        assert (await state_of(other, "t")).leader == 1
        stopped = await rig.controller.reassign({first: None}, timeout_s=DEADLINE_S)
        assert stopped == {first: TargetResult(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)}


async def test_a_registration_that_cannot_be_used_holds_back_nothing_but_partitions_that_wait_for_that_broker(
    autojump_clock: trio.testing.MockClock,
) -> None:
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other, zookeeper.open() as unusable:
        await unusable.create(broker_path(BrokerId(9)), b"no registration", ephemeral=True)
        async with zookeeper.open() as dying:
            await register(dying, 2)
            await rig.until(lambda view: 2 in view.brokers)
            for name, isr in (("lost", 2), ("waits", 9)):
                await make_unclean(other, name)
                await make_topic(other, name, [(2, 9, 1)])
                await rig.until(is_led(name, 1))
                known = await state_of(other, name)
                only = replace(known, isr=(BrokerId(isr),), leader=BrokerId(isr))
                await write_states(other, [StateChange(topic_id=uuid.UUID(int=1), state=only, version=0)])
            await rig.until(lambda view: (found := view.partition(WAITS)) is not None and found.isr == (9,))
        await rig.until(lambda view: (found := view.partition(LOST)) is not None and found.leader == 1)
        assert rig.controller.counts.unclean_elections == 1
        by_hand = await rig.controller.elect([WAITS], is_unclean=True, timeout_s=DEADLINE_S)
        assert by_hand == {WAITS: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
        assert (await state_of(other, "waits")).isr == (9,)
        await unusable.delete(broker_path(BrokerId(9)))  # of which the view learns nothing: it never knew that broker
        await rig.until(lambda view: (found := view.partition(WAITS)) is not None and found.leader == 1)


async def put_in_sync(rig: Rig, client: CoordinationClient, name: TopicPartition, *isr: int) -> None:
    """As a leader would, once its follower has all."""
    state = await state_of(client, name.topic, name.partition)
    wider = replace(state, isr=tuple(map(BrokerId, isr)))
    version = (await client.get(state.path)).version
    await write_states(client, [StateChange(topic_id=uuid.UUID(int=1), state=wider, version=version)])
    await rig.until(lambda view: (found := view.partition(name)) is not None and found.isr == isr)


async def test_leaders_spread_soon_after_brokers_are_back_and_in_sync(autojump_clock: trio.testing.MockClock) -> None:
    zookeeper, names = MemoryZooKeeper(), [TopicPartition("t", index) for index in range(2)]
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        await make_topic(other, "t", [(2, 1), (2, 1), (1, 2)])
        await rig.until(is_led("t", 3))
        await register(other, 2)
        await rig.until(lambda view: 2 in view.brokers)
        await put_in_sync(rig, other, names[0], 1, 2)
        await put_in_sync(rig, other, TopicPartition("t", 2), 1, 2)
        await trio.sleep(5 * reign.QUIET_S)
        assert (await state_of(other, "t")).leader == 1, "the other one is not in sync yet"
        await put_in_sync(rig, other, names[1], 1, 2)
        async with zookeeper.open() as passing:
            for _ in range(3):  # somebody comes and goes all the time
                await register(passing, 3)
                await trio.sleep(reign.QUIET_S / 2)
                await passing.delete(broker_path(BrokerId(3)))
                await trio.sleep(reign.QUIET_S / 2)
        assert (await state_of(other, "t")).leader == 1
        with trio.fail_after(2 * reign.QUIET_S):
            await rig.until(lambda view: all((found := view.partition(name)) and found.leader == 2 for name in names))
        version = (await other.get((await state_of(other, "t")).path)).version
        await trio.sleep(5 * reign.QUIET_S)
        assert (await other.get((await state_of(other, "t")).path)).version == version


async def test_old_notifications_are_purged_and_brokers_that_missed_them_read_all_states(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reign, "NOTIFICATIONS_KEPT", 3)
    zookeeper = MemoryZooKeeper()
    async with running(zookeeper, 1) as rig, zookeeper.open() as other:
        await make_topic(other, "t", [(1,)])
        await rig.until(is_led("t", 1))
        for _ in range(10):
            await other.create(f"{STATE_CHANGES}/isr_change_", b'{"version":1,"partitions":[]}', sequential=True)
        await trio.sleep(2 * reign.PURGE_INTERVAL_S)
        assert len(await other.children(STATE_CHANGES)) == 3
        state = await state_of(other, "t")
        newer = PartitionState(
            topic="t", partition=0, leader=state.leader, leader_epoch=state.leader_epoch, isr=state.isr,
            controller_epoch=77,
        )  # fmt: skip
        await other.set(state.path, newer.encode())
        known = rig.view.partition(TopicPartition("t", 0))
        assert known is not None
        for child in await other.children(STATE_CHANGES):
            await other.delete(f"{STATE_CHANGES}/{child}")
        await rig.until(lambda view: view.partition(TopicPartition("t", 0)) != known)
