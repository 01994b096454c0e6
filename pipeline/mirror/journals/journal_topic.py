"""Topics of one partition that mirrors keep in the destination: created, read to the end, and appended to.

Invariants:
A. The state behind a topic changes by records read from the topic alone, never by records written to it. So all
   mirrors of one destination agree as soon as they have read to the end.
B. What mirrors never write is skipped alike by all readers: records that `apply` refuses, and batches that cannot be
   opened although their checksum is right.
C. Bytes that may differ from those that were sent (a wrong checksum) stop the reading.
D. Brokers remember one producer for all appends: each append has the next epoch of the same producer id. They remember
   a producer for a day, and refuse new ones beyond a bound (`known.producers.max`).
E. Records that were read are still in the log before those that are read next: a log that lost its end and grew again
   is noticed by the leader epoch of the last record (KIP-320).
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from uuid import UUID

import trio

from pipeline.client.admin.leader_epochs import ends_of_epochs
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.resource_configs import ConfigResource, alter_configs, describe_topic_settings
from pipeline.client.admin.topics import NewTopic, create_topics, replicas_for
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.errors import PartitionTruncatedError
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.batches import ProducerIdentity
from pipeline.client.producer.producer import open_producer
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    CorruptBatchError,
    DeadlineExceededError,
    NetworkError,
    OpenedBatchTooLargeError,
    PipelineError,
)
from pipeline.model import NO_LEADER_EPOCH, Clock, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.records.record import Record, records_of_batch
from pipeline.settings import MAX_INT16

TIMEOUT_S = 30.0
MISSING_AFTER_S = 2.0
"""Time after which a topic that no broker knows was deleted: longer than a change of leaders hides a topic."""
MAX_BATCH_BYTES = 4 << 20
"""Bound of a batch, uncompressed. Mirrors write batches of 64 KiB; larger ones come from tools that restore a topic."""
KEPT_FOR_EVER = {"retention.ms": "-1", "cleanup.policy": "delete"}
LAST_OF_EACH_KEY = {"cleanup.policy": "compact"}

_WHAT_TO_DO = "restore it, or leave it as it is; restart the mirror then"

logger = get_logger(__name__)


class JournalRecordError(PipelineError):
    """A record of a journal topic was not written by a mirror."""


class JournalLostRecordsError(PipelineError):
    """A journal topic was deleted, or lost records that were read before."""


class JournalTopic:
    """A topic of one partition, and the position up to which it was read.

    `apply` gets each record once, in the order of the log; a record for which it raises JournalRecordError is skipped.
    """

    def __init__(
        self,
        destination: Cluster,
        name: str,
        configs: Mapping[str, str],
        apply: Callable[[Record], None],
        *,
        count_skipped: Callable[[int], None] = lambda _records: None,
    ) -> None:
        """`count_skipped` is called with each number of skipped records, each record once."""
        self.skipped = 0
        """Number of records that were skipped."""
        self.begin = 0
        """Offset of the first record when reading began. Beyond 0, records before it were deleted."""
        self.is_created = False
        """True if the topic was created just now, or found to exist."""
        self._destination = destination
        self._name = name
        self._configs = configs
        self._apply = apply
        self._count_skipped = count_skipped
        self._partition = TopicPartition(name, 0)
        self._position: int | None = None
        self._topic_id: UUID | None = None
        """Topic of the position; None before the first reading."""
        self._epoch: int = NO_LEADER_EPOCH
        """Leader epoch of the record before the position; -1 if it is not known."""
        self._compared_in: int = NO_LEADER_EPOCH
        """Leader epoch in which the log was last known to have the records before the position."""
        self._turn = trio.Lock()
        self._identity: ProducerIdentity | None = None
        """Producer id and epoch of the last append, if the id may be used again."""
        self._appending = trio.Lock()

    async def open(self) -> None:
        """Create the topic unless it exists, and read it. Raises as `create_journals` and `read_on`.

        A topic that exists gets the settings without which it would lose records.
        """
        if not self.is_created:
            await create_journals(self._destination, [self])
        self.is_created = False  # when it is opened again, it may have been deleted
        await self._mend_settings()
        await self.read_on()

    def new_topic(self, replication_factor: int) -> NewTopic:
        """Return the topic to create."""
        return NewTopic(name=self._name, partitions=1, replication_factor=replication_factor, configs=self._configs)

    async def _mend_settings(self) -> None:
        """Set settings that somebody changed. If the destination refuses that, the log says so, and reading goes on."""
        try:
            found = await describe_topic_settings(
                self._destination, [self._name], list(self._configs), timeout_s=TIMEOUT_S
            )
            settings = found.get(self._name, self._configs)
            wrong = {name: value for name, value in self._configs.items() if settings.get(name) != value}
            if wrong:
                resource = ConfigResource(ResourceType.TOPIC, self._name)
                await alter_configs(self._destination, {resource: wrong}, timeout_s=TIMEOUT_S)
                logger.warning("journal_settings_mended", topic=self._name, settings=wrong)
        except KafkaError as error:
            logger.warning("journal_settings_not_mended", topic=self._name, needed=self._configs, error=str(error))

    async def read_on(self) -> None:
        """Apply all records up to the present end.

        Raises JournalLostRecordsError, PartitionFetchError for damaged batches, KafkaError, NetworkError and
        DeadlineExceededError. A later call goes on after the last record that was read.
        """
        async with self._turn:
            if self._position is None:
                self._position = self.begin = await self._bound(EARLIEST, timeout_s=TIMEOUT_S)
                if self.begin > 0:
                    logger.warning("journal_lacks_records", topic=self._name, begins_at=self.begin)
            end = await self._end()
            if self._position > end:
                reason = f"{self._name} was read up to offset {self._position}, but ends at {end}: it was deleted or "
                raise JournalLostRecordsError(f"{reason}lost records; {_WHAT_TO_DO}")
            if self._position < end:
                await self._read_to(end, self._position)
            else:
                await self._compare(self._position)

    async def append(self, records: Sequence[tuple[bytes, bytes | None]], *, clock: Clock, rng: Random) -> None:
        """Append keys and values (acks=all), and read on. Raises DeliveryError and as `read_on`.

        After an error some or all records may be in the topic.
        """
        config = ProducerConfig(linger_ms=0, delivery_timeout_ms=int(TIMEOUT_S * 1000))
        async with self._appending:  # invariant D
            identity, self._identity = _next_epoch(self._identity), None
            async with open_producer(self._destination, config, clock=clock, rng=rng, identity=identity) as producer:
                for key, value in records:
                    await producer.send(self._name, value, key=key, partition=0)
                try:
                    await producer.flush()
                finally:
                    self._identity = producer.identity
        await self.read_on()

    async def _end(self) -> int:
        """Return the present end. Raises as `read_on`; a topic that was deleted is told soon."""
        try:
            end = await self._bound(LATEST, timeout_s=MISSING_AFTER_S)
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                end = await self._bound(LATEST, timeout_s=TIMEOUT_S)
            elif self._position:
                raise JournalLostRecordsError(f"{self._name} was deleted; {_WHAT_TO_DO}") from error
            else:
                raise
        except (NetworkError, DeadlineExceededError):
            end = await self._bound(LATEST, timeout_s=TIMEOUT_S)
        topic = self._destination.view.topics.get(self._name)  # None: a broker that has just started named no topics
        if topic is not None and topic.id != ZERO_UUID:
            if self._topic_id is None or not self._position:
                self._topic_id = topic.id
            elif self._topic_id != topic.id:
                raise JournalLostRecordsError(f"{self._name} was deleted and created again; {_WHAT_TO_DO}")
        return end

    async def _compare(self, position: int) -> None:
        """Raise JournalLostRecordsError if a new leader has other records before the position (invariant E)."""
        now = self._destination.view.leader_epoch_of(self._partition)
        if self._epoch == NO_LEADER_EPOCH or now == self._compared_in:
            return
        try:
            ends = await ends_of_epochs(self._destination, {self._partition: self._epoch}, timeout_s=TIMEOUT_S)
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
        else:
            if 0 <= ends[self._partition].end_offset < position:
                raise self._truncated(position, ends[self._partition].end_offset)
        self._compared_in = now

    def _truncated(self, position: int, end: int) -> JournalLostRecordsError:
        reason = f"{self._name} was read up to offset {position}, and its log was truncated to {end} since: it lost "
        return JournalLostRecordsError(f"{reason}records (an unclean election, a power failure); {_WHAT_TO_DO}")

    async def _bound(self, position: int, *, timeout_s: float) -> int:
        listed = await list_offsets(self._destination, {self._partition: position}, timeout_s=timeout_s)
        return listed[self._partition].offset

    async def _read_to(self, end: int, position: int) -> None:
        async with open_consumer(self._destination, ConsumerConfig()) as consumer:
            consumer.add(self._partition, position, leader_epoch=self._epoch)
            while position < end:
                try:
                    polled = await consumer.poll_batches(TIMEOUT_S)
                except PartitionTruncatedError as error:  # invariant E
                    if error.end_offset >= 0:
                        raise self._truncated(error.offset, error.end_offset) from error
                    # ZooKeeper was restored, and nobody can tell.
                    consumer.add(self._partition, position)
                    continue
                if not polled:
                    raise DeadlineExceededError(f"{self._name} could not be read to its end within {TIMEOUT_S:.0f} s")
                for batches in polled:
                    for start, header in iterate_headers(batches.data):
                        await self._read_batch(batches, start, header)
                    self._position = position = batches.next_offset

    async def _read_batch(self, batches: FetchedBatches, start: int, header: BatchHeader) -> None:
        """Apply the records of a batch from the position on; none of a batch that cannot be opened (invariant B)."""
        await trio.lowlevel.checkpoint()
        records: list[Record] = []
        try:
            if header.size_bytes > MAX_BATCH_BYTES:
                raise OpenedBatchTooLargeError(MAX_BATCH_BYTES)
            if not header.is_control:
                records = list(records_of_batch(batches.data, start, header, max_bytes=MAX_BATCH_BYTES))
        except CorruptBatchError as error:
            self._skip(header.base_offset, header.record_count, f"the batch cannot be opened: {error.reason}")
        for record in records:
            if record.offset >= batches.position:
                try:
                    self._apply(record)
                except JournalRecordError as error:
                    self._skip(record.offset, 1, str(error))
        self._position, self._epoch = header.next_offset, header.partition_leader_epoch

    def _skip(self, offset: int, records: int, reason: str) -> None:
        self.skipped += records
        self._count_skipped(records)
        logger.warning("journal_record_skipped", topic=self._name, offset=offset, records=records, error=reason)


async def create_journals(destination: Cluster, journals: Sequence[JournalTopic]) -> None:
    """Create topics unless they exist. Raises KafkaError, NetworkError.

    One request has all of them: brokers create its topics at the same time, and those of several requests one by one.
    """
    replicas = await replicas_for(destination)
    await create_topics(destination, [journal.new_topic(replicas) for journal in journals], exist_ok=True)
    for journal in journals:
        journal.is_created = True


def _next_epoch(identity: ProducerIdentity | None) -> ProducerIdentity | None:
    if identity is None or identity.epoch >= MAX_INT16:
        return None
    return ProducerIdentity(identity.id, identity.epoch + 1)
