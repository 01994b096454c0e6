"""The journal of the partition table: a topic of the destination, which this module reads and appends to.

Invariant: the table in memory changes by records read from the journal alone, never by records written to it.
"""

from collections.abc import Sequence
from random import Random

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import NewTopic, create_topics, replicas_for
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.opening import each_record
from pipeline.client.producer.producer import open_producer
from pipeline.errors import DeadlineExceededError
from pipeline.mirror.table import TABLE_TOPIC, PartitionTable, Proposal, decode_proposal
from pipeline.model import Clock, TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.record import Record

JOURNAL = TopicPartition(TABLE_TOPIC, 0)
TIMEOUT_S = 30.0
KEPT_FOR_EVER = {"retention.ms": "-1", "cleanup.policy": "delete"}


class TableJournal:
    """The table, and the position up to which its journal was read."""

    def __init__(self, destination: Cluster) -> None:
        self.table = PartitionTable()
        self._destination = destination
        self._position: int | None = None

    async def open(self) -> None:
        """Create the journal unless it exists, and read it. Raises KafkaError, NetworkError and as `read_on`."""
        replicas = await replicas_for(self._destination)
        topic = NewTopic(name=TABLE_TOPIC, partitions=1, replication_factor=replicas, configs=KEPT_FOR_EVER)
        await create_topics(self._destination, [topic], exist_ok=True)
        await self.read_on()

    async def read_on(self) -> None:
        """Apply all records up to the present end. Raises PartitionTableError, KafkaError, DeadlineExceededError."""
        if self._position is None:
            first = await list_offsets(self._destination, {JOURNAL: EARLIEST}, timeout_s=TIMEOUT_S)
            self._position = first[JOURNAL].offset
        last = await list_offsets(self._destination, {JOURNAL: LATEST}, timeout_s=TIMEOUT_S)
        end = last[JOURNAL].offset
        if self._position >= end:
            return
        async with open_consumer(self._destination, ConsumerConfig()) as consumer:
            consumer.assign({JOURNAL: self._position})
            while self._position < end:
                polled = await consumer.poll_batches(TIMEOUT_S)
                if not polled:
                    raise DeadlineExceededError(f"{TABLE_TOPIC} could not be read to its end within {TIMEOUT_S:.0f} s")
                for batches in polled:
                    await each_record(batches, self._apply)
                    self._position = batches.next_offset

    def _apply(self, record: Record) -> None:
        if record.value is not None:
            self.table.apply(decode_proposal(record.value))

    async def propose(self, proposals: Sequence[Proposal], *, clock: Clock, rng: Random) -> None:
        """Append the proposals that the table lacks, and read on. Raises DeliveryError and as `read_on`."""
        missing = self.table.missing(proposals)
        if not missing:
            return
        config = ProducerConfig(linger_ms=0, delivery_timeout_ms=int(TIMEOUT_S * 1000))
        async with open_producer(self._destination, config, clock=clock, rng=rng) as producer:
            for proposal in missing:
                key, value = proposal.encode()
                await producer.send(TABLE_TOPIC, value, key=key, partition=0)
            await producer.flush()
        await self.read_on()
