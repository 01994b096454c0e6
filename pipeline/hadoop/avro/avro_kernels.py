"""Machine-code loops of the load (numba): they walk datums by their schema, and write envelopes around them.

Invariants:
- No byte outside a datum is read, whatever the datum holds: each position is compared with the datum's end before it
  is used. Work and depth per datum are bounded, so that no input makes a task hang.
- `.py_func` of each kernel is its pure-Python twin.
"""

from enum import IntEnum
from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_schema import AvroKind
from pipeline.records.kernels import Bytes, Int32s, Int64s, copy_bytes, write_varint

Flags = NDArray[np.bool_]
_Int = int | np.int64

FRAME_SIZE: Final = 5
MAX_DEPTH: Final = 4096
MAX_FREE_STEPS: Final = 100_000
ENVELOPE_OVERHEAD: Final = 64
HEADER_OVERHEAD: Final = 21


class DatumFault(IntEnum):
    """Reasons why bytes are not one whole datum of their schema."""

    NONE = 0
    CUT_OFF = 1
    NUMBER = 2
    LENGTH = 3
    BRANCH = 4
    TRAILING_BYTES = 5
    TOO_COMPLEX = 6
    FRAME = 7
    TOO_LARGE = 8


FAULT_REASONS = {
    DatumFault.CUT_OFF: "the datum ends too early",
    DatumFault.NUMBER: "a number is too long",
    DatumFault.LENGTH: "a length is negative or beyond the end",
    DatumFault.BRANCH: "no such union branch, enum symbol or boolean",
    DatumFault.TRAILING_BYTES: "bytes follow the datum",
    DatumFault.TOO_COMPLEX: "nested too deeply or too many empty items",
    DatumFault.TOO_LARGE: "defaults or symbols in its lists take more than 64 MiB",
    DatumFault.FRAME: "the value does not begin with a zero byte and the id of a schema",
}

_CUT_OFF: Final = int(DatumFault.CUT_OFF)
_NUMBER: Final = int(DatumFault.NUMBER)
_LENGTH: Final = int(DatumFault.LENGTH)
_BRANCH: Final = int(DatumFault.BRANCH)
_TRAILING_BYTES: Final = int(DatumFault.TRAILING_BYTES)
_TOO_COMPLEX: Final = int(DatumFault.TOO_COMPLEX)

_BOOLEAN: Final = int(AvroKind.BOOLEAN)
_INT: Final = int(AvroKind.INT)
_LONG: Final = int(AvroKind.LONG)
_FLOAT: Final = int(AvroKind.FLOAT)
_DOUBLE: Final = int(AvroKind.DOUBLE)
_BYTES: Final = int(AvroKind.BYTES)
_FIXED: Final = int(AvroKind.FIXED)
_ENUM: Final = int(AvroKind.ENUM)
_RECORD: Final = int(AvroKind.RECORD)
_UNION: Final = int(AvroKind.UNION)
_MAP: Final = int(AvroKind.MAP)
_BLOCK_START: Final = -1


@njit(cache=True, nogil=True)
def read_long(buffer: Bytes, position: _Int, end: _Int) -> tuple[_Int, _Int, int]:
    """Read a zigzag number; return value, position after it, and fault."""
    if position < end and buffer[position] < 0x80:
        short = np.int64(buffer[position])
        return (short >> 1) ^ -(short & 1), position + 1, 0
    value = np.uint64(0)
    shift = 0
    while True:
        if position >= end:
            return 0, position, _CUT_OFF
        byte = np.uint64(buffer[position])
        position += 1
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            break
        shift += 7
        if shift > 63:
            return 0, position, _NUMBER
    half = np.int64(value >> np.uint64(1))
    return (~half if value & np.uint64(1) else half), position, 0


@njit(cache=True, nogil=True)
def skip_bytes(buffer: Bytes, position: _Int, end: _Int) -> tuple[_Int, int]:
    """Return the position after bytes with their length, and a fault."""
    length, position, fault = read_long(buffer, position, end)
    if fault:
        return position, fault
    if length < 0 or length > end - position:
        return position, _LENGTH
    return position + length, 0


@njit(cache=True, nogil=True)
def _skip_leaf(kind: _Int, argument: _Int, buffer: Bytes, position: _Int, end: _Int) -> tuple[_Int, int]:
    if kind == _BYTES:
        return skip_bytes(buffer, position, end)
    if kind in (_INT, _LONG, _ENUM):
        value, position, fault = read_long(buffer, position, end)
        if fault:
            return position, fault
        if kind == _INT and (value < -(2**31) or value >= 2**31):
            return position, _NUMBER
        if kind == _ENUM and (value < 0 or value >= argument):
            return position, _BRANCH
        return position, 0
    size: _Int = 0
    if kind == _BOOLEAN:
        size = 1
        if position < end and buffer[position] > 1:
            return position, _BRANCH
    elif kind == _FLOAT:
        size = 4
    elif kind == _DOUBLE:
        size = 8
    elif kind == _FIXED:
        size = argument
    if size > end - position:
        return position, _CUT_OFF
    return position + size, 0


@njit(cache=True, nogil=True)
def skip_datum(
    kinds: Int64s,
    arguments: Int64s,
    child_counts: Int64s,
    children: Int64s,
    buffer: Bytes,
    position: _Int,
    end: _Int,
    root: _Int,
    steps: _Int,
    stack: Int64s,
) -> tuple[_Int, int, _Int]:
    """Walk one datum of node `root` in at most so many steps. Return the position after it, a fault, the steps left.

    `stack` holds pairs of node and items left in its block.
    """
    stack[0, 0], stack[0, 1] = root, _BLOCK_START
    depth = 1
    while depth:
        steps -= 1
        if steps < 0:
            return position, _TOO_COMPLEX, steps
        depth -= 1
        node, left = stack[depth, 0], stack[depth, 1]
        kind = kinds[node]
        first, count = arguments[node], child_counts[node]
        if kind < _RECORD:
            position, fault = _skip_leaf(kind, first, buffer, position, end)
            if fault:
                return position, fault, steps
            continue
        if depth + count + 2 > len(stack):
            return position, _TOO_COMPLEX, steps
        if kind == _RECORD:
            for child in range(count - 1, -1, -1):
                stack[depth, 0], stack[depth, 1] = children[first + child], _BLOCK_START
                depth += 1
        elif kind == _UNION:
            branch, position, fault = read_long(buffer, position, end)
            if fault:
                return position, fault, steps
            if branch < 0 or branch >= count:
                return position, _BRANCH, steps
            stack[depth, 0], stack[depth, 1] = children[first + branch], _BLOCK_START
            depth += 1
        elif left == _BLOCK_START:
            items, position, fault = read_long(buffer, position, end)
            if not fault and items < 0:
                items = -items
                size, position, fault = read_long(buffer, position, end)
                if not fault and (size < 0 or size > end - position or items < 0):
                    return position, _LENGTH, steps
            if fault:
                return position, fault, steps
            if items:
                stack[depth, 0], stack[depth, 1] = node, items
                depth += 1
        else:
            stack[depth, 0], stack[depth, 1] = node, (left - 1 if left > 1 else _BLOCK_START)
            depth += 1
            if kind == _MAP:
                position, fault = skip_bytes(buffer, position, end)
                if fault:
                    return position, fault, steps
            stack[depth, 0], stack[depth, 1] = children[first], _BLOCK_START
            depth += 1
    return position, 0, steps


@njit(cache=True, nogil=True)
def find_faults(
    kinds: Int64s,
    arguments: Int64s,
    child_counts: Int64s,
    children: Int64s,
    buffer: Bytes,
    starts: Int64s,
    ends: Int64s,
    faults: Bytes,
) -> int:
    """Walk the datums [start, end) by the schema's table, write a Fault for each, and return the number of bad ones."""
    stack = np.empty((MAX_DEPTH + len(children), 2), dtype=np.int64)
    bad = 0
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        steps = MAX_FREE_STEPS + 16 * (end - start)
        position, fault, _ = skip_datum(kinds, arguments, child_counts, children, buffer, start, end, 0, steps, stack)
        if not fault and position != ends[row]:
            fault = _TRAILING_BYTES
        faults[row] = fault
        if fault:
            bad += 1
    return bad


@njit(cache=True, nogil=True)
def _write_bytes(buffer: Bytes, start: int, end: int, out: Bytes, position: _Int) -> _Int:
    return copy_bytes(buffer, start, end, out, write_varint(out, position, np.int64(end - start)))


@njit(cache=True, nogil=True)
def _write_optional(buffer: Bytes, start: int, end: int, is_present: bool, out: Bytes, position: _Int) -> _Int:
    if not is_present:
        out[position] = 0
        return position + 1
    out[position] = 2
    return _write_bytes(buffer, start, end, out, position + 1)


@njit(cache=True, nogil=True)
def write_envelopes(
    offsets: Int64s,
    partitions: Int32s,
    timestamps: Int64s,
    key_data: Bytes,
    key_ends: Int32s,
    key_present: Flags,
    header_index: Int32s,
    header_key_data: Bytes,
    header_key_ends: Int32s,
    header_value_data: Bytes,
    header_value_ends: Int32s,
    header_value_present: Flags,
    value_data: Bytes,
    value_starts: Int64s,
    value_ends: Int64s,
    value_present: Flags,
    is_datum: bool,
    reason_data: Bytes,
    reason_ends: Int32s,
    out: Bytes,
    out_ends: Int64s,
) -> None:
    """Write the envelopes of all rows one after another into `out`; row i ends at out_ends[i].

    Reasons are written behind the values, unless there are none at all.

    Arrow's layout: field i of a column lies in its data from ends[i] to ends[i + 1]. A value is a datum, which is
    copied as it is, or plain bytes, which get their length.
    """
    position: _Int = 0
    for row in range(len(offsets)):
        position = _write_optional(key_data, key_ends[row], key_ends[row + 1], key_present[row], out, position)
        position = write_varint(out, position, offsets[row])
        position = write_varint(out, position, np.int64(partitions[row]))
        position = write_varint(out, position, timestamps[row])
        first, last = header_index[row], header_index[row + 1]
        if last > first:
            position = write_varint(out, position, np.int64(last - first))
            for header in range(first, last):
                position = _write_bytes(
                    header_key_data, header_key_ends[header], header_key_ends[header + 1], out, position
                )
                position = _write_optional(
                    header_value_data,
                    header_value_ends[header],
                    header_value_ends[header + 1],
                    header_value_present[header],
                    out,
                    position,
                )
        out[position] = 0
        position += 1
        start, end = value_starts[row], value_ends[row]
        if is_datum and value_present[row]:
            out[position] = 2
            position = copy_bytes(value_data, start, end, out, position + 1)
        else:
            position = _write_optional(value_data, start, end, value_present[row], out, position)
        if len(reason_ends) > 1:
            position = _write_bytes(reason_data, reason_ends[row], reason_ends[row + 1], out, position)
        out_ends[row] = position
