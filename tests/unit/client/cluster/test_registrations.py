"""Discovery through ZooKeeper: brokers, topics and partitions are taken up when they are registered, not by age."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.cluster.discovery import from_zookeeper
from pipeline.errors import NetworkError
from pipeline.model import BROKER_IDS, BrokerId, TopicPartition
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from tests.support.brokers import replicated_cluster
from tests.support.scripted_broker import Partition, ScriptedCluster

T0 = TopicPartition("t", 0)
DEADLINE_S = 60
CONFIG = ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20)


async def until(cluster: Cluster, condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await cluster.wait_for_new_view()


async def register(znodes: MemoryClient, scripted: ScriptedCluster, *brokers: int) -> None:
    for broker in brokers:
        address = scripted.addresses[BrokerId(broker)]
        registration = {"endpoints": [f"PLAINTEXT://{address}"], "version": 5}
        await znodes.create(f"{BROKER_IDS}/{broker}", json.dumps(registration).encode())


async def register_topic(znodes: MemoryClient, topic: str, partitions: int) -> None:
    path, data = f"/brokers/topics/{topic}", json.dumps({"partitions": {n: [1] for n in range(partitions)}}).encode()
    if await znodes.exists(path) is None:
        await znodes.create(path, data)
    else:
        await znodes.set(path, data)


@asynccontextmanager
async def watched(scripted: ScriptedCluster) -> AsyncIterator[tuple[Cluster, MemoryClient]]:
    """A cluster that was found through ZooKeeper, where broker 1 and topic t are registered, and is watching."""
    async with MemoryZooKeeper().open() as znodes:
        await register(znodes, scripted, 1)
        await register_topic(znodes, "t", 1)
        async with open_cluster(CONFIG, discover=from_zookeeper(znodes)) as cluster:
            await cluster.topic("t")
            await trio.testing.wait_all_tasks_blocked(0.05)
            yield cluster, znodes


async def test_new_brokers_are_taken_up_and_the_connections_to_dead_ones_dropped(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1), watched(scripted) as (cluster, znodes), scripted.broker(2) as second:
        await register(znodes, scripted, 2)
        await until(cluster, lambda: set(cluster.view.brokers) == {1, 2})
        scripted.hold_metadata = trio.Event()  # broker 2 hangs with a request under way
        failed = trio.Event()

        async def ask() -> None:
            with pytest.raises(NetworkError, match="no longer registered"):
                await cluster.request(BrokerId(2), MetadataRequest(topics=[]), timeout_s=600, lane="hung")
            failed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(DEADLINE_S):
                while not cluster.is_asked(second, "hung"):
                    await trio.sleep(0.001)
                await znodes.delete(f"{BROKER_IDS}/2")
                await failed.wait()
            del scripted.addresses[BrokerId(2)]
            scripted.hold_metadata.set()
        await until(cluster, lambda: set(cluster.view.brokers) == {1})
        scripted.addresses[BrokerId(2)] = second
        await register(znodes, scripted, 2)
        await until(cluster, lambda: set(cluster.view.brokers) == {1, 2})


async def test_new_topics_and_partitions_are_taken_up(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1), watched(scripted) as (cluster, znodes):
        cluster.track(["new"])
        await until(cluster, lambda: "new" in cluster.view.errors)
        scripted.add_topic("new", [1])
        await register_topic(znodes, "new", 1)
        await until(cluster, lambda: "new" in cluster.view.topics)
        for topic in ("t", "new"):
            await register_topic(znodes, topic, 2)  # brokers hear of it a moment later
            scripted.topics[topic][1] = Partition(BrokerId(1))
            await until(cluster, lambda topic=topic: len(cluster.view.topics[topic].partitions) == 2)  # type: ignore[misc]
        del scripted.topics["t"]
        await znodes.delete("/brokers/topics/t")
        await until(cluster, lambda: "t" not in cluster.view.topics)


async def test_what_concerns_no_topic_of_the_program_causes_no_refresh(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1), watched(scripted) as (_, znodes):
        before = scripted.requests["MetadataRequest"]
        await register_topic(znodes, "foreign", 1)
        await register_topic(znodes, "foreign", 2)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert scripted.requests["MetadataRequest"] == before


async def test_registrations_that_cannot_be_read_stop_nothing(scripted: ScriptedCluster) -> None:
    async with scripted.broker(1), watched(scripted) as (cluster, znodes):
        await znodes.create(f"{BROKER_IDS}/7", b"[]")
        await znodes.set("/brokers/topics/t", b"{")
        await register_topic(znodes, "t", 1)
        async with scripted.broker(2):
            await register(znodes, scripted, 2)
            await until(cluster, lambda: set(cluster.view.brokers) == {1, 2})


async def test_the_four_events_of_a_real_cluster(tmp_path: Path) -> None:
    zookeeper = MemoryZooKeeper()
    async with (
        replicated_cluster(tmp_path, 1, zookeeper=zookeeper) as brokers,
        zookeeper.open() as znodes,
        open_cluster(CONFIG, discover=from_zookeeper(znodes)) as cluster,
    ):
        cluster.track(["t"])
        await until(cluster, lambda: "t" in cluster.view.errors)
        admin: Any = brokers.cluster
        await create_topics(admin, [NewTopic(name="t", partitions=1)])
        await until(cluster, lambda: cluster.view.leader_of(T0) is not None)
        await create_partitions(admin, {"t": 3})
        await until(cluster, lambda: len(cluster.view.topics["t"].led_partitions) == 3)
        await brokers.start(2)
        await until(cluster, lambda: set(cluster.view.brokers) == {1, 2})
        await brokers.stop(2)
        await until(cluster, lambda: set(cluster.view.brokers) == {1})
        await delete_topics(admin, ["t"])
        await until(cluster, lambda: "t" not in cluster.view.topics)
