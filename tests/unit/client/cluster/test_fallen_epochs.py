"""A client whose brokers know only older leader epochs than it, because ZooKeeper was restored while all were down."""

from typing import Any

import pytest
import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster import cluster as cluster_module
from pipeline.client.cluster import fallen_epochs
from pipeline.client.cluster.fallen_epochs import FALLEN_AFTER_S, FallenEpochs
from pipeline.client.cluster.metadata import ClusterMetadata, merge
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from tests.support.scripted_broker import Partition, ScriptedCluster
from tests.unit.client.cluster.conftest import T0, response
from tests.unit.client.conftest import OpenCluster, OpenConsumer

FIRST, SECOND = HostPort("h", 9001), HostPort("h", 9002)
DEADLINE_S = 60
DEAD = BrokerId(7)


def noted(
    *told: Any,
) -> Any:
    """What is believed to have fallen after brokers told these epochs at these times; the client knows epoch 5."""
    epochs, view = FallenEpochs(), merge(ClusterMetadata(), response(1, 5))
    return [
        set(epochs.note(view, response(2, epoch), told_by, [FIRST, SECOND], now_s)) for told_by, epoch, now_s in told
    ]


def test_an_epoch_falls_once_all_brokers_have_told_so_for_a_while() -> None:
    later = FALLEN_AFTER_S
    assert noted((FIRST, 4, 0), (SECOND, 4, 1), (FIRST, 4, later - 1), (FIRST, 4, later)) == [set(), set(), set(), {T0}]
    assert noted((FIRST, 4, 0), (SECOND, 3, later)) == [set(), {T0}]


def test_a_broker_that_lags_alone_lets_no_epoch_fall() -> None:
    later = FALLEN_AFTER_S
    assert noted((FIRST, 4, 0), (FIRST, 4, later), (FIRST, 4, 2 * later)) == [set()] * 3
    assert noted((FIRST, 4, 0), (SECOND, 5, 1), (FIRST, 4, later), (SECOND, 4, later + 1)) == [set()] * 4


def test_a_leader_epoch_known_to_have_fallen_is_taken_from_the_response() -> None:
    view = merge(merge(ClusterMetadata(), response(1, 5)), response(2, 4), {T0})
    assert (view.leader_of(T0), view.leader_epoch_of(T0)) == (2, 4)
    assert merge(view, response(1, 3), {TopicPartition("t", 1)}).leader_epoch_of(T0) == 4


async def test_a_consumer_goes_on_in_an_epoch_that_fell(
    scripted: ScriptedCluster, connect: OpenCluster, consume: OpenConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallen_epochs, "FALLEN_AFTER_S", 0.1)
    scripted.partition(T0).epoch = 9
    scripted.partition(T0).append_values([b"before"])
    async with scripted.broker(1), scripted.broker(2), connect() as cluster, consume(cluster) as consumer:
        consumer.assign({T0: 0})
        with trio.fail_after(DEADLINE_S):
            assert (await anext(consumer.records())).value == b"before"
            assert cluster.view.leader_epoch_of(T0) == 9
            scripted.partition(T0).epoch, scripted.partition(T0).leader = 4, BrokerId(2)
            scripted.partition(T0).append_values([b"after"])
            scripted.notify()
            assert (await anext(consumer.records())).value == b"after"
            assert (await list_offsets(cluster, {T0: LATEST}, timeout_s=DEADLINE_S))[T0].offset == 2


@pytest.mark.parametrize("had_failed", [False, True])
async def test_a_broker_that_lags_for_ever_is_not_the_only_one_that_is_asked(
    scripted: ScriptedCluster, connect: OpenCluster, monkeypatch: pytest.MonkeyPatch, had_failed: bool
) -> None:
    """Broker 1 does not reach ZooKeeper; what it takes for the leader is dead. Broker 2 has been away once."""
    monkeypatch.setattr(cluster_module, "ASKED_AGAIN_AFTER_S", 0.1)
    scripted.lagging[BrokerId(1)] = {"t": {0: Partition(DEAD)}}
    scripted.partition(T0).leader, scripted.partition(T0).epoch = BrokerId(2), 1
    async with scripted.broker(1), connect() as cluster:
        if had_failed:
            async with scripted.broker(2):
                await cluster.refresh()
            for _ in range(3):
                await cluster.refresh(timeout_s=DEADLINE_S)
            assert scripted.addresses[BrokerId(2)] in cluster._failed_at
        async with scripted.broker(2):
            assert (await list_offsets(cluster, {T0: LATEST}, timeout_s=DEADLINE_S))[T0].offset == 0
            assert cluster.view.leader_of(T0) == BrokerId(2)
