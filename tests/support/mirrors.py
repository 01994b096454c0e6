"""Two live clusters and a hub in this process, with a mirror between them, and what tests do with them."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.resource_configs import ConfigResource, describe_configs
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.producer import open_producer
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.coordination.interface import CoordinationClient
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.live_settings import ReadFile
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import Connect, MirrorService
from pipeline.model import HostPort, TopicPartition
from pipeline.protocol.messages.describe_configs import ConfigSource, ResourceType
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.provenance import MIRROR_PARTITIONS, Provenance
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import iterate_records
from tests.support.brokers import clock

DEADLINE_S = 60
CLICKS = TopicPartition("clicks", 0)
NOWHERE = TopicMetadata(name="")
NOBODY = ClientConfig(bootstrap=(HostPort("127.0.0.1", 1),))


@dataclass
class Site:
    """Two live clusters and a hub."""

    east: Cluster
    west: Cluster
    hub: Cluster
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)

    def failures(self, source: str = "east", partition: int = 0) -> float:
        """How often the mirror failed to copy a partition."""
        labels = {"source": source, "topic": "clicks", "partition": str(partition)}
        return self.metrics.get_sample_value("mirror_failures_total", labels) or 0

    def is_up(self, source: str) -> float | None:
        """What Prometheus is told of a source."""
        return self.metrics.get_sample_value("mirror_source_up", {"source": source})

    @asynccontextmanager
    async def mirroring(
        self,
        coordination: CoordinationClient | None = None,
        *,
        read_file: ReadFile | None = None,
        **settings: Any,
    ) -> AsyncIterator[MirrorService]:
        """A mirror of both, until the block ends as suddenly as a crash; with `coordination` a member of a group."""
        self.metrics = CollectorRegistry()
        sources = {"east": self.east, "west": self.west}
        async with mirroring_of(self.hub, self.metrics, settings, read_file, coordination, **sources) as service:
            yield service


def mirror_settings(*sources: str, **settings: Any) -> dict[str, Any]:
    """Settings of a mirror of these sources."""
    return {
        "destination.bootstrap.servers": "given:1",
        "sources": [{"name": name, "bootstrap.servers": "given:1"} for name in sources],
        **({} if "flows" in settings else {"topics": ["clicks.*"]}),
        "http.listen": "127.0.0.1:0",
        "refresh.interval.ms": 100,
        "retry.backoff.ms": 20,
        "fetch.max.wait.ms": 50,
        "produce.timeout.ms": 1000,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }


def connected_to(sources: Mapping[str, Cluster]) -> Connect:
    """Clusters that are open already, and stay open, by the name of their source."""
    return lambda source: nullcontext(sources[source.name])


@asynccontextmanager
async def mirroring_of(
    destination: Cluster,
    registry: CollectorRegistry | None = None,
    settings: dict[str, Any] | None = None,
    read_file: ReadFile | None = None,
    coordination: CoordinationClient | None = None,
    /,
    **sources: Cluster,
) -> AsyncIterator[MirrorService]:
    """A mirror of these sources, until the block ends as suddenly as a crash."""
    config = MirrorConfig.from_settings(mirror_settings(*sources, **(settings or {})))
    metrics = MirrorMetrics(registry or CollectorRegistry())
    service = MirrorService(
        config,
        connected_to(sources),
        destination,
        clock=clock,
        rng=Random(None if coordination else 1),
        metrics=metrics,
        read_file=read_file,
        coordination=coordination,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        yield service
        nursery.cancel_scope.cancel()


async def make(cluster: Cluster, topic: str = "clicks", partitions: int = 1, **configs: str) -> None:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    await create_topics(cluster, [NewTopic(name=topic, partitions=partitions, configs=settings)])


async def publish(cluster: Cluster, *values: bytes, topic: str = "clicks", partition: int = 0) -> None:
    """Each value a batch of its own."""
    async with open_producer(cluster, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
        for value in values:
            await producer.send(topic, value, partition=partition)
            await producer.flush()


def batch_at(offset: int, *values: bytes) -> bytes:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for value in values:
        assert builder.append(None, value, (), 1_700_000_000_000)
    built = builder.build()
    built[0:8] = offset.to_bytes(8, "big")
    return bytes(built)


async def settings_of(cluster: Cluster, topic: str = "clicks") -> dict[str, str]:
    """What the topic itself sets."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = (await describe_configs(cluster, [resource], timeout_s=DEADLINE_S))[resource]
    return {name: entry.value or "" for name, entry in entries.items() if entry.source is ConfigSource.TOPIC}


async def token_of(cluster: Cluster, replica: TopicPartition) -> str:
    """The source partition of a replica partition, as a mirror would name it; empty if nobody says."""
    text = (await settings_of(cluster, replica.topic)).get(MIRROR_PARTITIONS)
    origin = None if text is None else Provenance.parse(text).origin_of(replica.partition)
    return "" if origin is None else origin.token()


async def put(cluster: Cluster, data: bytes, replica: TopicPartition = CLICKS) -> None:
    """As another mirror would."""
    await cluster.topic(replica.topic)
    sources = {replica: await token_of(cluster, replica)}
    produced = await raw_produce(cluster, {replica: data}, keep_offsets=True, timeout_s=DEADLINE_S, sources=sources)
    result = produced[replica]
    assert result.error is None


async def read(cluster: Cluster, partition: TopicPartition) -> list[tuple[int, bytes | None]]:
    listed = await list_offsets(cluster, {partition: LATEST}, timeout_s=DEADLINE_S)
    found: list[tuple[int, bytes | None]] = []
    async with open_consumer(cluster, ConsumerConfig(max_wait_ms=50)) as consumer:
        consumer.assign({partition: 0})
        while consumer.position(partition) < listed[partition].offset:
            for batches in await consumer.poll_batches():
                found += [(record.offset, record.value) for record in iterate_records(batches.data)]
    return found


async def until_copied(cluster: Cluster, partition: TopicPartition, *values: bytes) -> None:
    """Until these, at offsets from 0 on, are all that is there."""
    expected = list(enumerate(values))
    found: list[tuple[int, bytes | None]] = []
    with trio.move_on_after(DEADLINE_S):
        while found != expected:
            await trio.sleep(0.02)
            if (
                partition.partition
                in (await cluster.fetch_all_topics()).topics.get(partition.topic, NOWHERE).partitions
            ):
                found = await read(cluster, partition)
    assert found == expected


async def until_said(service: MirrorService, reason: str, *, source: str = "east", partition: int = 0) -> None:
    said: Any = None
    with trio.move_on_after(DEADLINE_S):
        while said is None or reason not in said:
            await trio.sleep(0.01)
            said = reason_of(service, source=source, partition=partition)
    assert said is not None
    assert reason in said


def reason_of(service: MirrorService, *, source: str = "east", partition: int = 0) -> str | None:
    for one in service.status()["sources"]:
        for line in one["partitions"]:
            if one["name"] == source and line["partition"] == partition:
                found: str | None = line["error"]
                return found
    return None


async def until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    with trio.fail_after(deadline_s):
        while not condition():
            await trio.sleep(0.01)
