"""A real ZooKeeper that loses topics while a broker runs: restored from an older backup, or wiped."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.replication.observer import NoObserver
from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.znodes import topic_path
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from tests.support.brokers import clock
from tests.support.znodes import remove_tree
from tests.support.zookeeper_backups import back_up, restore

pytestmark = pytest.mark.long

DEADLINE_S = 180
CLICKS = TopicPartition("clicks", 0)


@dataclass
class Site:
    """A ZooKeeper and a broker."""

    zookeeper: ZooKeeperProcess
    handle: BrokerHandle
    cluster: Cluster
    own: CoordinationClient

    async def back_up(self) -> Path:
        """A copy of ZooKeeper's data as of now."""
        return await back_up(self.zookeeper)

    async def restore(self, backup: Path) -> None:
        """Have ZooKeeper go on from this copy."""
        await restore(self.zookeeper, backup)

    async def produce(self) -> None:
        async with open_producer(self.cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            await producer.send("clicks", b"a")


@asynccontextmanager
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    config = BrokerConfig.from_settings(
        {
            "broker.id": 1,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "logs"),
            "zookeeper.connect": "given",
            "log.segment.delete.delay.ms": 0,
        }
    )
    with unwrapped_errors():
        async with (
            ZooKeeperProcess(tmp_path / "zookeeper") as process,
            open_zookeeper(f"{process.connect}/site") as client,
            trio.open_nursery() as nursery,
        ):

            async def run(task_status: trio.TaskStatus[BrokerHandle]) -> None:
                await run_broker(
                    config,
                    client,
                    clock=clock,
                    rng=Random(1),
                    observer=NoObserver(),
                    metrics=CollectorRegistry(),
                    task_status=task_status,
                )

            handle: BrokerHandle = await nursery.start(run)
            async with open_cluster(ClientConfig(bootstrap=(handle.address,))) as cluster:
                yield Site(process, handle, cluster, client)
            nursery.cancel_scope.cancel()


async def wait_for(condition: Callable[[], object]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.01)


async def make_clicks(running: Site) -> Path:
    """A topic with a record; returns the directory of its log."""
    await create_topics(running.cluster, [NewTopic(name="clicks", partitions=1, replication_factor=1)])
    await running.produce()
    return running.handle.replicas.partitions[CLICKS].log.directory


async def test_a_topic_that_a_backup_lacks_is_kept_and_served_again(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        older = await running.back_up()
        directory = await make_clicks(running)
        newer = await running.back_up()
        await running.restore(older)
        await wait_for(lambda: running.handle.strays.strays)
        (stray,) = running.handle.strays.strays
        assert (stray.path, stray.name.topic_partition) == (directory, CLICKS)
        assert sum(file.stat().st_size for file in directory.glob("*.log")) > 0
        await running.restore(newer)
        await wait_for(lambda: not running.handle.strays.strays)
        await wait_for(lambda: CLICKS in running.handle.replicas.partitions)
        assert running.handle.replicas.partitions[CLICKS].log.log_end_offset == 1
        await wait_for(lambda: running.handle.replicas.partitions[CLICKS].is_leader)
        await running.produce()
        assert running.handle.replicas.partitions[CLICKS].log.log_end_offset == 2


async def test_a_topic_whose_znode_is_removed_by_hand_is_kept(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        directory = await make_clicks(running)
        await remove_tree(running.own, topic_path("clicks"))
        await wait_for(lambda: running.handle.strays.strays)
        assert [stray.path for stray in running.handle.strays.strays] == [directory]
        await remove_tree(running.own, "/")
        await running.handle.strays.look()
        assert [stray.path for stray in running.handle.strays.strays] == [directory]
        assert running.handle.strays.strays[0].path.exists()
