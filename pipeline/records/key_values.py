"""Keys and values of a batch without the rest of its records, to load a long journal fast.

Invariants: keys and values are those that `record.py` reads; bytes that cannot be records raise CorruptBatchError.
Times, offsets and headers are skipped unchecked: the checksum of the batch covers them.
"""

from pipeline.errors import CorruptBatchError
from pipeline.records.batch import BatchHeader
from pipeline.records.compression import ReadableBuffer
from pipeline.records.memory import MIN_OPENED_BYTES
from pipeline.records.opening import opened

_MAX_VARINT_BYTES = 5
_RECORD_BYTES = 160
"""Memory of a tuple in a list, and of two byte strings without their bytes."""


def keys_and_values(
    buffer: ReadableBuffer, position: int, header: BatchHeader
) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values of the batch at `position`, whose checksum has been verified.

    Blocks until there is memory for a compressed batch. Raises CorruptBatchError, MemoryExhaustedError.
    """
    with opened(buffer, position, header, MIN_OPENED_BYTES, record_bytes=_RECORD_BYTES) as payload:
        try:
            found, end = _read(payload, header.record_count)
        except (IndexError, ValueError) as error:
            raise CorruptBatchError(f"its records are garbled: {error}", header.base_offset) from error
        if end != len(payload):
            raise CorruptBatchError("its records do not fill it", header.base_offset)
        return found


def _read(payload: bytes, count: int) -> tuple[list[tuple[bytes | None, bytes | None]], int]:
    found: list[tuple[bytes | None, bytes | None]] = []
    position = 0
    for _ in range(count):
        length = payload[position]
        position += 1
        if length > 127:
            length, position = _rest(payload, position, length)
        end = position + (length >> 1)
        position += 1  # attributes
        while payload[position] > 127:  # timestamp
            position += 1
        position += 1
        while payload[position] > 127:  # offset
            position += 1
        size = payload[position + 1]
        position += 2
        if size > 127:
            size, position = _rest(payload, position, size)
        key = value = None
        if not size & 1:
            stop = position + (size >> 1)
            key = payload[position:stop]
            position = stop
        size = payload[position]
        position += 1
        if size > 127:
            size, position = _rest(payload, position, size)
        if not size & 1:
            stop = position + (size >> 1)
            value = payload[position:stop]
            position = stop
        if position >= end or length & 1:
            raise ValueError("a record is not as long as it says")
        found.append((key, value))
        position = end
    return found, position


def _rest(payload: bytes, position: int, first: int) -> tuple[int, int]:
    """Return the value (still zigzag) and the end of a varint whose first byte says that more follow."""
    value = first & 127
    for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
        byte = payload[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError("a number is too long")
