"""A replica that lost its tail, and the controller: whichever writes first, no replica that has more leaves the ISR."""

from collections.abc import Collection, Iterable, Set
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.broker.controller.reign import Reign
from pipeline.broker.replicas.lost_replicas import LostReplicas
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.coordination.znodes import BrokerRegistration, broker_path, topic_path
from pipeline.model import BrokerId, TopicPartition
from tests.support.brokers import Brokers, replicated_cluster
from tests.support.lost_tails import lose_power
from tests.support.strays import produce_records
from tests.support.znodes import remove_tree

RECORDS = 20
T = TopicPartition("t", 0)
DEADLINE_S = 60


def is_announced(brokers: Brokers, loser: BrokerId) -> bool:
    """True if the controllers that read ZooKeeper now are told not to elect this broker."""
    found = brokers.zookeeper.znodes.by_path.get(broker_path(loser))
    return found is not None and "t" in BrokerRegistration.decode(loser, found.data).offline_replicas


async def lose_leader(brokers: Brokers, directory: Path) -> tuple[BrokerId, BrokerId, Any]:
    """Stop all brokers, and take the tail of the leader. Return it, the other replica, and a backup of ZooKeeper."""
    await create_topics(brokers.cluster, [NewTopic(name="t", partitions=1, replication_factor=2)])
    await brokers.wait_for_isr("t", 2)
    await produce_records(brokers, RECORDS)
    await brokers.wait_until(lambda: [found.log.log_end_offset for found in brokers.replicas("t")] == [RECORDS] * 2)
    backup, loser = brokers.zookeeper.backup(), brokers.leader("t")
    assert loser is not None
    await brokers.stop(1, 2)
    lose_power(directory / str(loser))
    return loser, BrokerId(3 - loser), backup


@pytest.mark.parametrize("is_controller_first", [False, True])
async def test_the_other_replica_stays_in_sync_whether_the_controller_or_the_loser_writes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_controller_first: bool
) -> None:
    """ZooKeeper goes back before this broker, the controller, has read its own registration with the lost replica."""
    has_left, has_looked = trio.Event(), trio.Event()
    is_restored = is_started = False
    plain_leave, plain_act = LostReplicas.leave, Reign._act

    async def leave(self: LostReplicas, names: Iterable[TopicPartition]) -> None:
        names = list(names)
        is_due = is_restored and T in names
        if is_due and is_controller_first:
            with trio.fail_after(DEADLINE_S):
                await has_looked.wait()
        await plain_leave(self, names)
        if is_due:
            has_left.set()

    async def act(self: Reign, event: Any, names: Any = None) -> Any:
        is_due = is_restored and (names is None or "t" in names) and self.view.partition(T) is not None
        if is_due and not is_controller_first:
            with trio.fail_after(DEADLINE_S):
                await has_left.wait()
        acted = await plain_act(self, event, names)
        if is_due:
            has_looked.set()
        return acted

    async with replicated_cluster(tmp_path, 2) as brokers, brokers.zookeeper.open() as client:
        loser, other, backup = await lose_leader(brokers, tmp_path)
        await remove_tree(client, topic_path("t"))

        def go_back(_client: Any, _path: str) -> None:
            nonlocal is_restored
            if is_started and not is_restored and is_announced(brokers, loser):
                is_restored = True
                brokers.zookeeper.restore(backup)

        monkeypatch.setattr(LostReplicas, "leave", leave)
        monkeypatch.setattr(Reign, "_act", act)
        brokers.zookeeper.before_request = go_back
        await brokers.start(loser)
        is_started = True
        with trio.fail_after(DEADLINE_S):
            while not is_restored:
                await client.exists("/")
        await brokers.wait_until(lambda: has_left.is_set() and has_looked.is_set())
        await brokers.wait_until(lambda: len(brokers.replicas("t")) == 1)
        assert not brokers.replica(loser, "t").is_leader
        assert brokers.replica(loser, "t").isr == (other,)
        await brokers.start(other)
        await brokers.wait_until(
            lambda: [found.log.log_end_offset for found in brokers.replicas("t")] == [RECORDS] * 2, DEADLINE_S
        )


async def test_a_broker_names_what_it_lost_from_its_registration_until_it_has_left_the_isr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registrations: list[Collection[str]] = []
    unable: list[Set[TopicPartition]] = []
    plain_leave = LostReplicas.leave

    async def leave(self: LostReplicas, names: Iterable[TopicPartition]) -> None:
        names = list(names)
        unable.extend([self.find_unable()] if T in names else [])
        await plain_leave(self, names)
        unable.extend([self.find_unable()] if T in names else [])

    async with replicated_cluster(tmp_path, 2) as brokers, brokers.zookeeper.open() as client:
        loser, other, backup = await lose_leader(brokers, tmp_path)
        await remove_tree(client, topic_path("t"))

        def note(_client: Any, _path: str) -> None:
            found = brokers.zookeeper.znodes.by_path.get(broker_path(loser))
            if found is not None:
                registrations.append(BrokerRegistration.decode(loser, found.data).offline_replicas)

        brokers.zookeeper.before_request = note
        await brokers.start(loser)
        assert registrations == [{"t": (0,)}] * len(registrations) != []
        brokers.zookeeper.before_request = None
        monkeypatch.setattr(LostReplicas, "leave", leave)
        brokers.zookeeper.restore(backup)
        await brokers.wait_until(lambda: len(brokers.replicas("t")) == 1)
        assert unable[:2] == [{T}, set()]
        await brokers.wait_until(lambda: not is_announced(brokers, loser), DEADLINE_S)
        assert brokers.replica(loser, "t").isr == (other,)
