"""Strays as operators see and remove them."""

import uuid
from pathlib import Path

import pytest

from pipeline.cli.cluster.description import describe_strays
from pipeline.cli.cluster.strays import refuse_living
from pipeline.client.admin.brokers import describe_log_dirs
from pipeline.coordination.znodes import ClusterId, TopicAssignment, encode_uuid, topic_path
from pipeline.errors import ConfigurationError, CoordinationError
from pipeline.model import BrokerId, TopicPartition
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import replicated_cluster
from tests.support.controllers import make_topic

TOPIC_ID = uuid.UUID(int=7)


async def test_a_topic_that_exists_is_no_stray() -> None:
    async with MemoryZooKeeper().open() as client:
        with pytest.raises(ConfigurationError, match="knows no cluster"):
            await refuse_living(client, TOPIC_ID)
        await client.create(ClusterId.PATH, ClusterId(id="c").encode())
        await refuse_living(client, TOPIC_ID)
        topic = TopicAssignment(topic="t", topic_id=TOPIC_ID, partitions={0: (BrokerId(1),)})
        await client.create(topic.path, topic.encode())
        await refuse_living(client, uuid.UUID(int=8))
        with pytest.raises(ConfigurationError, match="is topic t, which exists"):
            await refuse_living(client, TOPIC_ID)
        await client.set(topic.path, b"garbage")
        with pytest.raises(CoordinationError, match="cannot be read"):
            await refuse_living(client, TOPIC_ID)


async def test_brokers_tell_of_their_strays(tmp_path: Path) -> None:
    async with replicated_cluster(tmp_path, 2) as brokers, brokers.zookeeper.open() as client:
        await make_topic(client, "t", [(1,), (2,)])
        await brokers.wait_until(lambda: bool(brokers.replicas("t", 0) and brokers.replicas("t", 1)))
        topic_id = TopicAssignment.decode("t", (await client.get(topic_path("t"))).data).id
        state = [f"partitions/{index}{below}" for index in (0, 1) for below in ("/state", "")]
        for below in (*state, "partitions"):
            await client.delete(f"{topic_path('t')}/{below}")
        await client.delete(topic_path("t"))
        await brokers.cluster.refresh()
        keepers = [handle.strays for handle in brokers.handles.values()]
        await brokers.wait_until(lambda: all(keeper.strays for keeper in keepers))
        dirs = {
            BrokerId(broker): await describe_log_dirs(brokers.cluster, BrokerId(broker), timeout_s=60)
            for broker in (1, 2)
        }
        told = describe_strays(dirs)
        assert [(stray["broker"], stray["topic"], stray["partition"]) for stray in told] == [(1, "t", 0), (2, "t", 1)]
        assert {stray["topic_id"] for stray in told} == {encode_uuid(topic_id)}
        assert all("no record of its deletion" in stray["reason"] for stray in told)
        assert {str(found.path.absolute()) for keeper in keepers for found in keeper.strays} == {
            stray["path"] for stray in told
        }
        assert TopicPartition("t", 0) not in brokers.handles[1].replicas.partitions
