"""Batches as a producer may send them, from the batches of a source.

Kafka's brokers accept from an idempotent producer (`LogValidator`, `ProducerAppendInfo`) a data batch that begins at
offset 0, has a record for every offset, times of its producer, and the next sequence number. So a batch of the source
gets another header, and its records stay closed. Batches without records for all their offsets (compaction, an offset
within the batch), and batches whose records have the time of the source's append, are opened and built again: their
records would not be accepted, or not have the same times.

Invariants:
- The records of a source, in order, with key, value, headers and time as a consumer of the source reads them, are the
  records of the batches that are returned. Markers and records of aborted transactions are left out.
- A batch of the source becomes one batch, or none.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.client.consumer.committed_batches import committed_batches
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.records.batch import (
    LOG_OVERHEAD,
    BatchHeader,
    TimestampType,
    read_header,
    write_header,
)
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import ReadableBuffer
from pipeline.records.record import records_of_batch

NO_LEADER_EPOCH = -1
_CODEC_MASK = 0x07
_ANY_SIZE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A batch to append: the bytes whose header is rewritten, and the offset of the source behind the batch."""

    data: ReadableBuffer
    records: int
    next_offset: int

    def rewritten(self, producer_id: int, producer_epoch: int, sequence: int) -> bytearray:
        """Return the bytes to send. The checksum is computed, and no record is opened."""
        batch = bytearray(self.data)
        header = read_header(batch)
        write_header(
            batch,
            header._replace(
                base_offset=0,
                batch_length=len(batch) - LOG_OVERHEAD,
                partition_leader_epoch=NO_LEADER_EPOCH,
                attributes=header.attributes & _CODEC_MASK,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
            ),
        )
        return batch


def outgoing_batches(fetched: FetchedBatches) -> Iterator[OutgoingBatch]:
    """Yield the batches to append for fetched ones. Raises CorruptBatchError for a batch that cannot be opened."""
    for start, header in committed_batches(fetched):
        if header.is_control or header.record_count == 0:
            continue
        is_whole = header.record_count == header.last_offset_delta + 1 and header.base_offset >= fetched.position
        if is_whole and header.timestamp_type is TimestampType.CREATE_TIME:
            data = fetched.data[start : start + header.size_bytes]
            yield OutgoingBatch(data, header.record_count, header.next_offset)
        else:
            rebuilt = _rebuilt(fetched, start, header)
            if rebuilt is not None:
                yield rebuilt


def _rebuilt(fetched: FetchedBatches, start: int, header: BatchHeader) -> OutgoingBatch | None:
    """Return a batch of the records from the position on; None if there are none."""
    builder = BatchBuilder(header.codec, _ANY_SIZE)
    for record in records_of_batch(fetched.data, start, header):
        if record.offset >= fetched.position:
            builder.append(record.key, record.value, record.headers, record.timestamp_ms)
    if not builder.record_count:
        return None
    records = builder.record_count
    return OutgoingBatch(builder.build(), records, header.next_offset)
