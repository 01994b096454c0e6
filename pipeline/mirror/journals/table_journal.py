"""The journal of the partition table: a topic of the destination, which this module reads and appends to.

Invariants:
A. The table in memory changes by records read from the journal alone, never by records written to it.
B. What mirrors never write is skipped alike by all readers: records that are no assignments, and batches that cannot be
   opened although their checksum is right. Their bytes are those that some producer sent, so every reader skips them.
C. Bytes that may differ from those that were sent (a wrong checksum) stop the reading: the batch may hold assignments
   that other readers have applied.
"""

from collections.abc import Callable, Sequence
from random import Random

import structlog
import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics, replicas_for
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.producer import open_producer
from pipeline.errors import CorruptBatchError, DeadlineExceededError, OpenedBatchTooLargeError
from pipeline.mirror.journals.table import TABLE_TOPIC, PartitionTable, PartitionTableError, Proposal, decode_proposal
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.records.record import Record, records_of_batch

JOURNAL = TopicPartition(TABLE_TOPIC, 0)
TIMEOUT_S = 30.0
MAX_BATCH_BYTES = 4 << 20
"""Bound of an uncompressed batch. Mirrors write 64 KiB; tools that restore a journal may write more."""
KEPT_FOR_EVER = {"retention.ms": "-1", "cleanup.policy": "delete"}

logger = structlog.get_logger()


class TableJournal:
    """The table, and the position up to which its journal was read."""

    def __init__(self, destination: Cluster, count_skipped: Callable[[int], None]) -> None:
        """`count_skipped` is called with each number of skipped records, each record once."""
        self.table = PartitionTable()
        self._destination = destination
        self._count_skipped = count_skipped
        self._position: int | None = None
        self.begin = 0
        """Offset of the first record when reading began. Beyond 0, entries before it were deleted."""

    async def open(self) -> None:
        """Create the journal unless it exists, and read it. Raises KafkaError, NetworkError and as `read_on`."""
        replicas = await replicas_for(self._destination)
        topic = NewTopic(name=TABLE_TOPIC, partitions=1, replication_factor=replicas, configs=KEPT_FOR_EVER)
        await create_topics(self._destination, [topic], exist_ok=True)
        await self.read_on()

    async def read_on(self) -> None:
        """Apply all records up to the present end.

        Raises PartitionTableError if the journal was deleted or lost records, PartitionFetchError for damaged batches,
        KafkaError, NetworkError and DeadlineExceededError. A later call goes on after the last record that was read.
        """
        if self._position is None:
            first = await list_offsets(self._destination, {JOURNAL: EARLIEST}, timeout_s=TIMEOUT_S)
            self._position = self.begin = first[JOURNAL].offset
            if self.begin > 0:
                logger.warning("journal_lacks_records", topic=TABLE_TOPIC, begins_at=self.begin)
        last = await list_offsets(self._destination, {JOURNAL: LATEST}, timeout_s=TIMEOUT_S)
        end = last[JOURNAL].offset
        if self._position > end:
            reason = f"{TABLE_TOPIC} was read up to offset {self._position}, but ends at {end}: it was deleted or lost "
            raise PartitionTableError(f"{reason}records; restore it, or restart to go on with what it holds now")
        if self._position == end:
            return
        async with open_consumer(self._destination, ConsumerConfig()) as consumer:
            consumer.assign({JOURNAL: self._position})
            while self._position < end:
                polled = await consumer.poll_batches(TIMEOUT_S)
                if not polled:
                    raise DeadlineExceededError(f"{TABLE_TOPIC} could not be read to its end within {TIMEOUT_S:.0f} s")
                for batches in polled:
                    for start, header in iterate_headers(batches.data):
                        await self._read_batch(batches, start, header)
                    self._position = batches.next_offset

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
                self._apply(record)
        self._position = header.next_offset

    def _apply(self, record: Record) -> None:
        try:
            self.table.apply(decode_proposal(record.value))
        except PartitionTableError as error:
            self._skip(record.offset, 1, str(error))

    def _skip(self, offset: int, records: int, reason: str) -> None:
        logger.warning("table_record_skipped", topic=TABLE_TOPIC, offset=offset, records=records, error=reason)
        self._count_skipped(records)

    async def propose(self, proposals: Sequence[Proposal], *, clock: Clock, rng: Random) -> str | None:
        """Append the proposals that the table lacks, and read on. Raises DeliveryError and as `read_on`.

        Proposals that all readers would skip are left out. Return the reason against them, None if there are none.
        """
        missing: list[tuple[bytes, bytes]] = []
        refused: list[str] = []
        for proposal in self.table.missing(proposals):
            key, value = proposal.encode()
            try:
                self.table.require_room(decode_proposal(value).replica_topic)
            except PartitionTableError as error:
                refused.append(f"{proposal.source.partition}: {error}")
            else:
                missing.append((key, value))
        if missing:
            await self._append(missing, clock=clock, rng=rng)
        if not refused:
            return None
        return (
            f"the partition table cannot hold the entries of {len(refused)} source partitions, the first {refused[0]}"
        )

    async def _append(self, records: Sequence[tuple[bytes, bytes]], *, clock: Clock, rng: Random) -> None:
        config = ProducerConfig(linger_ms=0, delivery_timeout_ms=int(TIMEOUT_S * 1000))
        async with open_producer(self._destination, config, clock=clock, rng=rng) as producer:
            for key, value in records:
                await producer.send(TABLE_TOPIC, value, key=key, partition=0)
            await producer.flush()
        await self.read_on()
