"""Reads one offset range of one partition as Arrow batches: an async consumer behind a plain iterator.

A thread runs trio and the consumer. Opened batches wait in a queue of a few, so that fetching, opening and handing
over run side by side within bounded memory. Leaving the iterator early ends the thread.

Batches of aborted transactions are left out whole (`committed_batches.py`), and control batches are skipped.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, IsolationLevel
from pipeline.client.consumer.committed_batches import aborted_batches, committed_data
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import PartitionBatchError, PartitionOffsetOutOfRangeError
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.diagnostics import get_logger
from pipeline.errors import CorruptBatchError, DeadlineExceededError, OpenedBatchTooLargeError
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.aborted_records import AbortedTally
from pipeline.hadoop.ranges.plan import BadBatch, DataLossError
from pipeline.hadoop.ranges.rows import end_of_range, fault_rows, to_rows
from pipeline.hadoop.ranges.source_ends import last_header_before
from pipeline.model import TopicPartition
from pipeline.records.batch import iterate_headers, read_header
from pipeline.records.columns import RecordColumns, open_in_portions
from pipeline.records.compression import Codec

logger = get_logger(__name__)

QUEUED_BATCHES = 2
IDLE_LIMIT_S = 120.0
_HANDOVER_POLL_S = 0.2
PORTION_RECORDS = 32_768
PORTION_BYTES = 1024 * 1024
"""Bytes of compressed batches that are opened at a time, unless they turn out to be more than these:"""
PORTION_PLAIN_BYTES = 16 * 1024 * 1024
HANDED_BYTES = 8 * 1024 * 1024
"""Bytes of keys, values and headers of the rows that are handed over at a time."""


READ_COMMITTED = ConsumerConfig(isolation_level=IsolationLevel.READ_COMMITTED)


class _StoppedError(Exception):
    """The reader has left the iterator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReader:
    """Reader of one range; picklable, so that it can be sent from the driver to the workers."""

    client: ClientConfig
    schema: pa.Schema
    include_batches: bool
    fail_on_data_loss: bool
    max_opened_bytes: int
    on_bad_batch: BadBatch = BadBatch.FAIL
    consumer: ConsumerConfig = READ_COMMITTED

    def read(self, topic: str, loaded: OffsetRange, *, begin: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `loaded` in the order of their offsets.

        `begin` is the start of the planned range that was split into `loaded` and others: a batch that cannot be
        opened belongs to the range in which it begins to be read.

        Raises DataLossError if the log start offset is beyond the range's start (with `fail_on_data_loss`),
        CorruptBatchError with BadBatch.FAIL, the consumer's errors, and DeadlineExceededError if nothing came for
        IDLE_LIMIT_S.
        """
        reading = _Reading(self, topic, loaded, loaded.start if begin is None else begin)
        thread = threading.Thread(target=reading.run, name=f"read-{topic}", daemon=True)
        thread.start()
        try:
            yield from reading.handover.batches()
        finally:
            reading.handover.stop()
            thread.join()


class _Reading:
    """Range that is being read, in a thread of its own."""

    def __init__(self, reader: RangeReader, topic: str, loaded: OffsetRange, begin: int) -> None:
        self.handover = _Handover()
        self._reader = reader
        self._topic_partition = TopicPartition(topic, loaded.partition)
        self._range = loaded
        self._begin = begin
        self._row_count = 0
        self._aborted = AbortedTally(loaded.partition, loaded.start, loaded.end)
        self._refused: bytes | None = None
        """Batch that the consumer refused last, and which is read a second time before it counts as damaged."""
        self._is_refusal_final = False

    def run(self) -> None:
        try:
            trio.run(self._pump)
        except _StoppedError:
            return
        except BaseException as error:
            self.handover.put_last(error)
        else:
            self.handover.put_last(None)

    async def _pump(self) -> None:
        reader, loaded, partition = self._reader, self._range, self._topic_partition
        last_header: bytes | None = None
        async with open_cluster(reader.client) as cluster, open_consumer(cluster, reader.consumer) as consumer:
            await cluster.topic(partition.topic)
            consumer.assign({partition: loaded.start})
            position = loaded.start
            idle_since = trio.current_time()
            while position < loaded.end:
                try:
                    fetched = await consumer.poll_batches()
                except PartitionOffsetOutOfRangeError as error:
                    position = self._follow_log_start(consumer, error)
                    continue
                except PartitionBatchError as error:
                    position = await self._refuse(consumer, error)
                    continue
                for batches in fetched:
                    position = batches.next_offset
                    last_header = last_header_before(batches.data, loaded.end) or last_header
                    idle_since = trio.current_time()
                    await trio.to_thread.run_sync(self.open, batches)
                if trio.current_time() - idle_since > IDLE_LIMIT_S:
                    reason = f"nothing came after offset {position} for 120 s"
                    raise DeadlineExceededError(f"{partition.topic} {loaded}: {reason}")
        if reader.include_batches:
            number, end, rows = loaded.partition, loaded.end, self._row_count
            aborted = self._aborted.encode()
            self.handover.put(end_of_range(partition.topic, number, end, rows, reader.schema, last_header, aborted))

    def _follow_log_start(self, consumer: Consumer, error: PartitionOffsetOutOfRangeError) -> int:
        """Continue at the log start offset and return it. Raises DataLossError if that is loss, or no way to continue.

        The log start offset may be behind the range: then nothing of it is left.
        """
        missing_end = min(max(error.log_start_offset, error.requested), self._range.end)
        missing = OffsetRange(partition=self._range.partition, start=error.requested, end=missing_end)
        if self._reader.fail_on_data_loss or error.requested > error.log_end_offset:
            reason = f"gone while it was read: {error}"
            raise DataLossError(self._topic_partition.topic, missing, reason) from error
        topic, partition = self._topic_partition
        place = {"topic": topic, "partition": partition, "start": missing.start, "end": missing.end}
        logger.warning("offsets_lost", reason="deleted while they were read", **place)
        consumer.seek(self._topic_partition, error.log_start_offset)
        return error.log_start_offset

    async def _refuse(self, consumer: Consumer, error: PartitionBatchError) -> int:
        """Treat a batch with a wrong checksum, and return the offset to continue at.

        The batch is read twice, since it may have been damaged on its way. Raises the error if the broker does not
        send the batch, so that nobody can tell what is missing.
        """
        if error.batch is None:
            raise error
        batch = error.batch.tobytes()
        if batch != self._refused:
            self._refused, self._is_refusal_final = batch, False
            consumer.seek(self._topic_partition, error.offset)
            return error.offset
        if not self._is_refusal_final:  # a batch whose end is not sure is met again at its later offsets
            self._is_refusal_final = True
            await trio.to_thread.run_sync(self._take_bad, memoryview(batch), error.cause)
        return consumer.skip_batch(self._topic_partition)

    def open(self, batches: FetchedBatches) -> None:
        """Hand over the rows of fetched batches. Waits in a thread for memory and room."""
        for header in aborted_batches(batches):
            self._aborted.add(header)
        data = committed_data(batches)
        start = max(self._range.start, batches.position)
        with suppress(CorruptBatchError):
            for columns in self._opened(data):
                self._hand_over(columns, start)
                start = max(start, columns.next_offset or 0)
            return
        # After the error, which would keep the opened payloads alive: batch by batch what was not handed over.
        for position, header in iterate_headers(data):
            if header.next_offset <= start:
                continue
            batch = data[position : position + header.size_bytes]
            try:
                for columns in self._opened(batch):
                    self._hand_over(columns, start)
            except CorruptBatchError as error:
                self._take_bad(batch, error)

    def _opened(self, data: memoryview) -> Iterator[RecordColumns]:
        max_batch_bytes = self._reader.max_opened_bytes
        for portion in batch_portions(data):
            yield from open_in_portions(portion, max_batch_bytes=max_batch_bytes, portion_bytes=PORTION_PLAIN_BYTES)

    def _hand_over(self, columns: RecordColumns, start: int) -> None:
        topic, partition = self._topic_partition
        for part in handed_slices(columns.between(start, self._range.end)):
            rows = to_rows(part, topic, partition, self._reader.schema)
            self._row_count += rows.num_rows
            self.handover.put(rows)

    def _take_bad(self, batch: memoryview, error: Exception) -> None:
        """Treat a batch that cannot be opened, as the reader's setting says."""
        topic, partition = self._topic_partition
        header = read_header(batch)
        reason = error.reason if isinstance(error, CorruptBatchError) else str(error)
        if isinstance(error, OpenedBatchTooLargeError):
            reason += "; raise max.opened.bytes of the load (maxOpenedBytes of the source)"
        reader = self._reader
        begins_at = max(header.base_offset, self._begin)
        if reader.on_bad_batch is BadBatch.FAIL:
            advice = "option onBadBatch=skip of the source continues after such batches"
            raise CorruptBatchError(f"{topic}-{partition}: {reason} ({advice})", header.base_offset)
        if not self._range.start <= begins_at < self._range.end:
            return  # another task takes it
        if reader.on_bad_batch is BadBatch.SKIP:
            place = {"topic": topic, "partition": partition, "offset": begins_at, "next_offset": header.next_offset}
            logger.warning("bad_batch_skipped", reason=reason, **place)
            return
        for rows in fault_rows(batch, topic, partition, self._begin, reason, reader.schema):
            self._row_count += rows.column("batch_records").to_pylist()[0]
            self.handover.put(rows)


def batch_portions(data: memoryview) -> Iterator[memoryview]:
    """Cut whole batches into parts that are opened one after another, so that few opened records are in memory."""
    start = records = 0
    for position, header in iterate_headers(data):
        is_large = header.codec is not Codec.NONE and position + header.size_bytes - start > PORTION_BYTES
        if position > start and (is_large or records + header.record_count > PORTION_RECORDS):
            yield data[start:position]
            start, records = position, 0
        records += header.record_count
    yield data[start:]


def handed_slices(columns: RecordColumns) -> Iterator[RecordColumns]:
    """Cut records, in log order, into parts of about HANDED_BYTES, so that few copies wait to be taken."""
    headers = np.concatenate(([0], np.cumsum(columns.header_key.length + columns.header_value.length, dtype=np.int64)))
    ends = np.cumsum(columns.key.length + columns.value.length, dtype=np.int64) + headers[columns.header_index[1:]]
    ends -= headers[columns.header_index[0]]
    first = 0
    while first < len(columns):
        room = HANDED_BYTES + (int(ends[first - 1]) if first else 0)
        last = max(first + 1, int(np.searchsorted(ends, room)))
        end = int(columns.offset[last]) if last < len(columns) else int(columns.offset[-1]) + 1
        yield columns.between(int(columns.offset[first]), end)
        first = last


class _Handover:
    """A bounded queue between the thread and the iterator; either side may end it."""

    def __init__(self) -> None:
        self._queue: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(QUEUED_BATCHES)
        self._stopped = threading.Event()

    def put(self, item: pa.RecordBatch | BaseException | None) -> None:
        while not self._stopped.is_set():
            with suppress(queue.Full):
                self._queue.put(item, timeout=_HANDOVER_POLL_S)
                return
        raise _StoppedError

    def put_last(self, item: BaseException | None) -> None:
        with suppress(_StoppedError):
            self.put(item)

    def stop(self) -> None:
        self._stopped.set()

    def batches(self) -> Iterator[pa.RecordBatch]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
