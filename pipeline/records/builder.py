"""Builder of a batch: each record is encoded once, straight into the batch's buffer, behind space for the header.

Invariants:
- Offsets and timestamps are deltas to the first record's; the batch starts at offset 0, which a broker patches.
- A batch holds at least one record, however large; with more records it never exceeds `max_bytes` before compression.
- `build` gives the buffer away: a builder makes one batch.
- An `append` that raises adds nothing: the other records are whole.

Record layout (KIP-98), all integers zigzag varints: length, attributes int8, timestamp delta, offset delta, key length
(-1: null) and key, value length and value, number of headers, each with key length, key, value length, value.
"""

from collections.abc import Sequence
from operator import index

from pipeline.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    write_header,
)
from pipeline.records.compression import Codec, compress

Header = tuple[str, bytes | None]

MAX_TIMESTAMP_MS = 2**62 - 1
"""Bound of timestamps, positive and negative, so that the difference of two fits into 64 bits."""

_NULL = b"\x01"
_NO_ATTRIBUTES = b"\x00"


def _encode_unsigned(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL_VARINTS = tuple(_encode_unsigned(value << 1) for value in range(8192))


def encode_varint(value: int) -> bytes:
    """Encode a signed integer of up to 64 bits as a zigzag varint."""
    if 0 <= value < 8192:
        return _SMALL_VARINTS[value]
    return _encode_unsigned(value << 1 if value >= 0 else ~(value << 1))


def encode_headers(headers: Sequence[Header]) -> bytes:
    """Encode the headers of a record, their count first. Raises TypeError, ValueError or AttributeError."""
    encoded = bytearray(encode_varint(len(headers)))
    for key, value in headers:
        key_bytes = key.encode()
        encoded += encode_varint(len(key_bytes))
        encoded += key_bytes
        if value is None:
            encoded += _NULL
        else:
            encoded += encode_varint(len(value))
            end = len(encoded) + len(value)
            encoded += value
            if len(encoded) != end:  # an array or a memoryview whose items are not bytes
                raise TypeError("the value of a header must be bytes")
    return bytes(encoded)


class BatchBuilder:
    """Takes records until it is full, then makes a batch. `max_bytes`: the uncompressed bound, header included."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._buffer = bytearray(HEADER_SIZE)
        self._record_count = 0
        self._base_timestamp_ms = 0
        self._max_timestamp_ms = 0
        self._last_headers: tuple[Header, ...] | None = ()
        self._last_headers_encoded = encode_headers(())

    @property
    def size_bytes(self) -> int:
        """Uncompressed size of header and records."""
        return len(self._buffer)

    @property
    def record_count(self) -> int:
        """Number of records."""
        return self._record_count

    def append(self, key: bytes | None, value: bytes | None, headers: Sequence[Header], timestamp_ms: int) -> bool:
        """Add a record. Return False and add nothing if it does not fit; the first record always fits.

        Raises TypeError, ValueError or AttributeError for a wrong key, value, header or timestamp.
        """
        count = self._record_count
        if not -MAX_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS:
            raise ValueError(f"a timestamp must be within {MAX_TIMESTAMP_MS} ms, and is {timestamp_ms}")
        if not count:
            timestamp_ms = index(timestamp_ms)
        delta_ms = timestamp_ms - self._base_timestamp_ms if count else 0
        if headers is not self._last_headers:
            self._last_headers_encoded = encode_headers(headers)
            # A tuple cannot change: a producer that passes the same one each time has it encoded once.
            self._last_headers = headers if isinstance(headers, tuple) else None
        encoded_headers = self._last_headers_encoded
        deltas = encode_varint(delta_ms) + encode_varint(count)
        key_length = _NULL if key is None else encode_varint(len(key))
        value_length = _NULL if value is None else encode_varint(len(value))
        key = key or b""
        value = value or b""
        size = 1 + len(deltas) + len(key_length) + len(key) + len(value_length) + len(value) + len(encoded_headers)
        record_length = encode_varint(size)
        buffer = self._buffer
        if count and len(buffer) + len(record_length) + size > self._max_bytes:
            return False
        start = len(buffer)
        try:
            buffer += record_length + _NO_ATTRIBUTES + deltas + key_length + key + value_length
            buffer += value
            buffer += encoded_headers
            if len(buffer) - start != len(record_length) + size:  # a memoryview whose items are not bytes
                raise TypeError("key and value must be bytes")
        except BaseException:
            del buffer[start:]
            raise
        if not count:
            self._base_timestamp_ms = timestamp_ms
            self._max_timestamp_ms = timestamp_ms
        elif timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = timestamp_ms
        self._record_count = count + 1
        return True

    def build(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> bytearray:
        """Return the batch, compressed and with checksum, and end the builder. Raises ValueError without records."""
        if not self._record_count:
            raise ValueError("a batch needs at least one record")
        batch, self._buffer = self._buffer, bytearray(HEADER_SIZE)
        if self._codec is not Codec.NONE:
            payload = compress(self._codec, memoryview(batch)[HEADER_SIZE:])
            batch = bytearray(HEADER_SIZE)
            batch += payload
        header = BatchHeader(
            base_offset=0,
            batch_length=len(batch) - LOG_OVERHEAD,
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=self._codec,
            last_offset_delta=self._record_count - 1,
            base_timestamp=self._base_timestamp_ms,
            max_timestamp=self._max_timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self._record_count,
        )
        write_header(batch, header)
        self._record_count = 0
        return batch
