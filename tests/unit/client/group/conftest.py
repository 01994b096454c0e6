"""A cluster of one broker in this process, members of its groups, and readers of their streams."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.group.config import GroupConfig
from pipeline.client.group.group_consumer import GroupConsumer, open_group_consumer
from pipeline.client.producer.producer import open_producer
from pipeline.client.streams.stream import MessageStream
from pipeline.model import TopicPartition
from tests.support.brokers import clock, serving_cluster

DEADLINE_S = 60
SETTINGS: dict[str, Any] = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
QUICK: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": 50,
    "session_timeout_ms": 10_000,
    "auto_commit_interval_ms": 50,
    "max_wait_ms": 20,
}
OpenMember = Callable[..., AbstractAsyncContextManager[GroupConsumer]]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with serving_cluster(tmp_path, **SETTINGS) as cluster:
        yield cluster


@asynccontextmanager
async def open_member(cluster: Cluster, **settings: Any) -> AsyncIterator[GroupConsumer]:
    listener = settings.pop("listener", None)
    config = GroupConfig(**{"group_id": "g", **QUICK, **settings})
    async with open_group_consumer(cluster, config, rng=Random(1), listener=listener) as group:
        yield group


async def publish(cluster: Cluster, topic: str, partitions: int, values: range) -> None:
    """Numbers by turns to the partitions of a topic, which is made if it is missing."""
    await create_topics(cluster, [NewTopic(name=topic, partitions=partitions)], exist_ok=True)
    async with open_producer(cluster, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
        for value in values:
            await producer.send(topic, b"%d" % value, partition=value % partitions)


class Reading:
    """Tasks that read streams, and what they have read."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.values: list[int] = []
        self.by_partition: dict[TopicPartition, list[int]] = {}

    def read(self, *streams: MessageStream) -> None:
        for stream in streams:
            self._nursery.start_soon(self._read, stream)

    async def _read(self, stream: MessageStream) -> None:
        async for record in stream:
            self.values.append(int(record.value or b""))
            self.by_partition.setdefault(record.topic_partition, []).append(record.offset)


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for a state. Raises TooSlowError."""
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.01)
