"""Machine-code loops (numba) that take the envelopes of a container's block apart.

Invariant: no byte outside the block is read, whatever it holds, as in `avro_kernels`.
"""

from typing import Final

import numpy as np
from numba import njit

from pipeline.hadoop.avro.avro_kernels import MAX_DEPTH, MAX_FREE_STEPS, read_long, skip_bytes, skip_datum
from pipeline.records.kernels import Bytes, Int64s, copy_bytes

_Int = int | np.int64

_BRANCH: Final = 4
_LENGTH: Final = 3
_TRAILING_BYTES: Final = 5

OFFSET: Final = 0
PARTITION: Final = 1
TIMESTAMP: Final = 2
KEY_START: Final = 3
KEY_END: Final = 4
VALUE_START: Final = 5
VALUE_END: Final = 6
HEADER_END: Final = 7
ENVELOPE_FIELDS: Final = 8
"""Columns of the table of envelopes. A start of -1 stands for null; HEADER_END is a row's end in the headers."""


@njit(cache=True, nogil=True)
def _read_optional(buffer: Bytes, position: _Int, end: _Int) -> tuple[_Int, _Int, int]:
    """Return start (-1: null) and end of optional bytes, and a fault."""
    branch, position, fault = read_long(buffer, position, end)
    if fault:
        return -1, position, fault
    if branch == 0:
        return -1, position, 0
    if branch != 1:
        return -1, position, _BRANCH
    length, position, fault = read_long(buffer, position, end)
    if fault:
        return -1, position, fault
    if length < 0 or length > end - position:
        return -1, position, _LENGTH
    return position, position + length, 0


@njit(cache=True, nogil=True)
def split_envelopes(
    kinds: Int64s,
    arguments: Int64s,
    child_counts: Int64s,
    children: Int64s,
    buffer: Bytes,
    envelopes: Int64s,
    headers: Int64s,
) -> tuple[_Int, int]:
    """Fill a row of `envelopes` for each envelope of the block, and a row (key, value: start, end) for each header.

    Return the number of headers, and a fault. Values are datums of the schema's table.
    """
    stack = np.empty((MAX_DEPTH + len(children), 2), dtype=np.int64)
    position: _Int = 0
    header: _Int = 0
    end = len(buffer)
    for row in range(len(envelopes)):
        start, position, fault = _read_optional(buffer, position, end)
        if fault:
            return header, fault
        envelopes[row, KEY_START], envelopes[row, KEY_END] = start, position
        for field in range(OFFSET, TIMESTAMP + 1):
            number, position, fault = read_long(buffer, position, end)
            if fault:
                return header, fault
            envelopes[row, field] = number
        while True:
            items, position, fault = read_long(buffer, position, end)
            if not fault and items < 0:
                items = -items
                _, position, fault = read_long(buffer, position, end)
            if fault:
                return header, fault
            if items == 0:
                break
            if items < 0 or items > len(headers) - header:
                return header, _LENGTH
            for _ in range(items):
                after_key, fault = skip_bytes(buffer, position, end)
                if fault:
                    return header, fault
                _length, key_start, fault = read_long(buffer, position, end)
                headers[header, 0], headers[header, 1] = key_start, after_key
                start, position, fault = _read_optional(buffer, after_key, end)
                if fault:
                    return header, fault
                headers[header, 2], headers[header, 3] = start, position
                header += 1
        envelopes[row, HEADER_END] = header
        branch, position, fault = read_long(buffer, position, end)
        if fault:
            return header, fault
        envelopes[row, VALUE_START] = -1
        if branch == 1:
            envelopes[row, VALUE_START] = position
            steps = MAX_FREE_STEPS + 16 * (end - position)
            position, fault, _ = skip_datum(
                kinds, arguments, child_counts, children, buffer, position, end, 0, steps, stack
            )
            if fault:
                return header, fault
        elif branch != 0:
            return header, _BRANCH
        envelopes[row, VALUE_END] = position
    return header, (_TRAILING_BYTES if position != end else 0)


@njit(cache=True, nogil=True)
def gather_spans(buffer: Bytes, starts: Int64s, ends: Int64s, prefix: Bytes, out: Bytes, out_ends: Int64s) -> None:
    """Copy buffer[start:end] of all rows behind `prefix` into `out`; a start of -1 copies nothing."""
    position: _Int = 0
    for row in range(len(starts)):
        if starts[row] >= 0:
            position = copy_bytes(prefix, 0, len(prefix), out, position)
            position = copy_bytes(buffer, starts[row], ends[row], out, position)
        out_ends[row + 1] = position
