"""Topics and partitions that appear while a group runs are taken up by themselves, however old metadata may be."""

from contextlib import AsyncExitStack
from pathlib import Path

import trio

from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.cluster.discovery import from_zookeeper
from pipeline.client.streams.topic_filter import WhiteList
from pipeline.model import TopicPartition
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import replicated_cluster
from tests.unit.client.group.conftest import SETTINGS, Reading, eventually, open_member, publish


async def test_a_topic_that_is_made_after_its_streams_is_taken_up(cluster: Cluster) -> None:
    async with open_cluster(cluster.config) as other, trio.open_nursery() as nursery, open_member(other) as group:
        reading = Reading(nursery)
        reading.read(*(await group.create_message_streams({"late": 1}))["late"])
        await eventually(group._member.holds)
        await publish(cluster, "late", 2, range(10))
        await eventually(lambda: sorted(reading.values) == list(range(10)))


async def test_a_static_leader_that_comes_back_looks_after_the_topics_of_the_group(cluster: Cluster) -> None:
    await publish(cluster, "t", 1, range(5))
    for number, partitions in enumerate((1, 3)):
        async with open_member(cluster, group_instance_id="a", session_timeout_ms=30_000) as group:
            await group.create_message_streams({"t": 1})
            await eventually(lambda group=group: len(group.assignment) == 1)  # type: ignore[misc]
            assert group._member.is_leader
            if number:
                await create_partitions(cluster, {"t": partitions})
                await cluster.refresh()
                await eventually(lambda group=group: len(group.assignment) == 3)  # type: ignore[misc]


async def test_a_filter_takes_up_topics_as_soon_as_zookeeper_has_them(tmp_path: Path) -> None:
    """The clients' metadata are young for five minutes, and the leader of the group does not watch ZooKeeper."""
    zookeeper = MemoryZooKeeper()
    async with (
        replicated_cluster(tmp_path, 2, zookeeper=zookeeper, **SETTINGS) as brokers,
        trio.open_nursery() as nursery,
        AsyncExitStack() as stack,
    ):
        admin = brokers.cluster
        await create_topics(admin, [NewTopic(name="log-a", partitions=2, replication_factor=1)])
        reading = Reading(nursery)
        znodes = await stack.enter_async_context(zookeeper.open())
        config = ClientConfig(bootstrap=tuple(await brokers.addresses()))
        members = []
        for discover in (None, from_zookeeper(znodes)):
            client = await stack.enter_async_context(open_cluster(config, discover=discover))
            members.append(await stack.enter_async_context(open_member(client)))
            reading.read(*await members[-1].create_message_streams_by_filter(WhiteList("log-.*")))
        await eventually(lambda: [len(member.assignment) for member in members] == [1, 1])
        await publish(admin, "log-b", 2, range(10))
        with trio.fail_after(60):
            await eventually(lambda: sorted(reading.values) == list(range(10)))
        await delete_topics(admin, ["log-b"])
        left = {TopicPartition("log-a", number) for number in range(2)}
        await eventually(lambda: members[0].assignment | members[1].assignment == left)
