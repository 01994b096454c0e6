"""ZooKeeper that is restored from an older backup while brokers run: its states are followed, and written again."""

import shutil
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.broker.cluster.spent_epochs import SpentEpochs, raise_after_s, raise_spent_epochs, spent_epoch
from pipeline.broker.cluster.view import ClusterView, PartitionView, TopicView
from pipeline.broker.controller import reign
from pipeline.broker.controller.controller_plan import ClusterState, judge
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.topic import topic_settings
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.coordination.cluster_znodes import ControllerNode
from pipeline.coordination.interface import CreateNode
from pipeline.coordination.partition_states import StateChange, Written, write_states
from pipeline.coordination.znodes import (
    PartitionState,
    TopicAssignment,
    broker_path,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_path,
)
from pipeline.errors import NoNodeError
from pipeline.model import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, TopicPartition
from pipeline.testing.memory_zookeeper import Backup, MemoryZooKeeper
from tests.support.brokers import Brokers, clock, replicated_cluster
from tests.support.znodes import remove_tree

T = TopicPartition("t", 0)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
SETTINGS: dict[str, Any] = {
    "replica_lag_time_max_ms": 20_000,
    "replica_fetch_wait_max_ms": 50,
    "auto_leader_rebalance_enable": "false",
    "min_insync_replicas": 2,
}


def state(*, epoch: int, isr: tuple[BrokerId, ...] = (ONE, TWO), leader: BrokerId = ONE) -> PartitionState:
    return PartitionState(
        topic="t", partition=0, leader=leader, leader_epoch=LeaderEpoch(epoch), isr=isr, controller_epoch=1
    )


def view_of_t(tmp_path: Path) -> ClusterView:
    config = BrokerConfig.from_settings(
        {"broker.id": 1, "log.dirs": str(tmp_path), "zookeeper.connect": "memory:0", "listeners": "PLAINTEXT://h:1"}
    )
    view = ClusterView("c")
    view.set_topic(
        TopicView(
            name="t",
            topic_id=uuid.UUID(int=1),
            partitions={0: PartitionView(replicas=(ONE, TWO))},
            settings=topic_settings({}, config),
        )
    )
    return view


def known(view: ClusterView) -> PartitionView:
    found = view.partition(T)
    assert found is not None
    return found


async def test_a_state_that_zookeeper_lost_stays_known_and_its_epochs_are_spent(tmp_path: Path) -> None:
    view = view_of_t(tmp_path)
    view.accept_states(view.asking([T]), {T: Written(state(epoch=7), 20)})
    assert (known(view).is_spent, known(view).next_epoch) == (False, 8)
    view.accept_states(view.asking([T]), {T: Written(state(epoch=5, isr=(ONE,)), 15)})
    found = known(view)
    assert (found.state_version, found.leader_epoch, found.isr) == (15, 7, (ONE, TWO))
    assert (found.is_spent, found.next_epoch) == (True, 8)
    view.accept_states(view.asking([T]), {T: Written(state(epoch=6, isr=(TWO,), leader=TWO), 16)})
    found = known(view)
    assert (found.state_version, found.leader, found.is_spent) == (16, ONE, True)
    view.accept_states(view.asking([T]), {T: Written(state(epoch=8, isr=(TWO,), leader=TWO), 17)})
    found = known(view)
    assert (found.leader, found.isr, found.is_spent, found.next_epoch) == (TWO, (TWO,), False, 9)


async def test_a_state_that_vanished_or_is_unreadable_stays_known(tmp_path: Path) -> None:
    for version in (-1, 3):
        view = view_of_t(tmp_path)
        view.accept_lost(view.asking([T]), {T: version})
        assert not known(view).has_state
        before = view.asking([T])
        view.accept_states(view.asking([T]), {T: Written(state(epoch=7), 20)})
        view.accept_lost(before, {T: version})
        assert not known(view).is_spent
        view.accept_lost(view.asking([T]), {T: version})
        found = known(view)
        assert (found.state_version, found.isr, found.has_state, found.next_epoch) == (version, (ONE, TWO), True, 8)


def test_the_controller_restores_a_lost_state_with_the_live_replicas(tmp_path: Path) -> None:
    lost = PartitionView(
        replicas=(ONE, TWO, THREE),
        leader=TWO,
        leader_epoch=LeaderEpoch(7),
        isr=(TWO, THREE),
        state_version=-1,
        spent_epoch=LeaderEpoch(7),
    )
    whole = judge(T, lost, ClusterState(topics=(), live=frozenset({ONE, TWO, THREE})), allow_unclean=False)
    assert (whole.leader, whole.leader_epoch, whole.isr) == (TWO, 8, (TWO, THREE))
    led = judge(T, lost, ClusterState(topics=(), live=frozenset({ONE, THREE})), allow_unclean=False)
    assert (led.leader, led.leader_epoch, led.isr) == (THREE, 8, (THREE,))
    offline = judge(T, lost, ClusterState(topics=(), live=frozenset({ONE})), allow_unclean=False)
    assert (offline.leader, offline.leader_epoch, offline.isr) == (-1, 8, (TWO, THREE))


async def test_an_older_state_that_was_asked_for_before_is_passed_by(tmp_path: Path) -> None:
    view = view_of_t(tmp_path)
    before = view.asking([T])
    view.accept_states(view.asking([T]), {T: Written(state(epoch=7), 20)})
    view.accept_states(before, {T: Written(state(epoch=6), 19)})
    assert (known(view).state_version, known(view).is_spent) == (20, False)


async def test_another_state_of_the_same_version_is_one_of_another_history(tmp_path: Path) -> None:
    view = view_of_t(tmp_path)
    view.accept_states(view.asking([T]), {T: Written(state(epoch=7), 20)})
    view.accept_states(view.asking([T]), {T: Written(state(epoch=7), 20)})
    assert not known(view).is_spent
    view.accept_states(view.asking([T]), {T: Written(state(epoch=7, isr=(ONE,)), 20)})
    assert (known(view).isr, known(view).is_spent) == ((ONE, TWO), True)
    view.accept_states(view.asking([T]), {T: Written(state(epoch=6, leader=TWO), 25)})
    assert (known(view).leader, known(view).is_spent, known(view).next_epoch) == (ONE, True, 8)


def test_epochs_of_records_that_a_replica_has_are_spent() -> None:
    def judged(leader: BrokerId, epoch: int, last: int, told: int = NO_LEADER_EPOCH) -> LeaderEpoch | None:
        view = PartitionView(replicas=(ONE, TWO), leader=leader, leader_epoch=LeaderEpoch(epoch))
        return spent_epoch(view, ONE, LeaderEpoch(told), LeaderEpoch(last))

    assert judged(ONE, 5, 4) is None
    assert judged(ONE, 5, 5) == 5
    assert judged(TWO, 5, 5) is None
    assert judged(TWO, 5, 6) == 6
    assert judged(TWO, 5, 5, 7) == 7
    assert judged(BrokerId(-1), 5, 9) is None


async def test_brokers_that_remember_most_raise_spent_epochs_first(autojump_clock: trio.testing.MockClock) -> None:
    spent, others = SpentEpochs(), [TopicPartition("t", index) for index in (1, 2)]
    remembered = PartitionView(
        replicas=(ONE, TWO), leader=ONE, leader_epoch=LeaderEpoch(7), isr=(ONE,), spent_epoch=LeaderEpoch(7)
    )
    for name, view, own in (
        (others[1], PartitionView(replicas=(ONE, TWO), leader=ONE, leader_epoch=LeaderEpoch(5)), ONE),
        (others[0], remembered, TWO),
        (T, remembered, ONE),
    ):
        spent.note(name, LeaderEpoch(7), raise_after_s(view, own))
    for expected in (T, *others):
        assert await spent.take() == {expected: 7}
        spent.forget(expected)


async def create(brokers: Brokers) -> tuple[int, ...]:
    """Create the topic, and return its replicas in the order in which they are elected."""
    await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=3)])
    await brokers.wait_for_isr("t", 3)
    async with brokers.zookeeper.open() as client:
        return TopicAssignment.decode("t", (await client.get(topic_path("t"))).data).partitions[0]


async def next_leader(brokers: Brokers, *former: int) -> int:
    """Wait until ZooKeeper names another leader than these, or none (-1)."""
    async with brokers.zookeeper.open() as client:
        with trio.fail_after(60):
            async for value in client.watch_data(partition_state_path("t", 0)):
                leader = PartitionState.decode("t", 0, value.data).leader
                if leader not in former:
                    return leader
    raise AssertionError("a watch does not end")


def registered_again(brokers: Brokers, backup: Backup, *ids: int) -> bool:
    """Whether these have sessions of after the backup: this server ends none of the backup, nor its registrations."""
    paths = [broker_path(BrokerId(id_)) for id_ in ids]
    found = [brokers.zookeeper.znodes.find_or_none(path) for path in paths]
    return all(node and node.owner != backup.nodes[path].owner for path, node in zip(paths, found, strict=True))


async def produce(brokers: Brokers, *values: bytes) -> None:
    async with open_producer(brokers.cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
        for value in values:
            await producer.send("t", value)


def last_offsets(brokers: Brokers) -> set[int]:
    return {replica.log.log_end_offset for replica in brokers.replicas("t")}


async def test_isr_changes_and_elections_are_written_again_after_zookeeper_went_back(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, **SETTINGS) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=3)])
        await brokers.wait_for_isr("t", 3)
        await produce(brokers, b"a")
        backup = brokers.zookeeper.backup()
        first = brokers.leader("t")
        assert first is not None
        await brokers.stop(first)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, b"b")
        await brokers.start(first)
        await brokers.wait_for_isr("t", 3)
        epoch = max(replica.leader_epoch for replica in brokers.replicas("t"))
        brokers.zookeeper.restore(backup)
        await brokers.wait_until(lambda: any(r.is_leader and r.leader_epoch > epoch for r in brokers.replicas("t")))
        await produce(brokers, b"c")
        await brokers.wait_for_isr("t", 3)
        follower = next(broker for broker in sorted(brokers.handles) if broker != brokers.leader("t"))
        await brokers.stop(follower)
        await brokers.wait_for_isr("t", 2)
        await brokers.start(follower)
        await brokers.wait_for_isr("t", 3)
        led = brokers.leader("t")
        assert led is not None
        await brokers.stop(led)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, b"d")
        assert brokers.leader("t") != led
        await brokers.wait_until(lambda: last_offsets(brokers) == {4})


async def test_isr_changes_that_zookeeper_forgot_are_written_again_by_the_same_leader(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, **SETTINGS) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=3)])
        await brokers.wait_for_isr("t", 3)
        backup = brokers.zookeeper.backup()
        led = brokers.leader("t")
        follower = next(broker for broker in sorted(brokers.handles) if broker != brokers.leader("t"))
        await brokers.stop(follower)
        await brokers.wait_for_isr("t", 2)
        brokers.zookeeper.restore(backup)
        await produce(brokers, b"a")
        await brokers.wait_for_isr("t", 2)
        await brokers.start(follower)
        await brokers.wait_for_isr("t", 3)
        await brokers.wait_until(lambda: last_offsets(brokers) == {1})
        assert brokers.leader("t") == led


@pytest.mark.long
async def test_brokers_that_were_down_while_zookeeper_went_back_use_no_epoch_of_their_logs_twice(
    tmp_path: Path,
) -> None:
    async with replicated_cluster(tmp_path, **SETTINGS) as brokers:
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=3)])
        await brokers.wait_for_isr("t", 3)
        await produce(brokers, b"a")
        backup = brokers.zookeeper.backup()
        for number in range(4):
            led = brokers.leader("t")
            assert led is not None
            await brokers.stop(led)
            await brokers.wait_for_isr("t", 2)
            await produce(brokers, str(number).encode())
            await brokers.start(led)
            await brokers.wait_for_isr("t", 3)
        last = max(replica.log.last_epoch for replica in brokers.replicas("t"))
        await brokers.stop(1, 2, 3)
        brokers.zookeeper.restore(backup)
        await brokers.start(1, 2, 3)
        await brokers.wait_until(lambda: any(r.is_leader and r.leader_epoch > last for r in brokers.replicas("t")))
        await brokers.wait_for_isr("t", 3)
        await produce(brokers, b"b")
        await brokers.wait_until(lambda: last_offsets(brokers) == {6})


async def test_a_replica_that_an_older_isr_names_does_not_lead_while_a_newer_isr_is_remembered(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, **{**SETTINGS, "replica_lag_time_max_ms": 30_000}) as brokers:
        led, behind, in_sync = await create(brokers)
        await produce(brokers, b"a")
        backup = replace(brokers.zookeeper.backup(), sessions=frozenset())  # of all of them, as not yet timed out
        await brokers.stop(behind)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, b"b")
        epoch = brokers.replica(led, "t").leader_epoch
        brokers.zookeeper.restore(backup)
        async with brokers.zookeeper.open() as client:
            with suppress(NoNodeError):
                await client.delete(ControllerNode.PATH)
        await brokers.wait_until(lambda: registered_again(brokers, backup, led, in_sync))
        await brokers.wait_until(lambda: brokers.replica(led, "t").leader_epoch > epoch)
        await brokers.stop(in_sync)
        await brokers.stop(led)
        await brokers.start(behind)
        assert await next_leader(brokers, led, in_sync) == -1
        await brokers.start(led, in_sync)
        await brokers.wait_for_isr("t", 3)
        await brokers.wait_until(lambda: last_offsets(brokers) == {2})


async def test_a_replica_in_sync_that_remembers_leads_after_zookeeper_went_back_and_the_leader_died(
    tmp_path: Path,
) -> None:
    async with replicated_cluster(tmp_path, **SETTINGS) as brokers:
        led, behind, in_sync = await create(brokers)
        await produce(brokers, b"a")
        backup = brokers.zookeeper.backup()
        await brokers.stop(behind)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, b"b")
        brokers.zookeeper.stop()
        await brokers.stop(led)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(brokers.start, behind)
            brokers.zookeeper.restore(backup)
        await brokers.wait_until(lambda: brokers.leader("t") == in_sync)
        await brokers.start(led)
        await brokers.wait_for_isr("t", 3)
        await brokers.wait_until(lambda: last_offsets(brokers) == {2})


@pytest.mark.long
@pytest.mark.parametrize("content", [None, b"garbage", b""])
async def test_a_state_that_somebody_removed_or_overwrote_is_written_again(
    tmp_path: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reign, "STATES_CHECK_INTERVAL_S", 0.05)
    async with replicated_cluster(tmp_path, **SETTINGS) as brokers, brokers.zookeeper.open() as client:
        led, first, behind = await create(brokers)
        await brokers.stop(behind)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, b"a")
        epoch = brokers.replica(led, "t").leader_epoch
        path = partition_state_path("t", 0)
        if content is None:
            await client.delete(path)
        else:
            await client.set(path, content)
        await brokers.wait_until(lambda: brokers.leader("t") == led and brokers.replica(led, "t").leader_epoch > epoch)
        found = PartitionState.decode("t", 0, (await client.get(path)).data)
        assert (found.leader, set(found.isr)) == (led, {led, first})
        await produce(brokers, b"b")
        await brokers.start(behind)
        await brokers.wait_for_isr("t", 3)
        await brokers.wait_until(lambda: last_offsets(brokers) == {2})


async def test_a_topic_that_comes_back_without_its_states_has_them_written_again(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, **SETTINGS) as brokers, brokers.zookeeper.open() as client:
        former, led, _ = await create(brokers)
        await brokers.stop(former)
        await brokers.wait_for_isr("t", 2)
        await produce(brokers, b"a")
        assert brokers.leader("t") == led
        topic = await client.get(topic_path("t"))
        await remove_tree(client, topic_path("t"))
        await brokers.wait_until(lambda: not brokers.replicas("t"))
        await brokers.start(former)
        await client.create(topic_path("t"), topic.data)
        await brokers.wait_for_isr("t", 3)
        assert brokers.leader("t") == led
        await brokers.wait_until(lambda: last_offsets(brokers) == {1})


async def test_a_replica_whose_disk_was_replaced_while_its_topic_was_missing_does_not_lead(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, **SETTINGS) as brokers, brokers.zookeeper.open() as client:
        led, *_ = await create(brokers)
        await produce(brokers, b"a")
        topic = await client.get(topic_path("t"))
        found = await client.get(partition_state_path("t", 0))
        await remove_tree(client, topic_path("t"))
        await brokers.wait_until(lambda: not brokers.replicas("t"))
        await brokers.stop(led)
        for log_dir in (str(led), f"{led}-second"):
            shutil.rmtree(tmp_path / log_dir)
        await brokers.start(led)
        parents = [CreateNode(path=path) for path in (partitions_path("t"), partition_path("t", 0))]
        await client.transaction(
            [
                CreateNode(path=topic_path("t"), data=topic.data),
                *parents,
                CreateNode(path=partition_state_path("t", 0), data=found.data),
            ]
        )
        await brokers.wait_for_isr("t", 3)
        await brokers.wait_until(lambda: last_offsets(brokers) == {1})
        assert brokers.leader("t") != led


async def test_an_epoch_is_raised_once_its_topic_is_known_again(tmp_path: Path) -> None:
    view, spent = view_of_t(tmp_path), SpentEpochs()
    topic, zookeeper = view.topic("t"), MemoryZooKeeper()
    assert topic is not None
    async with zookeeper.open() as client, trio.open_nursery() as nursery:
        made = TopicAssignment(topic="t", topic_id=topic.topic_id, partitions={0: (ONE, TWO)})
        await client.create(made.path, made.encode())
        written = await write_states(client, [StateChange(state=state(epoch=1), topic_id=topic.topic_id, version=None)])
        first = written[T]
        assert first is not None
        view.remove_topic("t", is_deleted=False)
        nursery.start_soon(raise_spent_epochs, client, view, spent)
        spent.note(T, LeaderEpoch(4))
        await trio.testing.wait_all_tasks_blocked()
        view.set_topic(topic)
        view.accept_states(view.asking([T]), {T: first})
        with trio.fail_after(60):
            await view.wait_until(lambda view: known(view).leader_epoch == 5)
        nursery.cancel_scope.cancel()
