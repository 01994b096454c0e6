"""ZooKeeper that is wrong, slow or away, and brokers that come back elsewhere: the cluster goes on with what it has."""

import json
from typing import Any

import pytest
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.discovery import from_zookeeper
from pipeline.errors import NetworkError, PipelineError
from pipeline.model import BROKER_IDS, BrokerId, HostPort, TopicPartition
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.scripted_broker import Partition, ScriptedCluster
from tests.unit.client.cluster.test_registrations import (
    CONFIG,
    DEADLINE_S,
    register,
    register_topic,
    until,
    watched,
)

T0 = TopicPartition("t", 0)
UNREADABLE = {
    "7": b"[]",
    "8": b"{",
    "9": b"\xff",
    "10": b"",
    "11": json.dumps({"host": None, "port": -1, "endpoints": ["SSL://h:1"]}).encode(),
    "12": json.dumps({"host": "h", "port": "x"}).encode(),
    "13": b'{"endpoints": [3]}',
}


async def test_registrations_that_cannot_be_read_hide_no_other(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1), MemoryZooKeeper().open() as znodes:
        for name, data in UNREADABLE.items():
            await znodes.create(f"{BROKER_IDS}/{name}", data)
        await znodes.create(f"{BROKER_IDS}/seqid", b"")
        await znodes.create(f"{BROKER_IDS}/{'9' * 5000}", b"")
        await register(znodes, scripted, 1)
        async with open_cluster(CONFIG, discover=from_zookeeper(znodes)) as cluster:
            with trio.fail_after(DEADLINE_S):
                await cluster.topic("t")


async def test_names_that_are_no_brokers_stop_no_watch(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1), watched(scripted) as (cluster, znodes):
        await znodes.create(f"{BROKER_IDS}/seqid", b"")
        await trio.testing.wait_all_tasks_blocked(0.05)
        await znodes.delete(f"{BROKER_IDS}/seqid")
        async with scripted.broker(2):
            await register(znodes, scripted, 2)
            await until(cluster, lambda: set(cluster.view.brokers) == {1, 2})


async def test_a_zookeeper_without_brokers_is_named_in_the_error() -> None:
    async with (
        MemoryZooKeeper().open() as znodes,
        open_cluster(CONFIG, discover=from_zookeeper(znodes)) as cluster,
    ):
        with pytest.raises(PipelineError, match="/brokers/ids"):
            await cluster.topic("t", timeout_s=2)
        await znodes.create(BROKER_IDS, b"")
        with pytest.raises(PipelineError, match="do brokers run, and is the chroot theirs"):
            await cluster.topic("t", timeout_s=2)


async def test_a_zookeeper_that_does_not_answer_costs_a_call_no_more_than_its_time() -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open() as znodes, open_cluster(CONFIG, discover=from_zookeeper(znodes)) as cluster:
        zookeeper.stop()
        with trio.fail_after(DEADLINE_S / 2), pytest.raises(PipelineError, match="ZooKeeper does not answer"):
            await cluster.topic("t", timeout_s=0.2)


async def test_without_zookeeper_brokers_that_come_back_are_asked_again(
    scripted: ScriptedCluster, jumping_clock: Any
) -> None:
    zookeeper = MemoryZooKeeper()
    async with zookeeper.open() as znodes, trio.open_nursery() as nursery:
        first_life = trio.CancelScope()
        await nursery.start(_serve, scripted, first_life)
        await register(znodes, scripted, 1)
        async with open_cluster(CONFIG, discover=from_zookeeper(znodes)) as cluster:
            await cluster.topic("t")
            first_life.cancel()
            zookeeper.stop()
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.start_soon(_serve_later, scripted)
            begun_at = trio.current_time()
            await cluster.refresh(timeout_s=60)
            assert trio.current_time() < begun_at + 20
        nursery.cancel_scope.cancel()


async def _serve(scripted: ScriptedCluster, scope: trio.CancelScope, *, task_status: Any) -> None:
    with scope:
        async with scripted.broker(1):
            task_status.started()
            await trio.sleep_forever()


async def _serve_later(scripted: ScriptedCluster) -> None:
    await trio.sleep(2)
    await _serve(scripted, trio.CancelScope(), task_status=trio.TASK_STATUS_IGNORED)


async def test_a_broker_that_comes_back_at_another_address_is_followed_though_the_old_one_hangs(
    scripted: ScriptedCluster,
) -> None:
    async with scripted.broker(1), watched(scripted) as (cluster, znodes), scripted.broker(2) as old:
        await register(znodes, scripted, 2)
        await until(cluster, lambda: set(cluster.view.brokers) == {1, 2})
        failed = trio.Event()

        async def ask() -> None:
            with pytest.raises(NetworkError):
                await cluster.request(BrokerId(2), MetadataRequest(topics=[]), timeout_s=600, lane="hung")
            failed.set()

        scripted.hold_metadata = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(DEADLINE_S):
                while not cluster.is_asked(old, "hung"):
                    await trio.sleep(0.001)
                scripted.addresses[BrokerId(2)] = new = HostPort("127.0.0.1", 1)
                path, data = f"{BROKER_IDS}/2", json.dumps({"host": new.host, "port": new.port}).encode()
                await znodes.delete(path)
                await znodes.create(path, data)  # the watch sees both at once
                await failed.wait()
            scripted.hold_metadata.set()
        await until(cluster, lambda: cluster.view.brokers[BrokerId(2)].address == new)


async def test_a_change_before_the_first_look_at_zookeeper_is_noticed(scripted: ScriptedCluster) -> None:
    """The view is fetched, then the topic grows and a broker registers, and only then the watches begin."""
    async with scripted.broker(1), scripted.broker(2) as second, MemoryZooKeeper().open() as znodes:
        await register(znodes, scripted, 1, 2)
        await register_topic(znodes, "t", 2)
        del scripted.addresses[BrokerId(2)]
        async with open_cluster(CONFIG, discover=from_zookeeper(znodes)) as cluster:
            await cluster.topic("t")
            assert set(cluster.view.brokers) == {1}
            scripted.addresses[BrokerId(2)] = second
            scripted.topics["t"][1] = Partition(BrokerId(2))
            await until(cluster, lambda: len(cluster.view.topics["t"].led_partitions) == 2)
            assert set(cluster.view.brokers) == {1, 2}


async def test_all_brokers_gone_from_zookeeper_leaves_the_known_ones_at_work(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1), watched(scripted) as (cluster, znodes):
        await znodes.delete(f"{BROKER_IDS}/1")
        await trio.testing.wait_all_tasks_blocked(0.05)
        with trio.fail_after(DEADLINE_S):
            await cluster.refresh()
            await cluster.request(BrokerId(1), MetadataRequest(topics=[]), timeout_s=DEADLINE_S)
