"""The header of a record batch, format v2 (KIP-98; `DefaultRecordBatch` in Apache Kafka): read, checked, patched.

The payload stays closed here: nothing is decompressed and no record is looked at. Layout, big-endian:

    base_offset int64 | batch_length int32 | partition_leader_epoch int32 | magic int8 | crc uint32 |
    attributes int16 | last_offset_delta int32 | base_timestamp int64 | max_timestamp int64 |
    producer_id int64 | producer_epoch int16 | base_sequence int32 | record_count int32 | records

Invariants:
- `batch_length` counts what follows it; the CRC-32C covers all from `attributes` on. So base offset and leader epoch
  are patched in place and the checksum stays true; a patch behind them renews it.
- Bytes that are no batch raise CorruptBatchError, never anything else.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from crc32c import crc32c

from pipeline.errors import BatchTooLargeError, CorruptBatchError
from pipeline.records.compression import Codec, ReadableBuffer

WritableBuffer = bytearray | memoryview

HEADER_SIZE = 61
LOG_OVERHEAD = 12
MAGIC = 2
MIN_RECORD_SIZE = 7
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
_LEADER_EPOCH_POSITION = 12
_CRC_POSITION = 17
_ATTRIBUTES_POSITION = 21
_MAX_TIMESTAMP_POSITION = 35

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1


class TimestampType(IntEnum):
    """Who set the timestamps of a batch: the producer, or the broker on append (KIP-32)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The 61 bytes before the records of a batch, fields in wire order. Timestamps in ms since 1970 UTC."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header and records."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also when compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the records are compressed. Raises CorruptBatchError for a codec Kafka does not know."""
        number = self.attributes & _CODEC_MASK
        if number > Codec.ZSTD:
            raise CorruptBatchError(f"unknown compression codec {number}", self.base_offset)
        return Codec(number)

    @property
    def timestamp_type(self) -> TimestampType:
        """With LOG_APPEND_TIME all records bear `max_timestamp`."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & _LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Holds a transaction marker or the like, no user's records."""
        return bool(self.attributes & _CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; after 2^31-1 follows 0. NO_SEQUENCE without a sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & _MAX_INT32


def read_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """The header at `position`; the records behind it may be missing and the checksum is not looked at.

    Raises CorruptBatchError where the bytes cannot be a v2 header (older formats included).
    """
    if len(buffer) - position < HEADER_SIZE:
        raise CorruptBatchError(f"{len(buffer) - position} bytes are too few for a batch header")
    header = BatchHeader(*_HEADER.unpack_from(buffer, position))
    base_offset = header.base_offset
    if header.magic != MAGIC:
        raise CorruptBatchError(f"message format {header.magic}, only {MAGIC} is known", base_offset)
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptBatchError(f"batch length {header.batch_length} is less than a header's", base_offset)
    if header.last_offset_delta < 0 or not 0 <= base_offset <= _MAX_INT64 - header.last_offset_delta - 1:
        raise CorruptBatchError(f"impossible offsets, last offset delta {header.last_offset_delta}", base_offset)
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptBatchError(
            f"{header.record_count} records with last offset delta {header.last_offset_delta}", base_offset
        )
    return header


def iterate_headers(buffer: ReadableBuffer) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch as (position, header). Stops before a partial trailing batch, as Fetch responses have."""
    position = 0
    while len(buffer) - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        if header.size_bytes > len(buffer) - position:
            return
        yield position, header
        position += header.size_bytes


def whole_batches(buffer: ReadableBuffer) -> int:
    """How many leading bytes are whole batches, by their lengths alone."""
    position = 0
    while len(buffer) - position >= HEADER_SIZE:
        length = _LENGTH.unpack_from(buffer, position + _LENGTH_POSITION)[0]
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise CorruptBatchError(f"batch length {length} is less than a header's")
        if length + LOG_OVERHEAD > len(buffer) - position:
            break
        position += length + LOG_OVERHEAD
    return position


def set_base_offset(buffer: WritableBuffer, position: int, offset: int) -> None:
    """Patch the offset of the batch's first record; the checksum does not cover it."""
    struct.pack_into(">q", buffer, position, offset)


def set_leader_epoch(buffer: WritableBuffer, position: int, epoch: int) -> None:
    """Patch the epoch of the leader that appends the batch; the checksum does not cover it."""
    struct.pack_into(">i", buffer, position + _LEADER_EPOCH_POSITION, epoch)


def set_log_append_time(buffer: WritableBuffer, position: int, timestamp_ms: int) -> BatchHeader:
    """Make `timestamp_ms` the timestamp of all records of a batch and renew the checksum. Returns the new header."""
    header = read_header(buffer, position)
    struct.pack_into(">h", buffer, position + _ATTRIBUTES_POSITION, header.attributes | _LOG_APPEND_TIME)
    struct.pack_into(">q", buffer, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    write_crc(buffer, position, header.size_bytes)
    return read_header(buffer, position)


def write_header(buffer: WritableBuffer, header: BatchHeader) -> None:
    """Write a header at the start of a buffer that holds exactly its batch. The checksum is computed, not taken."""
    _HEADER.pack_into(
        buffer,
        0,
        header.base_offset,
        header.batch_length,
        header.partition_leader_epoch,
        header.magic,
        0,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
    )
    write_crc(buffer, 0, header.size_bytes)


def write_crc(buffer: WritableBuffer, position: int, size_bytes: int) -> None:
    """Renew the checksum of the batch at `position`."""
    struct.pack_into(">I", buffer, position + _CRC_POSITION, _compute_crc(buffer, position, size_bytes))


def verify_crc(buffer: ReadableBuffer, position: int, header: BatchHeader) -> None:
    """Raises CorruptBatchError unless the batch is whole and its checksum true."""
    if header.size_bytes > len(buffer) - position:
        raise CorruptBatchError(f"{len(buffer) - position} bytes of a batch of {header.size_bytes}", header.base_offset)
    crc = _compute_crc(buffer, position, header.size_bytes)
    if crc != header.crc:
        raise CorruptBatchError(f"checksum {header.crc:#010x}, computed {crc:#010x}", header.base_offset)


def validate_for_append(
    buffer: ReadableBuffer, *, max_batch_bytes: int, keep_offsets: bool = False
) -> list[BatchHeader]:
    """The headers of the batches that fill `buffer`, checked as a broker does on Produce (Kafka's LogValidator).

    A producer's batch starts at offset 0, has a record for every offset and is no control batch. With `keep_offsets`
    (copies of another log) offsets must rise from batch to batch, while gaps and control batches are let through.
    Raises CorruptBatchError; one whose size alone is wrong is a BatchTooLargeError.
    """
    headers: list[BatchHeader] = []
    position = 0
    next_offset = 0
    while position < len(buffer):
        header = read_header(buffer, position)
        if header.size_bytes > max_batch_bytes:
            raise BatchTooLargeError(header.size_bytes, max_batch_bytes, header.base_offset)
        verify_crc(buffer, position, header)
        _validate_payload_size(header)
        if not keep_offsets:
            _validate_of_producer(header)
        elif header.base_offset < next_offset:
            raise CorruptBatchError(f"follows a batch that ends at offset {next_offset - 1}", header.base_offset)
        next_offset = header.next_offset
        headers.append(header)
        position += header.size_bytes
    if not headers:
        raise CorruptBatchError("no batch")
    return headers


def _validate_payload_size(header: BatchHeader) -> None:
    payload_bytes = header.size_bytes - HEADER_SIZE
    if header.codec is Codec.NONE and payload_bytes < header.record_count * MIN_RECORD_SIZE:
        raise CorruptBatchError(f"{header.record_count} records in {payload_bytes} bytes", header.base_offset)


def _validate_of_producer(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise CorruptBatchError("a producer's batch must start at offset 0", header.base_offset)
    if header.record_count != header.last_offset_delta + 1:
        raise CorruptBatchError(f"{header.record_count} records with last offset delta {header.last_offset_delta}", 0)
    if header.is_control:
        raise CorruptBatchError("producers must not write control batches", 0)
    if header.producer_id != NO_PRODUCER_ID and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise CorruptBatchError(f"producer {header.producer_id} without epoch or sequence number", header.base_offset)


def _compute_crc(buffer: ReadableBuffer, position: int, size_bytes: int) -> int:
    with memoryview(buffer) as view:
        return crc32c(view[position + _ATTRIBUTES_POSITION : position + size_bytes])
