"""Machine-code loops (numba) that walk datums by a program, and fill columns with their values.

A program is a list of instructions for one writer's schema: what to append to which column, and which parts to skip.
Values go to one array of numbers, in which each slot has a part of its own: numbers, the bits of floats, union
branches, positions of byte strings, and the number of items up to the end of a list.

Invariants:
- No byte outside a datum is read. Work for a datum is bounded, and so are the values that it makes: each item of a list
  or map takes a byte, but for MAX_EMPTY_ITEMS of them; what the reader adds to items takes at most MAX_ADDED_BYTES.
- A walk stores values, or only counts them: a program without lists and maps has at most one value for each datum and
  slot, so that no count is needed. Datums with faults leave values behind; walk the others again.
- `.py_func` of each kernel is its pure-Python twin.
"""

from enum import IntEnum
from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_kernels import (
    MAX_DEPTH,
    MAX_FREE_STEPS,
    DatumFault,
    Flags,
    read_long,
    skip_datum,
)
from pipeline.records.kernels import Bytes, Int64s, copy_bytes

_Int = int | np.int64
Program = NDArray[np.int64]
"""An instruction for each row: operation and three arguments."""

MAX_EMPTY_ITEMS: Final = 1024
MAX_ADDED_BYTES: Final = 64 * 1024 * 1024
"""Bytes that defaults and symbols in the items of one datum may take."""


class WalkOperation(IntEnum):
    """Operations of a program, with their arguments. Those from `BOOLEAN` on read a value."""

    END = 0
    SKIP = 1
    """Node of the writer's schema."""
    JUMP = 2
    """Nothing, next instruction."""
    ITEMS = 3
    """Slot of ends, instruction after the items. The items' instructions follow, and then `NEXT`."""
    NEXT = 4
    """Slot of `ITEMS`, first instruction of the items."""
    BOOLEAN = 5
    """Slot."""
    INT = 6
    """Slot."""
    LONG = 7
    """Slot."""
    ENUM = 8
    """Slot, count of symbols."""
    FLOAT = 9
    """Slot."""
    DOUBLE = 10
    """Slot."""
    BYTES = 11
    """Slot of first positions, slot of positions after the last byte."""
    FIXED = 12
    """Slot of positions, size."""
    UNION = 13
    """Slot of branches, count of branches, first of the branches in the table of jumps."""


_CUT_OFF: Final = int(DatumFault.CUT_OFF)
_NUMBER: Final = int(DatumFault.NUMBER)
_LENGTH: Final = int(DatumFault.LENGTH)
_BRANCH: Final = int(DatumFault.BRANCH)
_TRAILING_BYTES: Final = int(DatumFault.TRAILING_BYTES)
_TOO_COMPLEX: Final = int(DatumFault.TOO_COMPLEX)
_TOO_LARGE: Final = int(DatumFault.TOO_LARGE)

_END: Final = int(WalkOperation.END)
_SKIP: Final = int(WalkOperation.SKIP)
_JUMP: Final = int(WalkOperation.JUMP)
_BOOLEAN: Final = int(WalkOperation.BOOLEAN)
_INT: Final = int(WalkOperation.INT)
_LONG: Final = int(WalkOperation.LONG)
_ENUM: Final = int(WalkOperation.ENUM)
_FLOAT: Final = int(WalkOperation.FLOAT)
_BYTES: Final = int(WalkOperation.BYTES)
_FIXED: Final = int(WalkOperation.FIXED)
_UNION: Final = int(WalkOperation.UNION)
_ITEMS: Final = int(WalkOperation.ITEMS)


@njit(cache=True, nogil=True)
def _read_bits(buffer: Bytes, position: _Int, size: _Int) -> np.int64:
    bits = np.uint64(0)
    for index in range(size - 1, -1, -1):
        bits = (bits << np.uint64(8)) | np.uint64(buffer[position + index])
    return np.int64(bits)


@njit(cache=True, nogil=True)
def _read_varint(operation: _Int, bound: _Int, buffer: Bytes, position: _Int, end: _Int) -> tuple[_Int, _Int, int]:
    value, position, fault = read_long(buffer, position, end)
    if not fault:
        if operation == _INT and (value < -(2**31) or value >= 2**31):
            fault = _NUMBER
        elif operation in (_ENUM, _UNION) and (value < 0 or value >= bound):
            fault = _BRANCH
    return value, position, fault


@njit(cache=True, nogil=True)
def _read_value(operation: _Int, bound: _Int, buffer: Bytes, position: _Int, end: _Int) -> tuple[_Int, _Int, int]:
    """Read a value; return the number to store, position after the value, and fault. A string is stored as a position.

    `bound` is the count of symbols or branches, or the size of a fixed.
    """
    if operation == _BYTES:
        length, position, fault = read_long(buffer, position, end)
        if not fault and (length < 0 or length > end - position):
            fault = _LENGTH
        return position, position + length, fault
    if operation in (_INT, _LONG, _ENUM, _UNION):
        return _read_varint(operation, bound, buffer, position, end)
    size: _Int = 8
    if operation == _BOOLEAN:
        size = 1
    elif operation == _FLOAT:
        size = 4
    elif operation == _FIXED:
        size = bound
    if size > end - position:
        return 0, position, _CUT_OFF
    if operation == _FIXED:
        return position, position + size, 0
    value = _read_bits(buffer, position, size)
    return value, position + size, (_BRANCH if operation == _BOOLEAN and value > 1 else 0)


@njit(cache=True, nogil=True)
def _read_block(buffer: Bytes, position: _Int, end: _Int) -> tuple[_Int, _Int, int]:
    """Read the head of a block; return the number of its items, position after it, and fault."""
    items, position, fault = read_long(buffer, position, end)
    if not fault and items < 0:
        items = -items
        size, position, fault = read_long(buffer, position, end)
        if not fault and (size < 0 or size > end - position or items < 0):
            fault = _LENGTH
    return items, position, fault


@njit(cache=True, nogil=True)
def walk_datums(
    program: Program,
    jumps: Int64s,
    kinds: Int64s,
    arguments: Int64s,
    child_counts: Int64s,
    children: Int64s,
    buffer: Bytes,
    starts: Int64s,
    ends: Int64s,
    added: Int64s,
    left: Int64s,
    used: Int64s,
    totals: Int64s,
    faults: Bytes,
    numbers: Int64s,
) -> None:
    """Walk the datums [start, end), and write a DatumFault for each. Values go to `used`, the free positions by slot.

    Without room for numbers they are only counted, up to a fault. `added` bytes of an item are the reader's, by slot.
    """
    stack, fill = np.empty((MAX_DEPTH + len(children), 2), dtype=np.int64), len(numbers) > 0
    for row in range(len(starts)):
        position, end, bytes_left = starts[row], ends[row], np.int64(MAX_ADDED_BYTES)
        steps, items_left = MAX_FREE_STEPS + 16 * (end - position), MAX_EMPTY_ITEMS + (end - position)
        at: _Int = 0
        depth = fault = 0
        while not fault:
            operation, slot, second = program[at, 0], program[at, 1], program[at, 2]
            at += 1
            if operation >= _BOOLEAN:
                value, position, fault = _read_value(operation, second, buffer, position, end)
                if fault:
                    break
                if operation == _BYTES:
                    if fill:
                        numbers[used[second]] = position
                    used[second] += 1
                elif operation == _UNION:
                    at = jumps[program[at - 1, 3] + value]
            elif operation == _END:
                fault = 0 if position == end else _TRAILING_BYTES
                break
            elif operation == _SKIP:
                position, fault, steps = skip_datum(
                    kinds, arguments, child_counts, children, buffer, position, end, slot, steps, stack
                )
                continue
            elif operation in (_JUMP, _ITEMS):
                if operation == _ITEMS:
                    depth += 1
                    left[depth] = 0
                at = second
                continue
            else:
                if not left[depth]:
                    left[depth], position, fault = _read_block(buffer, position, end)
                if left[depth] and not fault:
                    items_left, bytes_left = items_left - 1, bytes_left - added[slot]
                    fault = _TOO_COMPLEX if items_left < 0 else (_TOO_LARGE if bytes_left < 0 else 0)
                    left[depth] -= 1
                    totals[slot] += 1
                    at = second
                    continue
                depth -= 1
                value = totals[slot]
            if fill:
                numbers[used[slot]] = value
            used[slot] += 1
        faults[row] = fault


@njit(cache=True, nogil=True)
def copy_strings(buffer: Bytes, starts: Int64s, ends: Int64s, out: Bytes) -> None:
    """Copy the byte strings [start, end) to `out`, one after another."""
    position: _Int = 0
    for row in range(len(starts)):
        position = copy_bytes(buffer, starts[row], ends[row], out, position)


@njit(cache=True, nogil=True)
def find_bad_utf8(data: Bytes, starts: Int64s, ends: Int64s, bad: Flags) -> int:
    """Mark the strings that are not UTF-8 (RFC 3629), and return their number."""
    count = 0
    for row in range(len(starts)):
        at, end = starts[row], ends[row]
        is_good = True
        while at < end and is_good:
            byte = data[at]
            at += 1
            if byte < 0x80:
                continue
            more, low, high = 0, 0x80, 0xBF
            if 0xC2 <= byte <= 0xDF:
                more = 1
            elif 0xE0 <= byte <= 0xEF:
                more = 2
                if byte == 0xE0:
                    low = 0xA0
                elif byte == 0xED:  # surrogates
                    high = 0x9F
            elif 0xF0 <= byte <= 0xF4:
                more = 3
                if byte == 0xF0:
                    low = 0x90
                elif byte == 0xF4:
                    high = 0x8F
            if more == 0 or more > end - at:
                is_good = False
                break
            for _ in range(more):
                if data[at] < low or data[at] > high:
                    is_good = False
                low, high = 0x80, 0xBF
                at += 1
        bad[row] = not is_good
        count += not is_good
    return count


@njit(cache=True, nogil=True)
def read_decimals(
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    limit_high: np.uint64,
    limit_low: np.uint64,
    values: NDArray[np.uint64],
    bad: Flags,
) -> int:
    """Write big-endian two's complement numbers as 128 bits, low half first; mark those beyond the limit, either sign.

    Return the number of marked ones.
    """
    count = 0
    zero, ones, eight = np.uint64(0), ~np.uint64(0), np.uint64(8)
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        is_negative = end > start and data[start] >= 0x80
        sign = ones if is_negative else zero
        sign_byte = 0xFF if is_negative else 0
        while end - start > 16 and data[start] == sign_byte:
            start += 1
        high, low = sign, sign
        fits = end - start <= 16
        if fits:
            for at in range(start, end):
                high = (high << eight) | (low >> np.uint64(56))
                low = (low << eight) | np.uint64(data[at])
            fits = (high >> np.uint64(63) != zero) == is_negative
        size_low = ~low + np.uint64(1) if is_negative else low
        size_high = high
        if is_negative:
            size_high = ~high + np.uint64(1) if size_low == zero else ~high
        if size_high > limit_high or (size_high == limit_high and size_low > limit_low):
            fits = False
        values[row, 0], values[row, 1] = low, high
        bad[row] = not fits
        count += not fits
    return count
