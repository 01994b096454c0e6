"""Keeps the registry's log in a topic: one partition, compacted.

While brokers are away, reads return empty pages, and writes fail within their time.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.admin.topics import NewTopic, create_topics, list_topics, replicas_for
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.cluster.metadata import TopicMetadata
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import (
    PartitionFetchError,
    PartitionOffsetOutOfRangeError,
    PartitionTruncatedError,
)
from pipeline.client.consumer.opening import each_record
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError, NetworkError
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.record import Record as KafkaRecord
from pipeline.schema_registry.writing.journal import (
    JournalLostError,
    JournalPage,
    JournalRecord,
    Record,
    RecordTooLargeError,
)
from pipeline.schema_registry.writing.writers import STAMP_HEADER

READ_WAIT_S = 1.0
MAX_BATCH_BYTES: Final = 900_000
"""Of several records; topics accept 1 MB by default."""
POLICY: Final = "cleanup.policy"
MIRROR_SOURCE: Final = "mirror.source"
"""Setting of a topic that a mirror alone writes."""
MIRROR_PROMOTED: Final = "mirror.promoted"
"""Setting of a topic that was such a copy."""
LAG: Final = "min.compaction.lag.ms"
LEAST_LAG_MS: Final = 3_600_000
TOPIC_SETTINGS: Final = {POLICY: "compact", LAG: "86400000", "message.timestamp.type": "LogAppendTime"}
"""The lag leaves the time to write again what a record of another registry would replace, by the brokers' clocks.

Brokers refuse records of a registry whose clock is ahead, unless they stamp them themselves.
"""
logger = get_logger(__name__)

_TOPIC_GONE = frozenset(
    {ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)


async def has_topic(cluster: Cluster, topic: str, *, timeout_s: float) -> bool:
    """Return True if the topic exists."""
    return topic in await list_topics(cluster, timeout_s=timeout_s)


async def create_log_topic(cluster: Cluster, topic: str, *, replication_factor: int, timeout_s: float) -> None:
    """Create the topic of a log unless it exists, with as many replicas as wanted, or as there are brokers."""
    replicas = await replicas_for(cluster, replication_factor, timeout_s=timeout_s)
    wanted = NewTopic(name=topic, partitions=1, replication_factor=replicas, configs=TOPIC_SETTINGS)
    await create_topics(cluster, [wanted], exist_ok=True, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class LogTopic:
    """Origin of a log's topic: a copy of another cluster's, which a mirror alone writes, or one that was promoted."""

    is_copy: bool = False
    is_promoted: bool = False


OWN_TOPIC: Final = LogTopic()


async def check_log_topic(cluster: Cluster, topic: str, *, timeout_s: float) -> LogTopic:
    """Return the origin of an existing topic.

    Raises ConfigurationError for a topic of several partitions, whose records have no order, and for one that forgets
    records by their age.
    """
    partitions = len((await list_topics(cluster, timeout_s=timeout_s))[topic].partitions)
    if partitions != 1:
        raise ConfigurationError("kafkastore.topic", f"topic {topic} has {partitions} partitions, it must have one")
    names = [POLICY, LAG, MIRROR_SOURCE, MIRROR_PROMOTED]
    settings = (await describe_topic_settings(cluster, [topic], names, timeout_s=timeout_s))[topic]
    if settings[POLICY] != TOPIC_SETTINGS[POLICY]:
        reason = f"topic {topic} has {POLICY}={settings[POLICY]}, and schemas would be deleted by their age"
        remedy = f"pipeline topic configure {topic} --set {POLICY}=compact"
        raise ConfigurationError("kafkastore.topic", f"{reason}; run: {remedy}")
    if settings.get(MIRROR_SOURCE):
        return LogTopic(is_copy=True)
    if int(settings.get(LAG) or 0) < LEAST_LAG_MS:
        remedy = f"pipeline topic configure {topic} --set {LAG}={TOPIC_SETTINGS[LAG]}"
        logger.warning("registry_topic_compacted_early", topic=topic, lag_ms=settings.get(LAG), remedy=remedy)
    return LogTopic(is_promoted=bool(settings.get(MIRROR_PROMOTED)))


class KafkaJournal:
    """A journal in partition 0 of a topic, opened by `open_kafka_journal`."""

    def __init__(
        self, cluster: Cluster, consumer: Consumer, topic: TopicMetadata, *, timeout_s: float, clock: Clock
    ) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._partition = TopicPartition(topic.name, 0)
        self._topic_ids = None if topic.id == ZERO_UUID else {topic.name: topic.id}
        self._timeout_s = timeout_s
        self._clock = clock
        self._next_offset: int | None = None
        self._epoch: int | None = None
        """Leader epoch of the last record that was read."""

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        """See `SchemaJournal`. Nothing is sent twice, and nothing goes to a topic that was recreated."""
        headers = () if stamp is None else ((STAMP_HEADER, stamp),)
        offsets: list[int] = []
        left = list(records)
        while left:
            builder = BatchBuilder(Codec.NONE, MAX_BATCH_BYTES)
            while left and builder.append(*left[0], headers, self._clock()):
                del left[0]
            count = builder.record_count
            base_offset = await self._produce(builder.build())
            offsets += range(base_offset, base_offset + count)
        return offsets

    async def _produce(self, batch: bytearray) -> int:
        produced = await raw_produce(
            self._cluster,
            {self._partition: bytes(batch)},
            keep_offsets=False,
            timeout_s=self._timeout_s,
            topic_ids=self._topic_ids,
        )
        result = produced[self._partition]
        if isinstance(result.error, KafkaError) and result.error.code in _TOPIC_GONE:
            raise JournalLostError(f"{self._partition}: {result.error}") from result.error
        if isinstance(result.error, KafkaError) and result.error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise RecordTooLargeError(f"{self._partition}: {result.error}") from result.error
        if result.error is not None:
            raise result.error
        if result.base_offset < 0:
            raise NetworkError(f"{self._partition}: the records were appended, but the answer has no offsets")
        return result.base_offset

    async def end_offset(self) -> int:
        """See `SchemaJournal`."""
        return await self._listed(LATEST)

    async def start_offset(self) -> int:
        """See `SchemaJournal`."""
        return await self._listed(EARLIEST)

    async def read(self, offset: int) -> JournalPage:
        """See `SchemaJournal`. Reading from 0 begins at the log start offset."""
        if offset != self._next_offset:
            start_offset = await self.start_offset()
            if 0 < offset < start_offset:
                raise JournalLostError(
                    f"{self._partition}: the log starts at {start_offset} now, records from {offset} on are gone"
                )
            self._next_offset = max(offset, start_offset)
            topic_id = None if self._topic_ids is None else self._topic_ids[self._partition.topic]
            self._consumer.add(self._partition, self._next_offset, topic_id, leader_epoch=self._epoch)
            return JournalPage((), self._next_offset)
        records: list[JournalRecord] = []
        try:
            for batches in await self._consumer.poll_batches(READ_WAIT_S):
                await each_record(batches, lambda record: records.append(_journal_record(record)))
                self._next_offset = batches.next_offset
                self._epoch = batches.leader_epochs[-1][0] if batches.leader_epochs else self._epoch
        except (PartitionOffsetOutOfRangeError, PartitionTruncatedError) as error:
            self._next_offset = None
            raise JournalLostError(str(error)) from error
        except PartitionFetchError as error:
            self._next_offset = None
            if isinstance(error.cause, KafkaError) and error.cause.code in _TOPIC_GONE:
                raise JournalLostError(str(error)) from error
            raise
        return JournalPage(records, self._next_offset)

    async def replay(self, end_offset: int, take: Callable[[JournalRecord], None]) -> None:
        """See `SchemaJournal`."""
        position = await self.start_offset()
        async with open_consumer(self._cluster, ConsumerConfig()) as consumer:
            consumer.assign({self._partition: position})
            while position < end_offset:
                for batches in await consumer.poll_batches(READ_WAIT_S):
                    await each_record(batches, lambda record: take(_journal_record(record)))
                    position = batches.next_offset

    async def _listed(self, position: int) -> int:
        found = await list_offsets(self._cluster, {self._partition: position}, timeout_s=self._timeout_s)
        return found[self._partition].offset


def _journal_record(record: KafkaRecord) -> JournalRecord:
    stamp = next((value for name, value in record.headers if name == STAMP_HEADER), None)
    return JournalRecord(record.offset, record.key, record.value, stamp)


@asynccontextmanager
async def open_kafka_journal(
    cluster: Cluster, topic: str, *, timeout_ms: int, clock: Clock
) -> AsyncIterator[KafkaJournal]:
    """Open a journal over an existing topic, until the block ends. `timeout_ms` bounds each append."""
    found = await cluster.topic(topic)
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        yield KafkaJournal(cluster, consumer, found, timeout_s=timeout_ms / 1000, clock=clock)
