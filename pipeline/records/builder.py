"""Builder of a batch: each record is encoded once, straight into the batch's buffer, behind space for the header.

Invariants:
- Offsets and timestamps are deltas to the first record's; the batch starts at offset 0, which a broker patches.
- A batch holds at least one record, however large; with more records it never exceeds `max_bytes` before compression.
- `build` gives the buffer away: a builder makes one batch.
- An `append` that raises adds nothing: the other records are whole.

Record layout (KIP-98), all integers zigzag varints: length, attributes int8, timestamp delta, offset delta, key length
(-1: null) and key, value length and value, number of headers, each with key length, key, value length, value.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
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
_NO_HEADERS = b"\x00"
_RUN_RECORDS = 1024
"""Records that are encoded together."""


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


def _numbers(first: int, count: int) -> Sequence[bytes]:
    """Return the varints of consecutive numbers."""
    if first + count <= len(_SMALL_VARINTS):
        return _SMALL_VARINTS[first : first + count]
    return [encode_varint(number) for number in range(first, first + count)]


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
    """Takes records until it is full, then makes a batch. `max_bytes`: the uncompressed bound, header included.

    `level` is the codec's level of compression, see `compress`.
    """

    def __init__(self, codec: Codec, max_bytes: int, level: int | None = None) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._level = level
        self._buffer = bytearray(HEADER_SIZE)
        self._record_count = 0
        self._base_timestamp_ms = 0
        self._max_timestamp_ms = 0
        self._last_timestamp_ms = 0
        self._last_timestamp_encoded = b""
        self._last_headers: tuple[Header, ...] | None = ()
        self._last_headers_encoded = _NO_HEADERS

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
        if not count or timestamp_ms != self._last_timestamp_ms:
            self._encode_timestamp(timestamp_ms)
        if headers is not self._last_headers:
            self._encode_headers(headers)
        encoded_headers = self._last_headers_encoded
        head = self._last_timestamp_encoded + (_SMALL_VARINTS[count] if count < 8192 else encode_varint(count))
        if key is None:
            head += _NULL
        else:
            length = len(key)
            head += _SMALL_VARINTS[length] if length < 8192 else encode_varint(length)
            length += len(head)
            head += key
            if len(head) != length:  # a memoryview whose items are not bytes
                raise TypeError("a key must be bytes")
        if value is None:
            head += _NULL
            value = b""
            length = 0
        else:
            length = len(value)
            head += _SMALL_VARINTS[length] if length < 8192 else encode_varint(length)
        size = len(head) + length + len(encoded_headers)
        record_length = _SMALL_VARINTS[size] if size < 8192 else encode_varint(size)
        buffer = self._buffer
        start = len(buffer)
        end = start + len(record_length) + size
        if end > self._max_bytes and count:
            return False
        try:
            buffer += record_length + head
            buffer += value
            buffer += encoded_headers
            if len(buffer) != end:
                raise TypeError("its items are not bytes")
        except TypeError as error:
            del buffer[start:]
            raise TypeError(f"a value must be bytes, and is {type(value).__name__}: {error}") from error
        except BaseException:
            del buffer[start:]
            raise
        if not count:
            self._base_timestamp_ms = self._max_timestamp_ms = self._last_timestamp_ms
        elif timestamp_ms > self._max_timestamp_ms:
            self._max_timestamp_ms = timestamp_ms
        self._record_count = count + 1
        return True

    def extend(
        self,
        key: bytes | None,
        values: Sequence[bytes | None],
        start: int,
        headers: Sequence[Header],
        timestamp_ms: int,
        max_bytes: int | None = None,
    ) -> int:
        """Add the values from index `start` on, as records that are alike otherwise, as far as they fit.

        Returns the index of the first value that was not added. `max_bytes` bounds the batch more closely than the
        builder; a first record fits nevertheless. Raises as `append`, for a value after those before it were added.
        """
        max_bytes = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
        if start < len(values) and not self._record_count:
            self.append(key, values[start], headers, timestamp_ms)
            start += 1
        if start == len(values):
            return start
        if timestamp_ms != self._last_timestamp_ms:
            self._encode_timestamp(timestamp_ms)
        if headers is not self._last_headers:
            self._encode_headers(headers)
        key_part = _NULL if key is None else encode_varint(len(key)) + key
        if key is not None and len(key_part) != len(encode_varint(len(key))) + len(key):
            raise TypeError("a key must be bytes")
        before = self._record_count
        try:
            while start < len(values):
                run = values[start : start + min(_RUN_RECORDS, self._records_of_one_width())]
                add = self._add_bytes if set(map(type, run)) == {bytes} else self._add_each
                added = add(key_part, run, max_bytes)  # type: ignore[arg-type]  # the first takes bytes only
                start += added
                if added < len(run):
                    break
            return start
        finally:
            if self._record_count > before and timestamp_ms > self._max_timestamp_ms:
                self._max_timestamp_ms = timestamp_ms

    def _records_of_one_width(self) -> int:
        """Return how many records come whose numbers take as many bytes as the next one."""
        bits = 6
        while self._record_count >> bits:
            bits += 7
        return (1 << bits) - self._record_count

    def _add_bytes(self, key_part: bytes, values: Sequence[bytes], max_bytes: int) -> int:
        """Add values whose records' numbers take equally many bytes, as far as they fit. Return how many.

        No bytecode runs per record: all that differs between records depends on the length of the value.
        """
        numbers = _numbers(self._record_count, len(values))
        attributes, ending = self._last_timestamp_encoded, self._last_headers_encoded
        fixed = len(attributes) + len(numbers[0]) + len(key_part) + len(ending)
        lengths = list(map(len, values))
        sizes, heads, middles = {}, {}, {}
        for length in set(lengths):
            middle = key_part + encode_varint(length)
            size = fixed - len(key_part) + len(middle) + length
            head = encode_varint(size) + attributes
            sizes[length] = size + len(head) - len(attributes)
            heads[length], middles[length] = head, middle
        room = max_bytes - len(self._buffer)
        count = len(values)
        if sum(map(sizes.__getitem__, lengths)) > room:
            count = bisect_right(list(accumulate(map(sizes.__getitem__, lengths))), room)
            values, lengths = values[:count], lengths[:count]
        pieces = [ending] * (5 * count)
        pieces[0::5] = map(heads.__getitem__, lengths)
        pieces[1::5] = numbers[:count]
        pieces[2::5] = map(middles.__getitem__, lengths)
        pieces[3::5] = values
        self._buffer += b"".join(pieces)
        self._record_count += count
        return count

    def _add_each(self, key_part: bytes, values: Sequence[bytes | None], max_bytes: int) -> int:
        """Add values as far as they fit, and return how many. Raises TypeError for what is not bytes."""
        buffer = self._buffer
        attributes, ending = self._last_timestamp_encoded, self._last_headers_encoded
        for position, value in enumerate(values):
            data = b"" if value is None else value
            length = len(data)
            record = b"".join(
                (
                    attributes,
                    encode_varint(self._record_count),
                    key_part,
                    _NULL if value is None else encode_varint(length),
                )
            )
            record = encode_varint(len(record) + length + len(ending)) + record
            end = len(buffer) + len(record) + length + len(ending)
            if end > max_bytes:
                return position
            at = len(buffer)
            buffer += b"".join((record, data, ending))
            if len(buffer) != end:
                del buffer[at:]
                raise TypeError("a value must be bytes")
            self._record_count += 1
        return len(values)

    def _encode_timestamp(self, timestamp_ms: int) -> None:
        if not -MAX_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS:
            raise ValueError(f"a timestamp must be within {MAX_TIMESTAMP_MS} ms, and is {timestamp_ms}")
        timestamp_ms = index(timestamp_ms)
        delta_ms = timestamp_ms - self._base_timestamp_ms if self._record_count else 0
        self._last_timestamp_encoded = _NO_ATTRIBUTES + encode_varint(delta_ms)
        self._last_timestamp_ms = timestamp_ms

    def _encode_headers(self, headers: Sequence[Header]) -> None:
        self._last_headers_encoded = encode_headers(headers)
        # A tuple cannot change: a producer that passes the same one each time has it encoded once.
        self._last_headers = headers if isinstance(headers, tuple) else None

    def payload(self) -> tuple[bytes, BatchHeader]:
        """Return the records so far, uncompressed, and a header for them."""
        return bytes(memoryview(self._buffer)[HEADER_SIZE:]), self._header(len(self._buffer), Codec.NONE)

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
            payload = compress(self._codec, memoryview(batch)[HEADER_SIZE:], self._level)
            batch = bytearray(HEADER_SIZE)
            batch += payload
        header = self._header(len(batch), self._codec)._replace(
            producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
        )
        write_header(batch, header)
        self._record_count = 0
        return batch

    def _header(self, size_bytes: int, codec: Codec) -> BatchHeader:
        return BatchHeader(
            base_offset=0,
            batch_length=size_bytes - LOG_OVERHEAD,
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=codec,
            last_offset_delta=self._record_count - 1,
            base_timestamp=self._base_timestamp_ms,
            max_timestamp=self._max_timestamp_ms,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            record_count=self._record_count,
        )
