"""What a broker does to a batch whose topic wants more than a look at the header: compress it anew, scan its records.

Invariants: a batch stays one batch; offsets, timestamps, keys, values, headers and the producer's fields are the same
bytes as before, in another codec; whatever is wrong with the payload is a CorruptBatchError.
"""

from collections.abc import Iterator

from pipeline.errors import CorruptBatchError
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, TimestampType, write_header
from pipeline.records.compression import Codec, ReadableBuffer, compress, decompress

_CODEC_MASK = 0x07
_LEAST_RECORD_BYTES = 6


def open_payload(batch: ReadableBuffer, header: BatchHeader, max_bytes: int) -> ReadableBuffer:
    """The records of the one batch in the buffer, uncompressed."""
    return decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size_bytes], max_bytes)


def close_payload(payload: ReadableBuffer, header: BatchHeader, codec: Codec, level: int | None) -> bytearray:
    """A batch of these records under the same header, in another codec."""
    batch = bytearray(HEADER_SIZE)
    batch += compress(codec, payload, level)
    attributes = header.attributes & ~_CODEC_MASK | codec
    write_header(batch, header._replace(batch_length=len(batch) - LOG_OVERHEAD, attributes=attributes))
    return batch


def scan_records(payload: bytes, header: BatchHeader) -> Iterator[tuple[int, bool]]:
    """Of each record its timestamp and whether it has a key, without making anything of the rest."""
    position = 0
    base_timestamp = header.base_timestamp
    fixed = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    try:
        for delta in range(header.record_count):
            length, position = _varint(payload, position)
            end = position + length
            if length < _LEAST_RECORD_BYTES or end > len(payload):
                raise CorruptBatchError("a record is longer than its batch", header.base_offset)
            timestamp, position = _varint(payload, position + 1)
            offset_delta, position = _varint(payload, position)
            if offset_delta != delta:
                raise CorruptBatchError(f"offset delta {offset_delta} at record {delta}", header.base_offset)
            key_length, position = _varint(payload, position)
            if position + max(key_length, 0) >= end:
                raise CorruptBatchError("a key is longer than its record", header.base_offset)
            yield base_timestamp + timestamp if fixed is None else fixed, key_length >= 0
            position = end
    except IndexError as error:
        raise CorruptBatchError("a record is cut off", header.base_offset) from error
    if position != len(payload):
        raise CorruptBatchError("bytes follow the last record", header.base_offset)


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint and where it ends. Raises IndexError at the end of the bytes."""
    byte = payload[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = payload[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > 63:
            raise CorruptBatchError("a number is too long")
