"""Reads one offset range of one partition as Arrow batches: an async consumer behind a plain iterator.

A thread runs trio and the consumer. Opened batches wait in a queue of a few, so that fetching, opening and handing
over run side by side within bounded memory. Leaving the iterator early ends the thread.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import PartitionOffsetOutOfRangeError
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.errors import CorruptBatchError, DeadlineExceededError, OpenedBatchTooLargeError
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.plan import DataLossError
from pipeline.hadoop.ranges.rows import end_of_range, to_rows
from pipeline.model import TopicPartition
from pipeline.records.columns import open_in_portions

QUEUED_BATCHES = 2
IDLE_LIMIT_S = 120.0
_HANDOVER_POLL_S = 0.2


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

    def read(self, topic: str, loaded: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `loaded` in the order of their offsets.

        Raises DataLossError if the log start offset is beyond the range's start (with `fail_on_data_loss`), the
        consumer's errors, and DeadlineExceededError if nothing came for IDLE_LIMIT_S.
        """
        handover = _Handover()
        thread = threading.Thread(target=self._run, args=(topic, loaded, handover), name=f"read-{topic}", daemon=True)
        thread.start()
        try:
            yield from handover.batches()
        finally:
            handover.stop()
            thread.join()

    def _run(self, topic: str, loaded: OffsetRange, handover: "_Handover") -> None:
        try:
            trio.run(self._pump, topic, loaded, handover)
        except _StoppedError:
            return
        except BaseException as error:
            handover.put_last(error)
        else:
            handover.put_last(None)

    async def _pump(self, topic: str, loaded: OffsetRange, handover: "_Handover") -> None:
        partition = TopicPartition(topic, loaded.partition)
        row_count = 0
        async with open_cluster(self.client) as cluster, open_consumer(cluster, ConsumerConfig()) as consumer:
            await cluster.topic(topic)
            consumer.assign({partition: loaded.start})
            position = loaded.start
            idle_since = trio.current_time()
            while position < loaded.end:
                fetched = await self._poll(consumer, partition, loaded)
                for batches in fetched:
                    position = batches.next_offset
                    idle_since = trio.current_time()
                    row_count += await trio.to_thread.run_sync(self._open, topic, loaded, batches, handover)
                if trio.current_time() - idle_since > IDLE_LIMIT_S:
                    raise DeadlineExceededError(f"{topic} {loaded}: nothing came after offset {position} for 120 s")
        if self.include_batches:
            handover.put(end_of_range(topic, loaded.partition, loaded.end, row_count, self.schema))

    def _open(self, topic: str, loaded: OffsetRange, batches: FetchedBatches, handover: "_Handover") -> int:
        """Hand over fetched batches and return their number of rows. Waits in a thread for memory and room."""
        row_count = 0
        start = max(loaded.start, batches.position)
        try:
            for columns in open_in_portions(batches.data, max_batch_bytes=self.max_opened_bytes):
                rows = to_rows(columns.between(start, loaded.end), topic, loaded.partition, self.schema)
                row_count += rows.num_rows
                if rows.num_rows:
                    handover.put(rows)
        except OpenedBatchTooLargeError as error:
            reason = f"{error.reason}; raise max.opened.bytes of the load (maxOpenedBytes of the source)"
            raise CorruptBatchError(f"{topic}-{loaded.partition}: {reason}", error.offset) from error
        return row_count

    async def _poll(self, consumer: Consumer, partition: TopicPartition, loaded: OffsetRange) -> list[FetchedBatches]:
        try:
            return await consumer.poll_batches()
        except PartitionOffsetOutOfRangeError as error:
            missing_end = min(max(error.log_start_offset, error.requested), loaded.end)
            missing = OffsetRange(partition=loaded.partition, start=error.requested, end=missing_end)
            if self.fail_on_data_loss or error.requested > error.log_end_offset:
                raise DataLossError(partition.topic, missing, f"gone while it was read: {error}") from error
            consumer.seek(partition, error.log_start_offset)
            return []


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
