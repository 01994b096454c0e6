"""A broker in this process and a ZooKeeper in memory, with members of a group."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_partitions, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.connector.connector import ConsumerConnector, open_consumer_connector
from pipeline.client.consumer.record import ConsumerRecord
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.client.streams.stream import MessageStream
from pipeline.model import TopicPartition
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from tests.support.brokers import clock, serving_cluster

DEADLINE_S = 60
GROUP = "g"


@dataclass(eq=False)
class Member:
    """A member of the group, and what its readers were handed."""

    connector: ConsumerConnector
    client: MemoryClient
    nursery: trio.Nursery
    handed: list[ConsumerRecord] = field(default_factory=list)
    gate: trio.Event | None = None
    """If set, a reader waits for it before it asks for another record."""

    def read(self, *streams: MessageStream) -> None:
        for stream in streams:
            self.nursery.start_soon(self._read, stream)

    async def _read(self, stream: MessageStream) -> None:
        async for record in stream:
            self.handed.append(record)
            if self.gate is not None:
                await self.gate.wait()

    @property
    def offsets(self) -> dict[TopicPartition, list[int]]:
        found: dict[TopicPartition, list[int]] = {}
        for record in self.handed:
            found.setdefault(record.topic_partition, []).append(record.offset)
        return found


@dataclass(eq=False)
class Site:
    cluster: Cluster
    zookeeper: MemoryZooKeeper
    producer: Producer
    members: list[Member] = field(default_factory=list)
    tries: Counter[MemoryClient] = field(default_factory=Counter)
    """How often each client has looked at owners of partitions."""

    def note(self, client: MemoryClient, path: str) -> None:
        self.tries[client] += f"/consumers/{GROUP}/owners/" in path

    async def create(self, topic: str, partitions: int) -> None:
        await create_topics(self.cluster, [NewTopic(name=topic, partitions=partitions)], timeout_s=DEADLINE_S)

    async def grow(self, topic: str, partitions: int) -> None:
        await create_partitions(self.cluster, {topic: partitions}, timeout_s=DEADLINE_S)

    async def produce(self, topic: str, records: int, partitions: int = 1) -> None:
        for number in range(records):
            await self.producer.send(topic, b"%d" % number, partition=number % partitions)
        await self.producer.flush()

    @asynccontextmanager
    async def member(self, session_timeout_ms: int = 60_000, **settings: Any) -> AsyncIterator[Member]:
        """A member until the block ends, with a session of its own, or that of `client`."""
        listener, shared = settings.pop("listener", None), settings.pop("client", None)
        given = {"group_id": GROUP, "auto_offset_reset": "smallest", "rebalance_backoff_ms": 20, "max_wait_ms": 20}
        config = ConnectorConfig(**{**given, **settings})
        async with (
            nullcontext(shared) if shared else self.zookeeper.open(session_timeout_ms=session_timeout_ms) as client,
            trio.open_nursery() as nursery,
            open_consumer_connector(
                self.cluster, client, config, clock=clock, rng=Random(len(self.members)), listener=listener
            ) as connector,
        ):
            member = Member(connector, client, nursery)
            self.members.append(member)
            yield member

    def stored(self, topic: str, partition: int = 0) -> int | None:
        node = self.zookeeper.znodes.find_or_none(f"/consumers/{GROUP}/offsets/{topic}/{partition}")
        return None if node is None else int(node.data)

    def owners(self, topic: str) -> dict[int, str]:
        parent = f"/consumers/{GROUP}/owners/{topic}"
        found = {int(name): f"{parent}/{name}" for name in self.zookeeper.znodes.children(parent)}
        return {number: self.zookeeper.znodes.find(path).data.decode() for number, path in sorted(found.items())}


async def until(condition: Any) -> None:
    """Wait for a condition, of values or of tasks."""
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.005)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    zookeeper = MemoryZooKeeper()
    async with (
        serving_cluster(tmp_path, zookeeper=zookeeper) as cluster,
        open_producer(cluster, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer,
    ):
        made = Site(cluster, zookeeper, producer)
        zookeeper.before_request = made.note
        yield made
