"""Records as objects, for callers that ask for objects; the pure-Python twin of `kernels.py`.

Invariants: both read the same bytes as the same records and refuse the same bytes with CorruptBatchError; offsets rise
within a batch and stay within its header's last offset; a record fills its stated length exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap

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

RecordFields = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]
"""The fields of a Record, in its order."""

_NULL = 1
_LONG_OR_NEGATIVE = 0x4001
"""Bits of an encoded number of up to two bytes: more bytes follow, or it is negative."""
_LONG_TIMESTAMP = 1 << 21
"""Above all encoded numbers of up to three bytes."""


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
    return starmap(Record, fields_of_payload(payload, header))


def fields_of_payload(payload: bytes, header: BatchHeader) -> Iterator[RecordFields]:  # noqa: PLR0915
    """Yield the fields of the records of an opened batch, without an object for each. Raises CorruptBatchError.

    Numbers of few bytes are decoded in place. `_Reader` decodes all other records, and names what is wrong with one.
    Positions only rise here, so a record that ends where its length says was read within its bounds.
    """
    reader, size = _Reader(payload, header), len(payload)
    if header.record_count * MIN_RECORD_SIZE > size:
        raise reader.corrupt(f"{header.record_count} records in {size} bytes")
    base_offset, base_timestamp, highest_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
    fixed_timestamp = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    last_plain_end = size if MIN_INT64 + _LONG_TIMESTAMP < base_timestamp < MAX_INT64 - _LONG_TIMESTAMP else -1
    end, last_delta = 0, -1
    for _ in range(header.record_count):
        start = position = end
        key = value = None
        headers: tuple[Header, ...] = ()
        try:
            if (length := payload[position]) > 0x7F:
                position += 1
                length += (payload[position] << 7) - 0x80
            end = position + 1 + (length >> 1)
            position += 2  # behind the attributes, of which none is defined
            if (timestamp := payload[position]) > 0x7F:
                position += 1
                timestamp += (payload[position] << 7) - 0x80
                if timestamp > 0x3FFF:
                    position += 1
                    timestamp += (payload[position] << 14) - 0x4000
            position += 1
            if (delta := payload[position]) > 0x7F:
                position += 1
                delta += (payload[position] << 7) - 0x80
            position += 1
            if (key_length := payload[position]) > 0x7F:
                position += 1
                key_length += (payload[position] << 7) - 0x80
            position += 1
            if key_length != _NULL:
                length |= key_length
                key = payload[position : position + (key_length >> 1)]
                position += key_length >> 1
            if (value_length := payload[position]) > 0x7F:
                position += 1
                value_length += (payload[position] << 7) - 0x80
            position += 1
            if value_length != _NULL:
                length |= value_length
                value = payload[position : position + (value_length >> 1)]
                position += value_length >> 1
            is_small = not (length | delta) & _LONG_OR_NEGATIVE and timestamp < _LONG_TIMESTAMP
            is_plain = is_small and position < end <= last_plain_end and last_delta < delta >> 1 <= highest_delta
            if is_plain and payload[position]:
                headers, position = reader.headers(position, end)
            else:
                position += 1
        except IndexError:
            is_plain = False
        if is_plain and position == end:
            last_delta = delta >> 1
            timestamp_ms = base_timestamp + (timestamp >> 1 ^ -(timestamp & 1))
        else:
            last_delta, timestamp_ms, key, value, headers, end = reader.record(start, last_delta)
        if fixed_timestamp is not None:
            timestamp_ms = fixed_timestamp
        yield base_offset + last_delta, timestamp_ms, key, value, headers
    if end != size:
        raise reader.corrupt("bytes follow the last record")


class _Reader:
    """Decodes records of all sorts. Raises CorruptBatchError for what is no record."""

    def __init__(self, payload: bytes, header: BatchHeader) -> None:
        self._payload = payload
        self._header = header
        self._position = 0

    def corrupt(self, reason: str) -> CorruptBatchError:
        return CorruptBatchError(reason, self._header.base_offset)

    def record(
        self, position: int, last_delta: int
    ) -> tuple[int, int, bytes | None, bytes | None, tuple[Header, ...], int]:
        """Return the offset delta of the record at `position`, its other fields, and the position of the next one."""
        header = self._header
        self._position = position
        length = self._varint(len(self._payload), 32)
        end = self._position + length
        if length < 0 or end > len(self._payload):
            raise self.corrupt("a record is longer than its batch")
        self._position += 1  # attributes: none is defined
        timestamp_ms = header.base_timestamp + self._varint(end, 64)
        if not MIN_INT64 <= timestamp_ms <= MAX_INT64:
            raise self.corrupt("a timestamp is out of range")
        offset_delta = self._varint(end, 32)
        if not last_delta < offset_delta <= header.last_offset_delta:
            raise self.corrupt(f"offset delta {offset_delta} follows {last_delta}")
        key = self._bytes(end)
        value = self._bytes(end)
        headers, position = self.headers(self._position, end)
        if position != end:
            raise self.corrupt("a record is shorter than its length")
        return offset_delta, timestamp_ms, key, value, headers, end

    def headers(self, position: int, end: int) -> tuple[tuple[Header, ...], int]:
        """Return the headers of the record that ends at `end`, and the position behind them."""
        self._position = position
        count = self._varint(end, 32)
        if not 0 <= count <= (end - self._position) // 2:
            raise self.corrupt(f"{count} headers in {end - self._position} bytes")
        return tuple(self._record_header(end) for _ in range(count)), self._position

    def _record_header(self, end: int) -> Header:
        key = self._bytes(end)
        if key is None:
            raise self.corrupt("a header without a key")
        return key.decode(errors="replace"), self._bytes(end)

    def _bytes(self, end: int) -> bytes | None:
        length = self._varint(end, 32)
        if length == -1:
            return None
        start = self._position
        stop = start + length
        if length < 0 or stop > end:
            raise self.corrupt("a field is longer than its record")
        self._position = stop
        return self._payload[start:stop]

    def _varint(self, end: int, bits: int) -> int:
        payload = self._payload
        position = self._position
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
        self._position = position
        return (value >> 1) ^ -(value & 1)
