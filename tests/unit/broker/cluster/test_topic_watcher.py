"""What is seen of topics as they are made and changed."""

import uuid
from collections.abc import Sequence
from typing import Any

import trio
import trio.testing

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.cluster.watcher import ClusterWatcher
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.coordination.interface import MAX_AT_ONCE, NodeValue
from pipeline.coordination.partition_states import StateChange, write_states
from pipeline.coordination.znodes import (
    PartitionState,
    broker_path,
    encode_config,
    partition_state_path,
    topic_config_path,
)
from pipeline.model import BROKER_IDS, BrokerEndpoint, BrokerId, HostPort, LeaderEpoch, TopicPartition
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.broker_in_process import TIMEOUT_S
from tests.support.controllers import make_topic, register

T = TopicPartition("t", 0)
OWN = BrokerEndpoint(id=BrokerId(1), address=HostPort("h", 9092))
CONFIG = BrokerConfig.from_settings({"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "memory:0"})


async def test_states_written_while_a_large_topic_is_read_are_not_missed() -> None:
    zookeeper, view = MemoryZooKeeper(), ClusterView("c")
    async with zookeeper.open() as other, zookeeper.open() as client, trio.open_nursery() as nursery:
        await nursery.start(ClusterWatcher(client, DynamicSettings(CONFIG), view, OWN).run)
        plain, last = client.get_each, partition_state_path("t", MAX_AT_ONCE)
        is_written = False

        async def get_each(paths: Sequence[str]) -> list[NodeValue | None]:
            nonlocal is_written
            if last in paths and not is_written:  # the first ones were read, the topic is not shown yet
                is_written = True
                state = PartitionState(
                    topic="t",
                    partition=0,
                    leader=OWN.id,
                    leader_epoch=LeaderEpoch(0),
                    isr=(OWN.id,),
                    controller_epoch=1,
                )
                await write_states(other, [StateChange(topic_id=uuid.UUID(int=1), state=state, version=None)])
                await trio.testing.wait_all_tasks_blocked()
            return await plain(paths)

        client.get_each = get_each  # type: ignore[method-assign]
        await make_topic(other, "t", [(1,)] * (MAX_AT_ONCE + 1))
        with trio.fail_after(TIMEOUT_S):
            await view.wait_until(lambda view: (found := view.partition(T)) is not None and found.leader == OWN.id)
        assert is_written
        nursery.cancel_scope.cancel()


async def test_a_task_that_waits_for_changes_is_woken_although_another_task_took_some() -> None:
    changes = ClusterView("c").changes()
    changes.take()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(changes.wait)
        await trio.testing.wait_all_tasks_blocked()
        changes.take()
        changes.note("t")
        with trio.fail_after(TIMEOUT_S):
            await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks
        assert changes.take() == ["t"]
        nursery.cancel_scope.cancel()


async def test_settings_that_change_while_a_new_topic_is_read_are_followed() -> None:
    zookeeper, view = MemoryZooKeeper(), ClusterView("c")
    async with zookeeper.open() as other, zookeeper.open() as client, trio.open_nursery() as nursery:
        await nursery.start(ClusterWatcher(client, DynamicSettings(CONFIG), view, OWN).run)
        plain = client.get_each
        is_changed = False

        async def get_each(paths: Sequence[str]) -> list[NodeValue | None]:
            nonlocal is_changed
            if partition_state_path("t", 0) in paths and not is_changed:
                is_changed = True  # the settings were read, the topic is not shown yet
                await other.set(topic_config_path("t"), encode_config({"retention.ms": "2"}))
                await trio.testing.wait_all_tasks_blocked()
            return await plain(paths)

        client.get_each = get_each  # type: ignore[method-assign]
        await other.create(topic_config_path("t"), encode_config({"retention.ms": "1"}))
        await make_topic(other, "t", [(1,)])
        with trio.fail_after(TIMEOUT_S):
            await view.wait_until(
                lambda view: (found := view.topic("t")) is not None and found.settings.retention_ms == 2
            )
        assert is_changed
        nursery.cancel_scope.cancel()


async def test_a_broker_that_is_gone_is_not_seen_again_by_an_older_answer() -> None:
    zookeeper, view = MemoryZooKeeper(), ClusterView("c")
    async with zookeeper.open() as other, zookeeper.open() as client, trio.open_nursery() as nursery:
        await nursery.start(ClusterWatcher(client, DynamicSettings(CONFIG), view, OWN).run)
        plain = client._watched_read
        for _ in range(20):  # the order of the tasks that are ready is random
            await register(other, 2)
            await view.wait_until(lambda view: 2 in view.brokers)
            answered = trio.Event()

            async def read(path: str, answered: trio.Event = answered) -> Any:
                found = await plain(path)
                if path == broker_path(BrokerId(2)):  # the answer to the next question comes at the same time
                    await answered.wait()
                elif path == BROKER_IDS:
                    await answered.wait()
                    found = await plain(path)
                return found

            client._watched_read = read  # type: ignore[method-assign]
            value = await other.get(broker_path(BrokerId(2)))
            await other.set(broker_path(BrokerId(2)), value.data)
            await register(other, 3)
            await trio.testing.wait_all_tasks_blocked()
            await other.delete(broker_path(BrokerId(2)))
            await other.delete(broker_path(BrokerId(3)))
            client._watched_read = plain  # type: ignore[method-assign]
            answered.set()
            await trio.testing.wait_all_tasks_blocked()
            assert set(view.brokers) == {1}
        nursery.cancel_scope.cancel()
