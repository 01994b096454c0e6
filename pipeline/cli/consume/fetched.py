"""Opens fetched batches for printing: record by record, or as columns where there are many.

Invariants: control batches are left out, and records before the position or from the end on. A batch that cannot be
opened raises UnopenedBatchError, after the batches before it.
"""

from collections.abc import AsyncGenerator

from pipeline.client.consumer.errors import PartitionBatchError
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.consumer.opening import open_payload
from pipeline.errors import CorruptBatchError
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.records.opening import open_uncharged
from pipeline.records.record import Record, records_of_payload


class UnopenedBatchError(Exception):
    """A batch cannot be opened: `offset` is the first offset that is missing, `next_offset` the one after the batch."""

    def __init__(self, topic_partition: TopicPartition, cause: Exception, offset: int, next_offset: int) -> None:
        super().__init__(f"{topic_partition}: {cause}")
        self.topic_partition = topic_partition
        self.cause = cause
        self.offset = offset
        self.next_offset = next_offset


def unopened_batch(error: PartitionBatchError) -> UnopenedBatchError:
    """Return the error of a batch that the consumer refused, without its advice for programs."""
    return UnopenedBatchError(error.topic_partition, error.cause, error.offset, error.next_offset)


async def opened_batches(
    fetched: FetchedBatches, start: int, end: float, max_batch_bytes: int
) -> AsyncGenerator[tuple[BatchHeader, bytes]]:
    """Yield each batch with records from offset `start` to before `end`, opened. Raises UnopenedBatchError,
    MemoryExhaustedError.
    """
    for position, header in iterate_headers(fetched.data):
        if header.next_offset <= start or header.base_offset >= end or header.is_control:
            continue
        try:
            payload = open_uncharged(fetched.data, position, header, max_batch_bytes)
            if payload is not None:
                yield header, payload
                continue
            charge, payload = await open_payload(fetched.data, position, header, max_batch_bytes)
            with charge:
                yield header, payload
        except CorruptBatchError as error:
            raise _unopened(fetched, error, start, header) from error


def records_between(
    fetched: FetchedBatches, payload: bytes, header: BatchHeader, start: int, end: float
) -> list[Record]:
    """Return the records of an opened batch from offset `start` to before `end`. Raises UnopenedBatchError."""
    try:
        return [record for record in records_of_payload(payload, header) if start <= record.offset < end]
    except CorruptBatchError as error:
        raise _unopened(fetched, error, start, header) from error


def _unopened(fetched: FetchedBatches, error: Exception, start: int, header: BatchHeader) -> UnopenedBatchError:
    return UnopenedBatchError(fetched.topic_partition, error, max(start, header.base_offset), header.next_offset)
