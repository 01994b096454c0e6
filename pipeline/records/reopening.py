"""Recompression and record scans of batches, for topics that need more of a broker than the header.

Invariants: a batch stays one batch; offsets, timestamps, keys, values, headers and the producer's fields are the same
bytes as before, in another codec; any fault of the payload is a CorruptBatchError. Scans and compression hold one piece
of the payload at a time, and scans hold only the first fields of a record.
"""

from collections.abc import Generator, Iterable, Iterator

from pipeline.errors import BatchTooLargeError, CorruptBatchError
from pipeline.model import MAX_INT64, MIN_INT64
from pipeline.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    TimestampType,
    write_header,
)
from pipeline.records.compression import (
    FRAME_HEADER_BYTES,
    PIECE_BYTES,
    Codec,
    ReadableBuffer,
    opening_bytes,
    plain_pieces,
)
from pipeline.records.piecewise_compression import compress_pieces

_CODEC_MASK = 0x07
_PIECES_HELD = 2

START_BYTES = HEADER_SIZE + FRAME_HEADER_BYTES
_LEAST_RECORD_BYTES = 6
_LEAST_HEADER_BYTES = 2
_LENGTHS_OF_A_STEP = 4096
_NO_HEADERS = b"\0"
_LONG_OR_NEGATIVE = 0x81
"""Bits of the first byte of a number that has more bytes or is negative."""
_MAX_FIELDS_BYTES = 32
"""Bound of length, attributes, timestamp, offset and length of the key together."""
_MAX_LENGTH_BYTES = 5


def payload_pieces(batch: ReadableBuffer, header: BatchHeader, max_bytes: int) -> Iterator[ReadableBuffer]:
    """Yield the payload of a batch piece by piece. Raises CorruptBatchError."""
    return plain_pieces(header.codec, memoryview(batch)[HEADER_SIZE : header.size_bytes], max_bytes)


def scan_memory(start: ReadableBuffer, header: BatchHeader, max_bytes: int) -> int:
    """Return the bound of a scan's memory without the batch, from its first START_BYTES. Raises CorruptBatchError."""
    frame, size_bytes = memoryview(start)[HEADER_SIZE:], header.size_bytes - HEADER_SIZE
    return _PIECES_HELD * PIECE_BYTES + opening_bytes(header.codec, frame, size_bytes, max_bytes)


def close_payload(
    pieces: Iterable[ReadableBuffer],
    header: BatchHeader,
    codec: Codec,
    level: int | None,
    *,
    size_bytes: int,
    max_batch_bytes: int,
) -> Generator[None, None, bytearray]:
    """Return a batch of these records, `size_bytes` in all, under the same header in another codec.

    Yields after each piece, to give others their turn. Raises BatchTooLargeError, and the errors of the pieces.
    """
    batch = bytearray(HEADER_SIZE)
    for packed in compress_pieces(codec, pieces, size_bytes, level):
        if len(batch) + len(packed) > max_batch_bytes:
            raise BatchTooLargeError(len(batch) + len(packed), max_batch_bytes, header.base_offset)
        batch += packed
        yield
    attributes = header.attributes & ~_CODEC_MASK | codec
    write_header(batch, header._replace(batch_length=len(batch) - LOG_OVERHEAD, attributes=attributes))
    return batch


def scan_records(
    pieces: Iterable[ReadableBuffer], header: BatchHeader, *, checks_headers: bool = False
) -> Iterator[tuple[int, int, bool] | None]:
    """Yield timestamp, offset delta and True if there is a key, for each record of a payload that comes in pieces.

    Within a record of very many headers, None is yielded now and then: a place to stop, and no record.
    Raises CorruptBatchError; with `checks_headers` for everything that the cleaner and consumers refuse.
    """
    rest = iter(pieces)
    payload, position, is_last = b"", 0, False
    last_delta, sound_headers = -1, _NO_HEADERS
    base_timestamp = header.base_timestamp
    least_delta, most_delta = MIN_INT64 - base_timestamp, MAX_INT64 - base_timestamp
    fixed = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    try:
        for _ in range(header.record_count):
            if position + _MAX_FIELDS_BYTES > len(payload) and not is_last:
                payload, position, is_last = _read_on(rest, payload, position)
            length, position = _varint(payload, position, 32)
            end = position + length
            if length < _LEAST_RECORD_BYTES or (is_last and end > len(payload)):
                raise CorruptBatchError("a record is longer than its batch", header.base_offset)
            delta, position = _varint(payload, position + 1, 64)
            if not least_delta <= delta <= most_delta:
                raise CorruptBatchError("a timestamp is out of range", header.base_offset)
            offset_delta, position = _varint(payload, position, 32)
            if not last_delta < offset_delta <= header.last_offset_delta:
                raise CorruptBatchError(f"offset delta {offset_delta} follows {last_delta}", header.base_offset)
            last_delta = offset_delta
            key_length, position = _varint(payload, position, 32)
            if key_length > 0:
                position += key_length
            if position >= end or key_length < -1:
                raise CorruptBatchError("a key is longer than its record", header.base_offset)
            if position + _MAX_LENGTH_BYTES > len(payload) and not is_last:
                end -= position
                payload, position, is_last = _read_on(rest, payload, position)
                end += position
            value_length, position = _varint(payload, position, 32)
            if value_length > 0:
                position += value_length
            if position >= end or value_length < -1:
                raise CorruptBatchError("a value is longer than its record", header.base_offset)
            if checks_headers:
                headers = payload[position:end]
                if (headers == sound_headers and end <= len(payload)) or _has_short_headers(payload, position, end):
                    sound_headers = headers
                else:
                    payload, end, is_last = yield from _pass_headers(rest, payload, position, end, is_last=is_last)
            yield (base_timestamp + delta if fixed is None else fixed), offset_delta, key_length >= 0
            position = end
    except IndexError as error:
        raise CorruptBatchError("a record is cut off", header.base_offset) from error
    while not is_last:
        payload, position, is_last = _read_on(rest, payload, position)
    if position != len(payload):
        raise CorruptBatchError("bytes follow the last record", header.base_offset)


def _has_short_headers(payload: bytes, position: int, end: int) -> bool:
    """True if the headers are sound, and their names and values short (63 bytes) and not null.

    Raises IndexError for some unsound headers. `_pass_headers` reads all headers, slowly.
    """
    long_or_negative = _LONG_OR_NEGATIVE  # local: read for each header of each record
    if end > len(payload) or payload[position] & long_or_negative:
        return False
    count = payload[position] >> 1
    position += 1
    while count:
        length = payload[position]
        if length & long_or_negative:
            return False
        position += 1 + (length >> 1)
        length = payload[position]
        if length & long_or_negative:
            return False
        position += 1 + (length >> 1)
        count -= 1
    return position == end


def _pass_headers(
    rest: Iterator[ReadableBuffer], payload: bytes, position: int, end: int, *, is_last: bool
) -> Generator[None, None, tuple[bytes, int, bool]]:
    """Read the headers of a record, from their count at `position` to the end of the record. Yields now and then.

    Return the present bytes, the end of the record in them, and True if no pieces follow.
    Raises CorruptBatchError, IndexError.
    """
    lengths_left, least_length = 0, 0
    is_count = True
    while is_count or lengths_left:
        if position + _MAX_LENGTH_BYTES > len(payload) and not is_last:
            end -= position
            payload, position, is_last = _read_on(rest, payload, position)
            end += position
        number, position = _varint(payload, position, 32)
        if is_count:
            if not 0 <= number <= (end - position) // _LEAST_HEADER_BYTES:
                raise CorruptBatchError(f"a record of {number} headers")
            lengths_left, is_count = 2 * number, False
            continue
        if number < least_length or number > end - position:
            raise CorruptBatchError("a header is longer than its record")
        if number > 0:
            position += number
        lengths_left -= 1
        if not lengths_left % _LENGTHS_OF_A_STEP and lengths_left:
            yield
        least_length = -1 - least_length  # a value may be null, a name may not
    if position != end:
        raise CorruptBatchError("bytes follow the headers of a record")
    return payload, end, is_last


def _read_on(rest: Iterator[ReadableBuffer], payload: bytes, position: int) -> tuple[bytes, int, bool]:
    """Return bytes, the position in them, and True at the end of the pieces; else a record's first fields are there."""
    while True:
        piece = next(rest, None)
        if piece is None:
            return payload, position, True
        if position >= len(payload):
            payload, position = bytes(piece), position - len(payload)
        else:
            payload, position = payload[position:] + piece, 0
        if position + _MAX_FIELDS_BYTES <= len(payload):
            return payload, position, False


def _varint(payload: bytes, position: int, bits: int) -> tuple[int, int]:
    """Return a zigzag varint of at most `bits` bits and its end. Raises IndexError, CorruptBatchError."""
    byte = payload[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = payload[position + 1]
    if second < 0x80:
        value = byte & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), position + 2
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = payload[position]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift >= bits:
            raise CorruptBatchError("a number is too long")
    if value >> bits:
        raise CorruptBatchError("a number is too large")
    return (value >> 1) ^ -(value & 1), position + 1
