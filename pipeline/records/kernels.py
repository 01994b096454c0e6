"""Machine-code loops over records (numba); `record.py` is their pure-Python twin.

Invariants:
- No read outside of the given bytes, whatever they are: each position is compared with its end before it is used, and
  a failure is a code of `Fault`, never an exception.
- Positions fit in int32: callers pass buffers below 2 GiB.
"""

from enum import IntEnum
from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
_Int = int | np.int64

# Columns of the table of batches for `parse_records`.
START: Final = 0
END: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET_DELTA: Final = 3
BASE_TIMESTAMP: Final = 4
MAX_TIMESTAMP: Final = 5
IS_LOG_APPEND_TIME: Final = 6
RECORD_COUNT: Final = 7
BATCH_FIELDS: Final = 8


class Fault(IntEnum):
    """A fault of a record."""

    NONE = 0
    NUMBER = 1
    RECORD_LENGTH = 2
    TIMESTAMP = 3
    OFFSET = 4
    FIELD_LENGTH = 5
    HEADER_COUNT = 6
    TRAILING_BYTES = 7


FAULT_REASONS = {
    Fault.NUMBER: "a number is cut off or too large",
    Fault.RECORD_LENGTH: "a record is longer than its batch",
    Fault.TIMESTAMP: "a timestamp is out of range",
    Fault.OFFSET: "offsets do not rise within the batch",
    Fault.FIELD_LENGTH: "a field is longer than its record",
    Fault.HEADER_COUNT: "more headers than bytes",
    Fault.TRAILING_BYTES: "bytes follow a record or the last record",
}

_NONE: Final = int(Fault.NONE)
_NUMBER: Final = int(Fault.NUMBER)
_RECORD_LENGTH: Final = int(Fault.RECORD_LENGTH)
_TIMESTAMP: Final = int(Fault.TIMESTAMP)
_OFFSET: Final = int(Fault.OFFSET)
_FIELD_LENGTH: Final = int(Fault.FIELD_LENGTH)
_HEADER_COUNT: Final = int(Fault.HEADER_COUNT)
_TRAILING_BYTES: Final = int(Fault.TRAILING_BYTES)


@njit(cache=True, nogil=True)
def read_varint(buffer: Bytes, position: _Int, end: _Int, bits: int) -> tuple[_Int, _Int]:
    """Return (value, position behind it) of a zigzag varint; position -1 if it does not end before `end`."""
    if position >= end:
        return 0, -1
    byte = np.int64(buffer[position])
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = np.uint64(byte & 0x7F)
    shift = 7
    while True:
        if position >= end or shift >= bits:
            return 0, -1
        byte = np.int64(buffer[position])
        position += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            break
        shift += 7
    # The last byte may only fill the remaining bits of the number.
    if byte >> (bits - shift) and shift + 7 > bits:
        return 0, -1
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position


@njit(cache=True, nogil=True)
def read_field(buffer: Bytes, position: _Int, end: _Int) -> tuple[_Int, _Int, int]:
    """Return (start, length or -1 for null, fault) of a field that follows its length."""
    length, position = read_varint(buffer, position, end, 32)
    if position < 0:
        return 0, 0, _NUMBER
    if length < -1 or length > end - position:
        return 0, 0, _FIELD_LENGTH
    return position, length, _NONE


@njit(cache=True, nogil=True)
def parse_records(
    buffer: Bytes,
    batches: Int64s,
    offset: Int64s,
    timestamp: Int64s,
    batch_index: Int32s,
    key_position: Int32s,
    key_length: Int32s,
    value_position: Int32s,
    value_length: Int32s,
    header_index: Int32s,
    header_start: Int32s,
    record_end: Int32s,
) -> tuple[int, int]:
    """Fill the columns, a row for each record; `header_index` sums up header counts. Return (fault, its batch)."""
    row = 0
    header_index[0] = 0
    for batch in range(len(batches)):
        position = batches[batch, START]
        batch_end = batches[batch, END]
        base_offset = batches[batch, BASE_OFFSET]
        base_timestamp = batches[batch, BASE_TIMESTAMP]
        last_delta: _Int = -1
        for _ in range(batches[batch, RECORD_COUNT]):
            length, position = read_varint(buffer, position, batch_end, 32)
            if position < 0:
                return _NUMBER, batch
            if length < 1 or length > batch_end - position:
                return _RECORD_LENGTH, batch
            end = position + length
            delta, position = read_varint(buffer, position + 1, end, 64)
            if position < 0:
                return _NUMBER, batch
            time = base_timestamp + delta
            if ((base_timestamp ^ time) & (delta ^ time)) < 0:
                return _TIMESTAMP, batch
            timestamp[row] = batches[batch, MAX_TIMESTAMP] if batches[batch, IS_LOG_APPEND_TIME] else time
            delta, position = read_varint(buffer, position, end, 32)
            if position < 0:
                return _NUMBER, batch
            if delta <= last_delta or delta > batches[batch, LAST_OFFSET_DELTA]:
                return _OFFSET, batch
            last_delta = delta
            offset[row] = base_offset + delta
            batch_index[row] = batch
            position, length, fault = read_field(buffer, position, end)
            if fault:
                return fault, batch
            key_position[row] = position
            key_length[row] = length
            position, length, fault = read_field(buffer, position + max(length, 0), end)
            if fault:
                return fault, batch
            value_position[row] = position
            value_length[row] = length
            count, position = read_varint(buffer, position + max(length, 0), end, 32)
            if position < 0:
                return _NUMBER, batch
            if count < 0 or count > (end - position) // 2:
                return _HEADER_COUNT, batch
            if count == 0 and position != end:
                return _TRAILING_BYTES, batch
            header_start[row] = position
            record_end[row] = end
            header_index[row + 1] = header_index[row] + count
            row += 1
            position = end
        if position != batch_end:
            return _TRAILING_BYTES, batch
    return _NONE, 0


@njit(cache=True, nogil=True)
def parse_headers(
    buffer: Bytes,
    header_index: Int32s,
    header_start: Int32s,
    record_end: Int32s,
    key_position: Int32s,
    key_length: Int32s,
    value_position: Int32s,
    value_length: Int32s,
) -> tuple[int, int]:
    """Fill the columns of headers that `parse_records` counted. Return (fault, row)."""
    for row in range(len(header_start)):
        first = header_index[row]
        last = header_index[row + 1]
        if first == last:
            continue
        position: _Int = np.int64(header_start[row])
        end = np.int64(record_end[row])
        for header in range(first, last):
            position, length, fault = read_field(buffer, position, end)
            if not fault and length < 0:
                fault = _FIELD_LENGTH
            if fault:
                return fault, row
            key_position[header] = position
            key_length[header] = length
            position, length, fault = read_field(buffer, position + length, end)
            if fault:
                return fault, row
            value_position[header] = position
            value_length[header] = length
            position += max(length, 0)
        if position != end:
            return _TRAILING_BYTES, row
    return _NONE, 0


@njit(cache=True, nogil=True)
def gather(buffer: Bytes, positions: Int32s, offsets: Int32s, gathered: Bytes) -> None:
    """Copy pieces of `buffer` end to end: piece i goes to offsets[i]..offsets[i + 1]. The caller checks the bounds."""
    for row in range(len(positions)):
        # Slices first: their indices start at 0, which lets the compiler copy many bytes at a time.
        target = gathered[offsets[row] : offsets[row + 1]]
        source = buffer[positions[row] : positions[row] + len(target)]
        for index in range(len(target)):
            target[index] = source[index]


@njit(cache=True, nogil=True)
def write_varint(out: Bytes, position: _Int, value: _Int) -> _Int:
    """Write a zigzag varint, and return the position after it. The caller checks the bounds."""
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest > np.uint64(0x7F):
        out[position] = np.uint8((rest & np.uint64(0x7F)) | np.uint64(0x80))
        rest >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(rest)
    return position + 1


@njit(cache=True, nogil=True)
def copy_bytes(buffer: Bytes, start: _Int, end: _Int, out: Bytes, position: _Int) -> _Int:
    """Copy `buffer[start:end]` to `position` of `out`, and return the position after it."""
    # Slices first: their indices start at 0, which lets the compiler copy many bytes at a time.
    source = buffer[start:end]
    target = out[position : position + len(source)]
    for index in range(len(source)):
        target[index] = source[index]
    return position + len(source)
