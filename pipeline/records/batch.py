"""Header of a record batch, format v2 (KIP-98; `DefaultRecordBatch` in Apache Kafka): read, checked, patched.

The payload stays closed: nothing is decompressed and no record is read. Layout, big-endian:

    base_offset int64 | batch_length int32 | partition_leader_epoch int32 | magic int8 | crc uint32 |
    attributes int16 | last_offset_delta int32 | base_timestamp int64 | max_timestamp int64 |
    producer_id int64 | producer_epoch int16 | base_sequence int32 | record_count int32 | records

Invariants:
- `batch_length` counts the bytes behind it; the CRC-32C covers all bytes from `attributes` on. So base offset and
  leader epoch are patched in place without a new checksum; a patch behind them needs one.
- Bytes that are no batch raise CorruptBatchError, and no other error.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from pipeline.errors import BatchTooLargeError, CorruptBatchError, InvalidRecordError
from pipeline.model import MAX_INT64
from pipeline.records.compression import Codec, ReadableBuffer

WritableBuffer = bytearray | memoryview

HEADER_SIZE = 61
LOG_OVERHEAD = 12
MAGIC = 2
MIN_RECORD_SIZE = 7
MAX_PRODUCED_RECORDS = (1 << 30) // MIN_RECORD_SIZE
"""Bound of records in one request for one partition, since a compressed batch can claim any number. It is above any
batch that may be opened, and below the offsets of a segment, which lie within 2^31 of its base offset."""
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
MAX_SEQUENCE = 2**31 - 1
"""The sequence number after which 0 follows."""
NO_TIMESTAMP = -1
DELETE_HORIZON = 0x40
"""Attribute bit: the base timestamp is the time after which tombstones may be removed (KIP-534)."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_LENGTH_POSITION = 8
_LEADER_EPOCH_POSITION = 12
_CRC_POSITION = 17
CHECKED_FROM = 21
"""Position in a batch from which the checksum covers all bytes: the attributes."""
_MAX_TIMESTAMP_POSITION = 35

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class TimestampType(IntEnum):
    """Source of a batch's timestamps: the producer, or the broker on append (KIP-32)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The 61 bytes before the records of a batch, fields in wire order. Timestamps in ms since 1970 UTC.

    A tuple, because a broker makes one or two for each batch, straight from `struct`.
    """

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
        """Size of header and records."""
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
        """Codec of the records. Raises CorruptBatchError for a codec that Kafka does not know."""
        number = self.attributes & _CODEC_MASK
        if number > Codec.ZSTD:
            raise CorruptBatchError(f"unknown compression codec {number}", self.base_offset)
        return Codec(number)

    @property
    def is_compressed(self) -> bool:
        """True if the records are compressed, even with a codec that Kafka does not know."""
        return bool(self.attributes & _CODEC_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        """Timestamp type; with LOG_APPEND_TIME all records have `max_timestamp`."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & _LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """True if the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if the batch holds a control record (a transaction marker), not data."""
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; after 2^31-1 follows 0. NO_SEQUENCE without a sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE


_NEW_HEADER = partial(tuple.__new__, BatchHeader)


def header_bytes(header: BatchHeader) -> bytes:
    """Return the 61 bytes of a header as they are in a log."""
    return _HEADER.pack(*header)


def read_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """Return the header at `position`. The records may be missing; the checksum is not verified.

    Raises CorruptBatchError if the bytes cannot be a v2 header (older formats included).
    """
    if len(buffer) - position < HEADER_SIZE:
        raise CorruptBatchError(f"{len(buffer) - position} bytes are too few for a batch header")
    header = _NEW_HEADER(_HEADER.unpack_from(buffer, position))
    base_offset, batch_length, last_offset_delta = header.base_offset, header.batch_length, header.last_offset_delta
    if header.magic != MAGIC:
        raise CorruptBatchError(f"message format {header.magic}, only {MAGIC} is known", base_offset)
    if batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptBatchError(f"batch length {batch_length} is less than a header's", base_offset)
    if last_offset_delta < 0 or not 0 <= base_offset < MAX_INT64 - last_offset_delta:
        raise CorruptBatchError(f"impossible offsets, last offset delta {last_offset_delta}", base_offset)
    if not 0 <= header.record_count <= last_offset_delta + 1:
        raise CorruptBatchError(
            f"{header.record_count} records with last offset delta {last_offset_delta}", base_offset
        )
    return header


def iterate_headers(buffer: ReadableBuffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch. Stops before a partial last batch, as in Fetch responses."""
    position = 0
    while len(buffer) - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        if header.size_bytes > len(buffer) - position:
            return
        yield position, header
        position += header.size_bytes


def whole_batches(buffer: ReadableBuffer) -> int:
    """Return the size of the leading whole batches, by their lengths alone. Raises CorruptBatchError."""
    position = 0
    while len(buffer) - position >= HEADER_SIZE:
        length = _LENGTH.unpack_from(buffer, position + _LENGTH_POSITION)[0]
        if length < HEADER_SIZE - LOG_OVERHEAD:
            raise CorruptBatchError(f"batch length {length} is less than a header's")
        if length + LOG_OVERHEAD > len(buffer) - position:
            break
        position += length + LOG_OVERHEAD
    return position


def take_batches(buffer: ReadableBuffer, start: int, at_most: int) -> tuple[int, int]:
    """Return the end of the first whole batches from `start` on, and their number, by their lengths alone."""
    position = start
    for count in range(at_most):
        if len(buffer) - position < HEADER_SIZE:
            return position, count
        size_bytes = _LENGTH.unpack_from(buffer, position + _LENGTH_POSITION)[0] + LOG_OVERHEAD
        if not HEADER_SIZE <= size_bytes <= len(buffer) - position:
            return position, count
        position += size_bytes
    return position, at_most


def place_batch(buffer: WritableBuffer, position: int, base_offset: int, leader_epoch: int) -> BatchHeader:
    """Patch base offset and leader epoch, which the checksum does not cover. Return the new header."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + _LEADER_EPOCH_POSITION, leader_epoch)
    return _NEW_HEADER(_HEADER.unpack_from(buffer, position))


def set_base_offset(buffer: WritableBuffer, position: int, offset: int) -> None:
    """Patch the base offset, which the checksum does not cover."""
    _OFFSET.pack_into(buffer, position, offset)


def set_log_append_time(buffer: WritableBuffer, position: int, timestamp_ms: int) -> BatchHeader:
    """Make `timestamp_ms` the timestamp of all records of a batch and renew the checksum. Return the new header."""
    header = read_header(buffer, position)
    struct.pack_into(">h", buffer, position + CHECKED_FROM, header.attributes | _LOG_APPEND_TIME)
    struct.pack_into(">q", buffer, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    write_crc(buffer, position, header.size_bytes)
    return read_header(buffer, position)


def write_header(buffer: WritableBuffer, header: BatchHeader) -> None:
    """Write a header at the start of a buffer that holds exactly its batch. The checksum is computed."""
    _HEADER.pack_into(buffer, 0, *header._replace(crc=0))
    write_crc(buffer, 0, header.size_bytes)


def write_crc(buffer: WritableBuffer, position: int, size_bytes: int) -> None:
    """Renew the checksum of the batch at `position`."""
    _CRC.pack_into(buffer, position + _CRC_POSITION, _compute_crc(buffer, position, size_bytes))


def verify_crc(buffer: ReadableBuffer, position: int, header: BatchHeader) -> None:
    """Verify that the batch is whole and its checksum right. Raises CorruptBatchError."""
    size_bytes = header.batch_length + LOG_OVERHEAD
    if size_bytes > len(buffer) - position:
        raise CorruptBatchError(f"{len(buffer) - position} bytes of a batch of {size_bytes}", header.base_offset)
    verify_checksum(buffer, position, size_bytes)


def verify_checksum(buffer: ReadableBuffer, position: int, size_bytes: int) -> None:
    """Verify the checksum of the whole batch at `position`. Raises CorruptBatchError."""
    (crc,) = _CRC.unpack_from(buffer, position + _CRC_POSITION)
    computed = _compute_crc(buffer, position, size_bytes)
    if crc != computed:
        (offset,) = _OFFSET.unpack_from(buffer, position)
        raise CorruptBatchError(f"checksum {crc:#010x}, computed {computed:#010x}", offset)


def validate_for_append(
    buffer: ReadableBuffer, *, max_batch_bytes: int, keep_offsets: bool = False
) -> list[BatchHeader]:
    """Return the headers of the batches that fill `buffer`, checked as on Produce (Kafka's LogValidator).

    A producer's batch starts at offset 0, has a record for every offset and a payload, and is no control batch; all
    batches have at most MAX_PRODUCED_RECORDS. With `keep_offsets` (copies of another log) offsets must rise from batch
    to batch, while gaps, control batches and batches without payload are accepted.
    Raises CorruptBatchError; for a sound batch BatchTooLargeError, or InvalidRecordError if no producer may send it.
    """
    headers: list[BatchHeader] = []
    position = 0
    next_offset = record_count = 0
    while position < len(buffer):
        header = read_header(buffer, position)
        size_bytes = header.batch_length + LOG_OVERHEAD
        if size_bytes > max_batch_bytes:
            raise BatchTooLargeError(size_bytes, max_batch_bytes, header.base_offset)
        verify_crc(buffer, position, header)
        codec = header.attributes & _CODEC_MASK
        if codec > Codec.ZSTD:
            raise CorruptBatchError(f"unknown compression codec {codec}", header.base_offset)
        least_bytes = header.record_count * MIN_RECORD_SIZE if not codec else not keep_offsets
        if size_bytes - HEADER_SIZE < least_bytes:
            raise CorruptBatchError(
                f"{header.record_count} records in {size_bytes - HEADER_SIZE} bytes", header.base_offset
            )
        if not keep_offsets:
            _validate_of_producer(header)
            record_count += header.record_count
        elif header.base_offset < next_offset:
            raise CorruptBatchError(f"follows a batch that ends at offset {next_offset - 1}", header.base_offset)
        next_offset = header.base_offset + header.last_offset_delta + 1
        headers.append(header)
        position += size_bytes
    if not headers:
        raise CorruptBatchError("no batch")
    if record_count > MAX_PRODUCED_RECORDS:
        raise InvalidRecordError(f"{record_count} records, at most {MAX_PRODUCED_RECORDS} may be sent at once", 0)
    return headers


def _validate_of_producer(header: BatchHeader) -> None:
    if header.base_offset != 0:
        raise InvalidRecordError("a producer's batch must start at offset 0", header.base_offset)
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(f"{header.record_count} records with last offset delta {header.last_offset_delta}", 0)
    if header.attributes & CONTROL:
        raise InvalidRecordError("producers must not write control batches", 0)
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise InvalidRecordError(f"producer {header.producer_id} without epoch or sequence number", 0)


def _compute_crc(buffer: ReadableBuffer, position: int, size_bytes: int) -> int:
    return crc32c(memoryview(buffer)[position + CHECKED_FROM : position + size_bytes])
