"""A real ZooKeeper that goes back to older states of partitions while three brokers run."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.model import TopicPartition
from tests.support.brokers import Brokers, clock, replicated_cluster
from tests.support.zookeeper_backups import back_up, restore

pytestmark = pytest.mark.long

PARTITIONS = 6
DEADLINE_S = 120
LOST_TRANSACTIONS = 1000
"""More than a broker makes in the seconds after its start."""
SETTINGS: dict[str, Any] = {
    "replica_lag_time_max_ms": 5000,
    "replica_fetch_wait_max_ms": 50,
    "min_insync_replicas": 2,
    "auto_leader_rebalance_enable": "false",
}


@dataclass(frozen=True)
class Site:
    """Below the address of a ZooKeeper."""

    process: ZooKeeperProcess

    def open(self) -> AbstractAsyncContextManager[ZooKeeper]:
        return open_zookeeper(f"{self.process.connect}/site")


async def produce(cluster: Cluster) -> None:
    """A record to each partition, with acks=all."""
    with trio.fail_after(DEADLINE_S):
        async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            for partition in range(PARTITIONS):
                await producer.send("t", b"a", partition=partition)


async def in_sync(brokers: Brokers, size: int) -> None:
    for partition in range(PARTITIONS):
        await brokers.wait_for_isr("t", size, partition)


def ends(brokers: Brokers) -> set[int]:
    return {replica.log.log_end_offset for index in range(PARTITIONS) for replica in brokers.replicas("t", index)}


def epochs(brokers: Brokers) -> dict[int, int]:
    """The newest leader epoch of each partition."""
    return {index: max(found.leader_epoch for found in brokers.replicas("t", index)) for index in range(PARTITIONS)}


async def test_running_brokers_follow_the_older_states_and_lose_nothing(tmp_path: Path) -> None:
    async with (
        ZooKeeperProcess(tmp_path / "zookeeper") as process,
        replicated_cluster(tmp_path / "brokers", zookeeper=Site(process), **SETTINGS) as brokers,
    ):
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=PARTITIONS, replication_factor=3)])
        await in_sync(brokers, 3)
        await produce(brokers.cluster)
        backup = await back_up(process)
        await brokers.stop(1)
        await in_sync(brokers, 2)
        await produce(brokers.cluster)
        await brokers.start(1)
        await in_sync(brokers, 3)
        await produce(brokers.cluster)
        used = epochs(brokers)
        await restore(process, backup)

        def is_led_anew(index: int) -> bool:
            return any(r.is_leader and r.leader_epoch > used[index] for r in brokers.replicas("t", index))

        await brokers.wait_until(lambda: all(map(is_led_anew, range(PARTITIONS))), DEADLINE_S)
        await produce(brokers.cluster)
        await in_sync(brokers, 3)
        await brokers.wait_until(lambda: ends(brokers) == {4}, DEADLINE_S)
        await brokers.stop(2)
        await in_sync(brokers, 2)
        await produce(brokers.cluster)
        await brokers.start(2)
        await in_sync(brokers, 3)
        await brokers.wait_until(lambda: ends(brokers) == {5}, DEADLINE_S)
        assert all(
            brokers.handles[broker].replicas.partitions[TopicPartition("t", index)].log.log_start_offset == 0
            for broker in (1, 2, 3)
            for index in range(PARTITIONS)
        )


async def test_brokers_that_saw_more_join_before_a_restarted_broker_is_controller_alone(tmp_path: Path) -> None:
    """ZooKeeper refuses the sessions of those that saw newer transactions, and not that of a broker that saw none."""
    async with (
        ZooKeeperProcess(tmp_path / "zookeeper") as process,
        replicated_cluster(tmp_path / "brokers", zookeeper=Site(process), **SETTINGS) as brokers,
    ):
        await create_topics(brokers.cluster, [NewTopic(name="t", partitions=PARTITIONS, replication_factor=3)])
        await in_sync(brokers, 3)
        await produce(brokers.cluster)
        backup = await back_up(process)
        async with open_zookeeper(f"{process.connect}/foreign") as client:
            await client.create("/a")
            for _ in range(LOST_TRANSACTIONS):
                await client.set("/a", b"")
        await brokers.stop(1)
        await in_sync(brokers, 2)
        await produce(brokers.cluster)
        used = epochs(brokers)
        await restore(process, backup, foreign_writes=0)
        await brokers.start(1)
        await brokers.wait_until(
            lambda: all(epoch > used[index] for index, epoch in epochs(brokers).items()), DEADLINE_S
        )
        await in_sync(brokers, 3)
        await brokers.wait_until(lambda: ends(brokers) == {2}, DEADLINE_S)
        await produce(brokers.cluster)
        await brokers.wait_until(lambda: ends(brokers) == {3}, DEADLINE_S)
