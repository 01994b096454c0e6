"""Znodes of topics that ZooKeeper lost: what brokers report of them, and which settings count meanwhile."""

import pytest
import trio

from pipeline.coordination.znodes import topic_config_path, topic_path
from pipeline.model import TopicPartition
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest
from tests.support.broker_in_process import TIMEOUT_S, Broker, Start

CONFIG = topic_config_path("t")


async def until_lost(broker: Broker, *paths: str) -> None:
    with trio.fail_after(TIMEOUT_S):
        while tuple((await broker.ask(DescribeClusterRequest())).lost_znodes) != paths:
            await trio.sleep(0.005)


@pytest.mark.parametrize(("path", "data"), [(CONFIG, None), (CONFIG, b"{"), (topic_path("t"), b"garbage")])
async def test_znodes_that_are_missing_or_unreadable_are_reported(start: Start, path: str, data: bytes | None) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.create("other")
        former = (await broker.zookeeper.get(path)).data
        await until_lost(broker)
        if data is None:
            await broker.zookeeper.delete(path)
        else:
            await broker.zookeeper.set(path, data)
        await until_lost(broker, path)
    async with start() as broker:
        await until_lost(broker, path)
        if data is None:
            await broker.zookeeper.create(path, former)
        else:
            await broker.zookeeper.set(path, former)
        await until_lost(broker)


async def test_a_deleted_topic_leaves_no_lost_znode(start: Start) -> None:
    async with start() as broker:
        await broker.create("t")
        await broker.zookeeper.delete(CONFIG)
        await until_lost(broker, CONFIG)
        await broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=30_000))
        await until_lost(broker)


async def test_settings_that_zookeeper_lost_allow_no_unclean_election(start: Start) -> None:
    async with start() as broker:
        await broker.create("t", unclean_leader_election_enable="false")
        await broker.zookeeper.delete(CONFIG)
    async with start(unclean_leader_election_enable=True) as broker:
        assert not broker.handle.replicas.partitions[TopicPartition("t", 0)].settings.unclean_leader_election
