"""Who is in sync with the leader of a partition, as it comes into ZooKeeper."""

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.broker.cluster.view import ClusterView, PartitionView, TopicView
from pipeline.broker.replicas.logs import log_config
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.isr_writer import IsrWriter
from pipeline.broker.replication.partition import Partition
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.coordination.cluster_znodes import STATE_CHANGES
from pipeline.coordination.deleted_topics import record_path
from pipeline.coordination.interface import Operation
from pipeline.coordination.partition_states import StateChange, Written, read_states, write_states
from pipeline.coordination.znodes import PartitionState, broker_epoch_path, topic_path
from pipeline.log.files import DiskFiles
from pipeline.log.loader import NewLog, create_log
from pipeline.model import NO_BROKER_EPOCH, BrokerEndpoint, BrokerId, HostPort, LeaderEpoch, Offset, TopicPartition
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from tests.support.broker_in_process import Observed, batch

LEADER, SECOND, THIRD = REPLICAS = BrokerId(1), BrokerId(2), BrokerId(3)
T = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=7)
MAX_LAG_S = 10.0
CONTROLLER_EPOCH = 8
CONFIG = BrokerConfig.from_settings({"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "memory:0"})


@dataclass
class Rig:
    """A leader, and the task that writes for it."""

    zookeeper: MemoryZooKeeper
    client: MemoryClient
    view: ClusterView
    partition: Partition
    writer: IsrWriter

    def append(self) -> None:
        self.partition.append(memoryview(batch(b"x")), keep_offsets=False, now_ms=now_ms())

    def fetched(self, replica: BrokerId, epoch: int = NO_BROKER_EPOCH) -> None:
        """It has all."""
        end_offset = self.partition.log.log_end_offset
        self.partition.leading().follower_fetched(replica, end_offset, Offset(0), broker_epoch=epoch, has_epoch=True)

    def register(self, replica: BrokerId, epoch: int) -> None:
        """The leader learns of it."""
        brokers = self.view.brokers
        self.view.set_brokers({**brokers, replica: replace(brokers[replica], epoch=epoch)})

    async def state(self) -> Written:
        return (await read_states(self.client, [T]))[T]

    async def until(self, condition: Callable[[], Any]) -> None:
        with trio.fail_after(10 * MAX_LAG_S):
            while not condition():
                await trio.sleep(0.5)


def now_ms() -> int:
    return int(trio.current_time() * 1000)


@asynccontextmanager
async def leading(path: Path, *isr: BrokerId) -> AsyncIterator[Rig]:
    zookeeper, view = MemoryZooKeeper(), ClusterView("c")
    settings = topic_settings({}, CONFIG)
    async with zookeeper.open() as client:
        await client.create(topic_path("t"))
        first = PartitionState(
            topic="t",
            partition=0,
            leader=LEADER,
            leader_epoch=LeaderEpoch(0),
            isr=isr,
            controller_epoch=CONTROLLER_EPOCH,
        )
        await write_states(client, [StateChange(topic_id=TOPIC_ID, state=first, version=None)])
        topic = TopicView(
            name="t", topic_id=TOPIC_ID, partitions={0: PartitionView(replicas=REPLICAS)}, settings=settings
        )
        view.set_topic(topic)
        view.set_brokers({own: BrokerEndpoint(id=own, address=HostPort("h", 9092)) for own in REPLICAS})
        view.accept_states(view.asking([T]), await read_states(client, [T]))
        watch = InSyncWatch(view, MAX_LAG_S)
        new = NewLog(topic_partition=T, topic_id=topic.topic_id)
        log = create_log(DiskFiles(), path, new, log_config(settings, 1_000_000), now_ms=0)
        upkeep: Any = SimpleNamespace(disks=DiskThreads(), flush_soon=lambda partition: None, in_sync=watch)
        partition = Partition(log, settings, Observed(), upkeep, LEADER)
        found = view.partition(T)
        assert found is not None
        partition.lead(found)
        writer = IsrWriter(client, view, watch, {T: partition}, LEADER)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            yield Rig(zookeeper, client, view, partition, writer)
            nursery.cancel_scope.cancel()


async def test_a_replica_that_caught_up_joins_at_once_and_one_that_fell_behind_leaves(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        rig.append()
        began_s = trio.current_time()
        rig.fetched(THIRD)
        await trio.testing.wait_all_tasks_blocked()
        state, version = await rig.state()
        assert (state.isr, version, trio.current_time()) == ((1, 2, 3), 1, began_s)
        assert (state.leader_epoch, state.controller_epoch) == (0, CONTROLLER_EPOCH)
        assert rig.partition.isr == (1, 2, 3)
        assert (rig.view.partition(T) or state).isr == (1, 2, 3)
        assert len(await rig.client.children(STATE_CHANGES)) == 2
        await rig.until(lambda: rig.partition.isr == (1, 3))
        assert MAX_LAG_S <= trio.current_time() - began_s <= 2 * MAX_LAG_S
        assert rig.partition.high_watermark == 1
        assert (rig.writer.expands, rig.writer.shrinks) == (1, 1)


async def test_a_state_that_another_broker_wrote_stands_until_it_is_known(tmp_path: Path, autojump_clock: Any) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        state, version = await rig.state()
        await write_states(rig.client, [StateChange(topic_id=TOPIC_ID, state=state, version=version)])
        rig.fetched(SECOND)
        rig.fetched(THIRD)
        await trio.sleep(2 * MAX_LAG_S)
        assert (await rig.state()).version == 1
        assert rig.partition.isr == (1, 2)
        found = rig.view.partition(T)
        assert found is not None and found.state_version == 1
        rig.partition.update(found)
        rig.fetched(THIRD)  # it must say again what it has
        await rig.until(lambda: rig.partition.isr == (1, 2, 3))


async def test_an_added_replica_counts_where_another_write_follows_a_lost_answer(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        state, version = await rig.state()
        added = replace(state, isr=(LEADER, SECOND, THIRD))
        await write_states(rig.client, [StateChange(topic_id=TOPIC_ID, state=added, version=version)])
        rig.fetched(THIRD)
        await trio.testing.wait_all_tasks_blocked()
        rig.append()
        rig.fetched(SECOND)
        await trio.sleep(2 * MAX_LAG_S)
        assert (rig.partition.isr, rig.partition.high_watermark) == ((1, 2), 0)
        found = rig.view.partition(T)
        assert found is not None and found.isr == (1, 2, 3)
        rig.partition.update(found)
        rig.fetched(THIRD)
        await rig.until(lambda: rig.partition.high_watermark == 1)


async def test_a_replica_that_joins_counts_already_while_zookeeper_is_away(tmp_path: Path, autojump_clock: Any) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        rig.zookeeper.stop()
        rig.fetched(THIRD)
        await trio.testing.wait_all_tasks_blocked()
        rig.append()
        rig.fetched(SECOND)
        await trio.sleep(2 * MAX_LAG_S)
        assert (rig.partition.isr, rig.partition.high_watermark) == ((1, 2), 0)
        rig.zookeeper.start()
        await rig.until(lambda: (rig.writer.expands, rig.writer.shrinks) == (1, 1))
        assert rig.partition.isr == (1, 2)
        assert rig.partition.high_watermark == 1


async def test_late_fetches_of_a_former_life_do_not_let_the_next_one_join(tmp_path: Path, autojump_clock: Any) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        alive = rig.view.brokers
        rig.view.set_brokers({own: found for own, found in alive.items() if own != THIRD})
        await trio.testing.wait_all_tasks_blocked()
        rig.fetched(THIRD)
        rig.view.set_brokers(alive)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.partition.isr == (1, 2)
        rig.fetched(THIRD)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.partition.isr == (1, 2, 3)


async def test_a_follower_that_has_begun_another_life_is_not_added_by_what_it_fetched_before(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        await rig.client.create(broker_epoch_path(THIRD))
        rig.register(THIRD, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert await rig.client.set(broker_epoch_path(THIRD), b"") == 1  # the leader does not know yet
        rig.fetched(THIRD, 0)
        await trio.sleep(3 * MAX_LAG_S)
        assert ((await rig.state()).state.isr, rig.partition.isr) == ((1, 2), (1, 2))
        rig.register(THIRD, 1)
        await trio.testing.wait_all_tasks_blocked()
        rig.fetched(THIRD, 0)
        await trio.sleep(3 * MAX_LAG_S)
        assert rig.partition.isr == (1,)  # the second has fallen silent meanwhile
        rig.fetched(THIRD, 1)
        await rig.until(lambda: rig.partition.isr == (1, 3))


async def test_a_registration_that_is_seen_while_the_write_is_refused_lets_the_new_life_in(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        await rig.client.create(broker_epoch_path(THIRD))
        rig.register(THIRD, 0)
        await trio.testing.wait_all_tasks_blocked()
        rig.zookeeper.stop()
        rig.fetched(THIRD, 0)
        await trio.testing.wait_all_tasks_blocked()
        rig.register(THIRD, 1)
        await trio.testing.wait_all_tasks_blocked()
        rig.zookeeper.start()
        await rig.client.set(broker_epoch_path(THIRD), b"")
        rig.fetched(SECOND)
        rig.fetched(THIRD, 1)
        await rig.until(lambda: rig.partition.isr == (1, 2, 3))


async def test_the_leader_of_a_deleted_topic_writes_nothing_of_one_of_the_same_name(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        topic = rig.view.topic("t")
        assert topic is not None
        rig.view.set_topic(replace(topic, topic_id=uuid.UUID(int=8)))
        rig.fetched(THIRD)
        await trio.sleep(2 * MAX_LAG_S)
        assert (await rig.state()).version == 0


async def test_a_leader_that_was_cut_off_writes_nothing_of_a_recreated_topic_whose_state_has_the_same_version(
    tmp_path: Path, autojump_clock: Any
) -> None:
    async with leading(tmp_path, LEADER, SECOND) as rig:
        recreated = replace((await rig.state()).state, leader=SECOND, isr=(SECOND,))
        plain = rig.client.transaction

        async def come_back_late(operations: Sequence[Operation]) -> None:
            rig.client.transaction = plain  # type: ignore[method-assign]
            await rig.client.create(record_path(TOPIC_ID))
            await rig.client.delete(recreated.path)
            await rig.client.create(recreated.path, recreated.encode())
            await plain(operations)

        rig.client.transaction = come_back_late  # type: ignore[method-assign]
        rig.fetched(THIRD)
        await trio.sleep(2 * MAX_LAG_S)
        assert rig.client.transaction == plain
        assert await rig.state() == (recreated, 0)
        assert rig.partition.isr == (1, 2)
        assert rig.writer.expands == 0


@pytest.mark.parametrize("is_silent", [True, False])
async def test_a_replica_out_of_sync_is_waited_for_only_while_it_keeps_up(
    tmp_path: Path, autojump_clock: Any, is_silent: bool
) -> None:
    """Also where nobody appends or fetches news any more."""
    async with leading(tmp_path, LEADER, SECOND) as rig:
        await rig.client.create(broker_epoch_path(THIRD))
        rig.register(THIRD, 0)
        await rig.client.set(broker_epoch_path(THIRD), b"")  # so that it cannot join
        rig.fetched(THIRD, 0)
        await trio.testing.wait_all_tasks_blocked()
        rig.append()
        rig.fetched(SECOND)
        assert rig.partition.high_watermark == 0
        if not is_silent:
            rig.fetched(THIRD, 0)
        await trio.sleep(2 * MAX_LAG_S)
        assert rig.partition.high_watermark == 1
