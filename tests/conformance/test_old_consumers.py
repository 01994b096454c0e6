"""A group by ZooKeeper with members of ours and of Kafka 0.8 (`kafka.consumer.ConsumerConnector`).

Kafka's old consumer fetches by versions of the protocol that brokers do not have any more. So it takes part in all but
the reading: it registers, claims its share, and gives it up again. What is published while it owns a partition waits
for the member of ours that claims the partition next.
"""

import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, OffsetReset, ProducerConfig
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.connector.connector import ConsumerConnector, open_consumer_connector
from pipeline.client.connector.connector_znodes import ConsumerGroupPaths, GroupStream
from pipeline.client.connector.shares import owners_by_range
from pipeline.client.producer.producer import open_producer
from pipeline.client.streams.stream import MessageStream
from pipeline.coordination.zookeeper import ZooKeeper, open_zookeeper
from pipeline.model import TopicPartition
from pipeline.settings import parse_addresses
from pipeline.testing.local_cluster import LocalCluster
from tests.support.brokers import clock
from tests.support.jars import Artifact, fetch_jars, java, pyspark_jars
from tests.support.kafka import SHORT_LIVED

OLD_KAFKA = Artifact("org.apache.kafka", "kafka_2.11", "0.8.2.2")
OLD_CONSUMER = Path(__file__).parents[1] / "support" / "OldConsumer.java"
GROUP, TOPIC, PARTITIONS = "mixed", "t", 7
PATHS = ConsumerGroupPaths(GROUP)
DEADLINE_S = 120

pytestmark = pytest.mark.long


@dataclass(eq=False)
class Site:
    local: LocalCluster
    cluster: Cluster
    zookeeper: ZooKeeper
    handed: Counter[tuple[TopicPartition, int]] = field(default_factory=Counter)
    published: int = 0

    async def publish(self, count: int) -> None:
        async with open_producer(self.cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            for number in range(count):
                await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        self.published += count

    @asynccontextmanager
    async def member(self, name: str, streams: int) -> AsyncIterator[ConsumerConnector]:
        """A member of ours that reads."""
        config = ConnectorConfig(
            group_id=GROUP, consumer_id=name, auto_offset_reset=OffsetReset.EARLIEST, rebalance_backoff_ms=500
        )
        async with (
            trio.open_nursery() as nursery,
            open_consumer_connector(
                self.cluster, self.local.zookeeper, config, clock=clock, rng=Random(1)
            ) as connector,
        ):
            for stream in (await connector.create_message_streams({TOPIC: streams}))[TOPIC]:
                nursery.start_soon(self._read, stream)
            yield connector

    async def _read(self, stream: MessageStream) -> None:
        async for record in stream:
            self.handed[record.topic_partition, record.offset] += 1

    async def owners(self) -> dict[int, str]:
        found = {}
        for partition in range(PARTITIONS):
            value = await self.zookeeper.get_or_none(PATHS.owner(TopicPartition(TOPIC, partition)))
            if value is not None:
                found[partition] = value.data.decode()
        return found

    async def until_shared_by_range(self, **streams: int) -> None:
        """Wait until the owners are those of Kafka's range, with so many streams of each member."""
        members = [GroupStream(f"{GROUP}_{name}", number) for name in streams for number in range(streams[name])]
        wanted = {number: str(owner) for number, owner in owners_by_range(range(PARTITIONS), members).items()}
        await until(self.owners, wanted)

    async def until_all_is_read(self) -> None:
        with trio.fail_after(DEADLINE_S):
            while len(self.handed) < self.published:
                await trio.sleep(0.05)
        assert set(self.handed.values()) == {1}


async def until(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    found: object = None
    with trio.move_on_after(DEADLINE_S):
        while (found := await ask()) != wanted:
            await trio.sleep(0.1)
    assert found == wanted


@contextmanager
def old_consumer(zookeeper: str, name: str, *subscription: str) -> Iterator[subprocess.Popen[bytes]]:
    """A member of Kafka 0.8. It leaves when its standard input is closed, and is killed at the end of the block."""
    compiler = [str(jar) for jar in pyspark_jars().glob("*.jar") if jar.name.startswith(("janino", "commons-compiler"))]
    path = ":".join([f"{fetch_jars(OLD_KAFKA)}/*", *compiler])
    command = [
        java(),
        *SHORT_LIVED,
        "-cp",
        path,
        "org.codehaus.janino.SimpleCompiler",
        str(OLD_CONSUMER),
        "OldConsumer",
    ]
    process = subprocess.Popen([*command, zookeeper, GROUP, name, *subscription], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def leave(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    assert await trio.to_thread.run_sync(process.wait, DEADLINE_S) == 0


@asynccontextmanager
async def running_site(directory: Path) -> AsyncIterator[Site]:
    with LocalCluster(directory) as local:
        async with (
            open_cluster(ClientConfig(bootstrap=parse_addresses(local.bootstrap))) as cluster,
            open_zookeeper(local.zookeeper) as zookeeper,
        ):
            await create_topics(cluster, [NewTopic(name=TOPIC, partitions=PARTITIONS)])
            yield Site(local, cluster, zookeeper)


async def test_members_of_kafka_0_8_and_ours_share_the_partitions_and_hand_them_over(tmp_path: Path) -> None:
    async with running_site(tmp_path / "cluster") as site:
        await site.publish(70)
        async with site.member("m", 2):
            await site.until_all_is_read()
            with old_consumer(site.local.zookeeper, "a", "topic", TOPIC, "2") as first:
                await site.until_shared_by_range(a=2, m=2)
                await site.publish(70)
                with old_consumer(site.local.zookeeper, "z", "filter", "t.*", "1") as second:
                    await site.until_shared_by_range(a=2, m=2, z=1)
                    async with site.member("n", 1):
                        await site.until_shared_by_range(a=2, m=2, n=1, z=1)
                        second.kill()
                        await site.until_shared_by_range(a=2, m=2, n=1)
                    await site.until_shared_by_range(a=2, m=2)
                await leave(first)
            await site.until_all_is_read()
            assert {owner[:-2] for owner in (await site.owners()).values()} == {f"{GROUP}_m"}
            with old_consumer(site.local.zookeeper, "b", "topic", TOPIC, "9"):  # more streams than partitions
                await site.until_shared_by_range(b=9, m=2)
                await site.publish(70)
            await site.until_all_is_read()


async def test_a_member_of_ours_joins_a_group_of_kafka_0_8(tmp_path: Path) -> None:
    async with running_site(tmp_path / "cluster") as site:
        with old_consumer(site.local.zookeeper, "m", "filter", "t|u", "1") as old:
            await site.until_shared_by_range(m=1)
            async with site.member("a", 3), site.member("z", 3):
                await site.until_shared_by_range(a=3, m=1, z=3)
                await site.publish(70)
                await leave(old)
                await site.until_all_is_read()
