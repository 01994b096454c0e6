"""Records as objects, for callers that ask for objects; the pure-Python twin of `kernels.py`.

Invariants: both read the same bytes as the same records and refuse the same bytes with CorruptBatchError; offsets rise
within a batch and stay within its header's last offset; a record fills its stated length exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.errors import CorruptBatchError
from pipeline.model import MAX_INT64, MIN_INT64
from pipeline.records.batch import (
    HEADER_SIZE,
    MIN_RECORD_SIZE,
    BatchHeader,
    TimestampType,
    iterate_headers,
    verify_crc,
)
from pipeline.records.builder import Header
from pipeline.records.compression import ReadableBuffer, decompress

MAX_UNCOMPRESSED_BYTES = (1 << 30) - 1


@dataclass(frozen=True, slots=True)
class Record:
    """A record. A header key that is not UTF-8 has replacement characters, as in Java clients."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def iterate_records(buffer: ReadableBuffer, *, max_bytes: int = MAX_UNCOMPRESSED_BYTES) -> Iterator[Record]:
    """Yield the records of all whole batches except control batches, with verified checksums. Raises CorruptBatchError.

    `max_bytes` is the bound of an uncompressed batch. A batch that was fetched by an offset within it has records
    before that offset: skip them.
    """
    for position, header in iterate_headers(buffer):
        verify_crc(buffer, position, header)
        if not header.is_control:
            yield from records_of_batch(buffer, position, header, max_bytes=max_bytes)


def records_of_batch(
    buffer: ReadableBuffer, position: int, header: BatchHeader, *, max_bytes: int = MAX_UNCOMPRESSED_BYTES
) -> Iterator[Record]:
    """Return the records of the batch at `position`, whose checksum has been verified."""
    section = memoryview(buffer)[position + HEADER_SIZE : position + header.size_bytes]
    payload = decompress(header.codec, section, max_bytes)
    return records_of_payload(bytes(payload), header)


def records_of_payload(payload: bytes, header: BatchHeader) -> Iterator[Record]:
    """Yield the records of an opened batch. Raises CorruptBatchError."""
    reader = _Reader(payload, header)
    if header.record_count * MIN_RECORD_SIZE > len(payload):
        raise reader.corrupt(f"{header.record_count} records in {len(payload)} bytes")
    for _ in range(header.record_count):
        yield reader.record()
    if reader.position != len(payload):
        raise reader.corrupt("bytes follow the last record")


class _Reader:
    def __init__(self, payload: bytes, header: BatchHeader) -> None:
        self._payload = payload
        self._header = header
        self._fixed_timestamp = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        self._last_offset_delta = -1
        self.position = 0

    def corrupt(self, reason: str) -> CorruptBatchError:
        return CorruptBatchError(reason, self._header.base_offset)

    def record(self) -> Record:
        header = self._header
        length = self._varint(len(self._payload), 32)
        end = self.position + length
        if length < 0 or end > len(self._payload):
            raise self.corrupt("a record is longer than its batch")
        self.position += 1  # attributes: none is defined
        timestamp_ms = header.base_timestamp + self._varint(end, 64)
        if not MIN_INT64 <= timestamp_ms <= MAX_INT64:
            raise self.corrupt("a timestamp is out of range")
        offset_delta = self._varint(end, 32)
        if not self._last_offset_delta < offset_delta <= header.last_offset_delta:
            raise self.corrupt(f"offset delta {offset_delta} follows {self._last_offset_delta}")
        self._last_offset_delta = offset_delta
        key = self._bytes(end)
        value = self._bytes(end)
        headers = self._headers(end)
        if self.position != end:
            raise self.corrupt("a record is shorter than its length")
        if self._fixed_timestamp:
            timestamp_ms = header.max_timestamp
        return Record(header.base_offset + offset_delta, timestamp_ms, key, value, headers)

    def _headers(self, end: int) -> tuple[Header, ...]:
        count = self._varint(end, 32)
        if count == 0:
            return ()
        if not 0 < count <= (end - self.position) // 2:
            raise self.corrupt(f"{count} headers in {end - self.position} bytes")
        return tuple(self._record_header(end) for _ in range(count))

    def _record_header(self, end: int) -> Header:
        key = self._bytes(end)
        if key is None:
            raise self.corrupt("a header without a key")
        return key.decode(errors="replace"), self._bytes(end)

    def _bytes(self, end: int) -> bytes | None:
        length = self._varint(end, 32)
        if length == -1:
            return None
        start = self.position
        stop = start + length
        if length < 0 or stop > end:
            raise self.corrupt("a field is longer than its record")
        self.position = stop
        return self._payload[start:stop]

    def _varint(self, end: int, bits: int) -> int:
        payload = self._payload
        position = self.position
        value = 0
        shift = 0
        while True:
            if position >= end or shift >= bits:
                raise self.corrupt("a number is cut off or too long")
            byte = payload[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if value >> bits:
            raise self.corrupt("a number is too large")
        self.position = position
        return (value >> 1) ^ -(value & 1)
