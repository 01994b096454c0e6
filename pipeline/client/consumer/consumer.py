"""The consumer: record batches of assigned partitions, fetched ahead in the background, whole or opened as records.

The caller assigns offsets and stores them. No record is opened unless `records` is used. `fetcher.py` fetches.

Invariants: for each partition, `poll_batches` returns what follows the batches it returned before, through restarts of
brokers and moves of leaders. A batch that cannot be opened stops its own partition alone, and no position moves past
records that were not returned.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Self
from uuid import UUID

from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.column_reader import COLUMN_NAMES, ColumnReader, OpenedColumns
from pipeline.client.consumer.committed_batches import committed_batches
from pipeline.client.consumer.consumption import ConsumptionObserver
from pipeline.client.consumer.fetch_plan import FetchedBatches, FetchState, OnAnswer, begin_at, epoch_before
from pipeline.client.consumer.fetch_queue import LimitOf, unlimited
from pipeline.client.consumer.fetcher import Fetcher, Taken
from pipeline.client.consumer.messages import DecodedMessages, ErrorPolicy
from pipeline.client.consumer.opening import RecordIterator, open_payload
from pipeline.client.consumer.record import ConsumerRecord
from pipeline.client.encoding.decoders import DecoderLike
from pipeline.errors import CorruptBatchError
from pipeline.model import NO_LEADER_EPOCH, TopicPartition
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import BatchHeader
from pipeline.records.memory import Charge
from pipeline.records.opening import open_uncharged
from pipeline.records.record import fields_of_payload

if TYPE_CHECKING:
    import pyarrow as pa

POLL_TIMEOUT_S = 1.0

_ClosedBatch = tuple[FetchState, FetchedBatches, int, BatchHeader]
"""A batch not yet opened, and its position among the fetched bytes."""


_MADE_OF = partial(tuple.__new__, ConsumerRecord)
"""Makes a ConsumerRecord of a tuple of its fields, in half the time."""


class Consumer:
    """Reads assigned partitions. Made by `open_consumer`; used by one task."""

    def __init__(self, fetcher: Fetcher, max_opened_bytes: int) -> None:
        self._fetcher = fetcher
        self._max_opened_bytes = max_opened_bytes
        self._closed: Iterator[_ClosedBatch] = iter(())
        self._next_closed: _ClosedBatch | None = None
        self._records = RecordIterator(self._open_next)
        self._column_reader = ColumnReader(fetcher, POLL_TIMEOUT_S)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are fetched."""
        return frozenset(self._fetcher.states)

    def configure(self, config: ConsumerConfig) -> None:
        """Send all further requests with other settings. Requests under way, and what was fetched, stay as they are."""
        self._max_opened_bytes = config.max_opened_bytes
        self._fetcher.configure(config)

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions from these offsets on, and no others. Raises as `add`, and changes nothing then."""
        self._fetcher.assign({partition: begin_at(partition, offset) for partition, offset in offsets.items()})

    def add(
        self,
        topic_partition: TopicPartition,
        offset: int,
        topic_id: UUID | None = None,
        *,
        leader_epoch: int | None = None,
    ) -> None:
        """Fetch one more partition from this offset on; a partition that is assigned starts anew there.

        With `topic_id` the offset belongs to that topic alone, not to a topic recreated under the same name.
        `leader_epoch` is the epoch of the record before the offset, if the caller kept it (the last of
        `FetchedBatches.leader_epochs`): then a truncation since is noticed (PartitionTruncatedError). Raises
        ValueError, TypeError or KafkaError for an impossible offset, epoch, partition or topic name.
        """
        last_epoch = NO_LEADER_EPOCH if leader_epoch is None else leader_epoch
        self._fetcher.add(begin_at(topic_partition, offset, topic_id, last_epoch))

    def remove(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition. Batches that were fetched ahead are dropped."""
        self._fetcher.remove(topic_partition)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Continue an assigned partition at another offset. Raises KeyError for a partition that is not assigned."""
        if topic_partition not in self._fetcher.states:
            raise KeyError(f"{topic_partition} is not assigned")
        self.add(topic_partition, offset)

    def skip_batch(self, topic_partition: TopicPartition) -> int:
        """Continue after the batch of a PartitionBatchError, and return the offset after that batch.

        Raises KeyError for a partition that is not assigned, ValueError if no such error was raised for it.
        """
        state = self._fetcher.states[topic_partition]
        if state.skip_to is None:
            raise ValueError(f"{topic_partition} does not rest at a bad batch")
        self.add(topic_partition, state.skip_to, state.topic_id)
        return state.skip_to

    def position(self, topic_partition: TopicPartition) -> int:
        """Return the offset after the returned records. Raises KeyError for a partition that is not assigned."""
        return self._fetcher.states[topic_partition].position

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """Return the id of the topic of the position; None if it is not known yet. Raises as `position`."""
        topic_id = self._fetcher.states[topic_partition].topic_id
        return None if topic_id == ZERO_UUID else topic_id

    def has(self, topic_partition: TopicPartition) -> bool:
        """Return True if the partition is assigned."""
        return topic_partition in self._fetcher.states

    def leader_epoch_before(self, topic_partition: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset that was returned; -1 if it is not known.

        Raises as `position`.
        """
        return epoch_before(self._fetcher.states[topic_partition], offset)

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """Return the high watermark of the last response, None before it. Raises as `position`."""
        return self._fetcher.states[topic_partition].high_watermark

    def is_answered(self, topic_partition: TopicPartition) -> bool:
        """True if a leader has answered for the partition since it was assigned or sought; False if it is neither."""
        state = self._fetcher.states.get(topic_partition)
        return state is not None and state.high_watermark is not None

    async def poll_batches(self, timeout_s: float = POLL_TIMEOUT_S) -> list[FetchedBatches]:
        """Return all fetched batches, as soon as there are any; an empty list after `timeout_s`.

        Raises PartitionOffsetOutOfRangeError and PartitionTruncatedError if the reset policy is NONE, and
        PartitionFetchError; each once, after the partition's batches before it were returned. Batches of other
        partitions stay for the next call.
        """
        taken = await self._fetcher.take(timeout_s)
        for state, batches in taken:
            state.position = batches.next_offset
        return [batches for _, batches in taken]

    def records(self) -> AsyncIterator[ConsumerRecord]:
        """Iterate over all records as objects, for ever. `position` moves with each one. Raises as `poll_batches`.

        A batch that cannot be opened raises PartitionBatchError, after the records of other partitions that were
        fetched with it. MemoryExhaustedError: other consumers of this process hold open batches. After either error
        iterate again to continue; each iterator continues where the one before was left. Do not poll batches of the
        same consumer as well.
        """
        return self._records

    def opened_record(self) -> ConsumerRecord | None:
        """Return what `records` would yield next if that takes no waiting, otherwise None."""
        return self._records.opened()

    def messages(
        self, key: DecoderLike | None = None, value: DecoderLike | None = None, on_error: ErrorPolicy | None = None
    ) -> DecodedMessages:
        """Iterate over all records with decoded keys and values, for ever; without a decoder they stay bytes.

        `on_error` decides about records that cannot be decoded; by default MessageDecodeError is raised. `position`
        moves as with `records`, and back to a record that comes again. Raises as `records` and as the decoders, and
        ConfigurationError for an object that is no decoder.
        """
        return DecodedMessages(self._records, self._give_back, key=key, value=value, on_error=on_error)

    def _give_back(self, record: ConsumerRecord) -> None:
        """Return this record again next, if nobody has sought its partition since."""
        state = self._fetcher.states.get(record.topic_partition)
        if state is not None and state.position == record.offset + 1:
            epoch = epoch_before(state, record.offset)
            self.add(record.topic_partition, record.offset, state.topic_id, leader_epoch=epoch)

    def columns(self, columns: Sequence[str] | None = None) -> "AsyncIterator[pa.RecordBatch]":
        """Iterate over all records as Arrow record batches, each of one partition, for ever.

        `columns`: those of `COLUMN_NAMES` that are needed; the others are not made. `position` moves with each record
        batch. Control batches are left out. Batches are opened in a thread, and their memory is the program's once they
        are returned. Raises as `records`; ValueError for an unknown column. Read in one way at a time.
        """
        unknown = [name for name in columns or () if name not in COLUMN_NAMES]
        if unknown or (columns is not None and not columns):
            raise ValueError(f"columns {unknown}: there are {', '.join(COLUMN_NAMES)}")
        return _Tables(partial(self.read_columns, columns))

    async def read_columns(self, columns: Sequence[str] | None = None) -> OpenedColumns:
        """Return the next record batch of `columns()`, and its place."""
        return await self._column_reader.read(self._max_opened_bytes, columns)

    async def _open_next(self) -> Iterator[ConsumerRecord]:
        """Return the records of the next batches. A batch whose opening fails or is cancelled stays the next one.

        Raises MemoryExhaustedError, and as `poll_batches` does.
        """
        if self._next_closed is None:
            self._closed = _closed_batches(await self._fetcher.take(POLL_TIMEOUT_S))
            return self._open_on(iter(()))
        records = await self._open_charged(*self._next_closed)
        self._next_closed = None
        return self._open_on(records)

    async def _open_charged(
        self, state: FetchState, batches: FetchedBatches, start: int, header: BatchHeader
    ) -> Iterator[ConsumerRecord]:
        if not self._fetcher.is_current(state):
            return iter(())
        try:
            charge, payload = await open_payload(batches.data, start, header, self._max_opened_bytes)
        except CorruptBatchError as error:
            self._fetcher.reject_batch(state, header, error)
            return iter(())
        return self._made_records(state, batches, header, payload, charge)

    def _open_on(self, records: Iterator[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Yield these records, then those of the batches after them, up to a batch that has to be charged.

        Most batches are small, and need neither a coroutine nor a charge.
        """
        yield from records
        for closed in self._closed:
            state, batches, start, header = closed
            if not self._fetcher.is_current(state) or state.rejected:
                continue
            if header.is_control:
                state.position = header.next_offset
                continue
            try:
                payload = open_uncharged(batches.data, start, header, self._max_opened_bytes)
            except CorruptBatchError as error:
                self._fetcher.reject_batch(state, header, error)
                continue
            if payload is None:
                self._next_closed = closed
                return
            yield from self._made_records(state, batches, header, payload)

    def _made_records(
        self,
        state: FetchState,
        batches: FetchedBatches,
        header: BatchHeader,
        payload: bytes,
        charge: Charge | None = None,
    ) -> Iterator[ConsumerRecord]:
        fetcher, place = self._fetcher, (state.topic_partition,)
        changes = fetcher.changes
        records = fields_of_payload(payload, header)
        if header.base_offset < batches.position:
            records = (fields for fields in records if fields[0] >= batches.position)
        try:
            for fields in records:
                state.position = fields[0] + 1
                yield _MADE_OF(place + fields)
                if changes != fetcher.changes and not fetcher.is_current(state):
                    return
            state.position = header.next_offset
        except CorruptBatchError as error:
            self._fetcher.reject_batch(state, header, error)
        finally:
            if charge is not None:
                charge.close()

    def close(self) -> None:
        """Release the memory of a batch whose records were not all taken. No more records are returned."""
        self._fetcher.close()
        self._records.close()
        self._column_reader.close()


class _Tables:
    """Iterates over record batches. May be left at any moment, unlike a generator."""

    def __init__(self, read: Callable[[], Awaitable[OpenedColumns]]) -> None:
        self._read = read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "pa.RecordBatch":
        return (await self._read()).table


def _closed_batches(taken: Taken) -> Iterator[_ClosedBatch]:
    for state, batches in taken:
        # The fetcher verified the checksums, so a header's size can be trusted.
        for start, header in committed_batches(batches):
            yield state, batches, start, header


@asynccontextmanager
async def open_consumer(
    cluster: Cluster,
    config: ConsumerConfig,
    on_answer: OnAnswer | None = None,
    limit_of: LimitOf = unlimited,
    *,
    observer: ConsumptionObserver | None = None,
) -> AsyncIterator[Consumer]:
    """Open a consumer without assignment; it fetches in the background until the block ends.

    `on_answer` is called at each answer of a leader, before its batches are returned by a poll.
    `limit_of` bounds the bytes per second of partitions: those that wait for their limit delay no others.
    `observer` is notified of batches that are fetched; a program that commits offsets itself notifies it of these.
    """
    fetcher = Fetcher(cluster, config, on_answer, limit_of)
    fetcher.observer = observer or fetcher.observer
    consumer = Consumer(fetcher, config.max_opened_bytes)
    async with background_tasks() as nursery:
        nursery.start_soon(fetcher.run)
        try:
            yield consumer
        finally:
            consumer.close()
