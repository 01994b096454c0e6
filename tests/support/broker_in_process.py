"""A broker in the process of the test, on a ZooKeeper in memory, and requests to it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from pipeline.broker.server import BrokerHandle
from pipeline.model import HostPort, TopicPartition
from pipeline.net.connection_pool import ConnectionPool
from pipeline.observation import ObservedPartition
from pipeline.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from pipeline.protocol.schema import Message
from pipeline.records.batch import BatchHeader, iterate_headers, set_base_offset
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.testing.memory_zookeeper import MemoryClient

TIMEOUT_S = 60
NOW_MS = 1_700_000_000_000


@dataclass
class Observed:
    """A LogObserver that remembers."""

    events: list[tuple[str, TopicPartition, Any]] = field(default_factory=list)

    def loaded(self, partition: ObservedPartition) -> None:
        log = partition.log
        counted = sum(header.record_count for header in log.headers(log.log_start_offset))
        self.events.append(("loaded", partition.topic_partition, (log.log_start_offset, log.log_end_offset, counted)))

    def appended(
        self, topic_partition: TopicPartition, headers: Sequence[BatchHeader], batches: memoryview, now_ms: int
    ) -> None:
        assert [header for _, header in iterate_headers(batches)] == list(headers)
        self.events.append(("appended", topic_partition, [header.base_offset for header in headers]))

    def truncated(self, topic_partition: TopicPartition) -> None:
        self.events.append(("truncated", topic_partition, None))

    def removed(self, topic_partition: TopicPartition) -> None:
        self.events.append(("removed", topic_partition, None))


@dataclass
class Broker:
    """A running broker, and requests to it."""

    handle: BrokerHandle
    zookeeper: MemoryClient
    pool: ConnectionPool
    metrics: CollectorRegistry
    observed: Observed

    @property
    def address(self) -> HostPort:
        return self.handle.address

    async def ask(self, message: Message, *, timeout_s: float = TIMEOUT_S, lane: str = "") -> Any:
        return await self.pool.request(self.address, message, timeout_s=timeout_s, lane=lane)

    async def create(self, name: str, partitions: int = 1, **settings: str) -> None:
        configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        response = await self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_S * 1000))
        assert response.topics[0].error_code == 0, response.topics[0]

    async def produce(
        self,
        topic: str,
        records: bytes | bytearray | None,
        *,
        partition: int = 0,
        acks: int = -1,
        keep_offsets: bool = False,
        expected_end: int = -1,
        source: str = "",
        copier_epoch: int = -1,
        transactional_id: str | None = None,
        timeout_ms: int = TIMEOUT_S * 1000,
        lane: str = "",
    ) -> PartitionProduceResponse:
        data = PartitionProduceData(
            index=partition,
            records=records,
            keep_offsets=keep_offsets,
            expected_end=expected_end,
            source=source,
            copier_epoch=copier_epoch,
        )
        topics = [await self.named(TopicProduceData, topic, partition_data=[data])]
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics, transactional_id=transactional_id)
        response = await self.ask(request, lane=lane)
        result: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return result

    async def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        current_leader_epoch: int = -1,
        lane: str = "fetch",
    ) -> PartitionData:
        asked = FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=current_leader_epoch,
        )
        topics = [await self.named(FetchTopic, topic, partitions=[asked])]
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=topics)
        response = await self.ask(request, lane=lane)
        data: PartitionData = response.responses[0].partitions[0]
        return data

    async def named(self, kind: Any, topic: str, **fields: Any) -> Any:
        """A topic of a request, by the id that the newest versions want."""
        from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

        topics = [MetadataRequestTopic(name=topic)]
        response = await self.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        name_field = "topic" if kind is FetchTopic else "name"
        return kind(**{name_field: topic}, topic_id=response.topics[0].topic_id, **fields)


def batch(*values: bytes, timestamp_ms: int = NOW_MS, base_offset: int = 0, **producer: int) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 10_000_000)
    for index, value in enumerate(values):
        assert builder.append(b"key", value, (), timestamp_ms + index)
    built = builder.build(**producer)
    set_base_offset(built, 0, base_offset)
    return built


Start = Callable[..., AbstractAsyncContextManager[Broker]]
