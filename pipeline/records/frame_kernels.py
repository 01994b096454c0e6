"""Machine-code loop (numba) that finds the schema ids of a batch's keys and values, in chunks of records.

An id is at the beginning of a field (0x00, id as int32), or in a header of the record (0x01 and a GUID of 16 bytes, or
0x00 and an id), which goes first. The last header of a name counts, as in Java clients.

Invariants:
- No read outside of the payload: each position is compared with its end before it is used.
- The same records are sound as for `record.py`, the pure-Python twin; anything else is a code of `Fault`.
- A chunk ends after CHUNK_RECORDS records, or before a record whose id finds no room in the table of its side. So
  memory does not depend on the number of records.
"""

from typing import Final

import numpy as np
from numba import njit

from pipeline.records.kernels import Bytes, Fault, Int32s, Int64s, read_field, read_varint

_Int = int | np.int64

CHUNK_RECORDS: Final = 4096
TABLE_IDS: Final = 64
"""Different ids of a chunk, for each side."""
SIDES: Final = 2
KEY: Final = 0
VALUE: Final = 1

# Entries of `state`.
POSITION: Final = 0
END: Final = 1
RECORDS_LEFT: Final = 2
LAST_DELTA: Final = 3
LAST_OFFSET_DELTA: Final = 4
BASE_TIMESTAMP: Final = 5
ROWS: Final = 6
"""Records of the chunk, set by `read_frames`."""
WANTED: Final = 7
"""Bits of the sides that are looked at: 1 for keys, 2 for values."""
MISSING: Final = 8
"""Entries MISSING + side: records of the chunk without an id on that side, set by `read_frames`."""
USED: Final = MISSING + SIDES
"""Entries USED + side: ids in the table of that side."""
TABLE_ID: Final = USED + SIDES
"""Ids of the tables, side after side."""
TABLE_AT: Final = TABLE_ID + SIDES * TABLE_IDS
"""Positions of the GUIDs of the tables."""
STATE_SIZE: Final = TABLE_AT + SIDES * TABLE_IDS

# Columns of `rows`.
INDEX: Final = 0
"""Place of the row's id in the table of its side, or NO_FIELD or NO_ID."""
START: Final = 1
"""Start of the row's datum, behind the id."""
STOP: Final = 2
"""End of the row's datum, -1 for a field that is null."""
COLUMNS: Final = 3

# Values of INDEX that are not places in the table.
NO_FIELD: Final = 255
"""A field that is null."""
NO_ID: Final = 254
"""A field without an id."""

OF_GUID: Final = -1
"""Entry of TABLE_ID for a GUID, whose 16 bytes are at the position in TABLE_AT."""

FRAME_BYTES: Final = 5
GUID_BYTES: Final = 17
_KEY_HEADER: Final = np.frombuffer(b"__key_schema_id", dtype=np.uint8)
_VALUE_HEADER: Final = np.frombuffer(b"__value_schema_id", dtype=np.uint8)

_NUMBER: Final = int(Fault.NUMBER)
_RECORD_LENGTH: Final = int(Fault.RECORD_LENGTH)
_TIMESTAMP: Final = int(Fault.TIMESTAMP)
_OFFSET: Final = int(Fault.OFFSET)
_FIELD_LENGTH: Final = int(Fault.FIELD_LENGTH)
_HEADER_COUNT: Final = int(Fault.HEADER_COUNT)
_TRAILING_BYTES: Final = int(Fault.TRAILING_BYTES)


@njit(cache=True, nogil=True)
def _equals(buffer: Bytes, start: _Int, name: Bytes) -> bool:
    differs = False
    for index in range(len(name)):
        differs |= buffer[start + index] != name[index]
    return not differs


@njit(cache=True, nogil=True)
def _find_id_headers(
    buffer: Bytes, position: _Int, end: _Int, count: _Int, header_at: Int64s, header_length: Int64s
) -> int:
    """Set position and length of the last header with an id, for each side; return a fault."""
    for _ in range(count):
        length, position = read_varint(buffer, position, end, 32)
        if position < 0:
            return _NUMBER
        if length < 0 or length > end - position:
            return _FIELD_LENGTH
        side = -1
        if length == len(_VALUE_HEADER) and _equals(buffer, position, _VALUE_HEADER):
            side = VALUE
        elif length == len(_KEY_HEADER) and _equals(buffer, position, _KEY_HEADER):
            side = KEY
        position += length
        length, position = read_varint(buffer, position, end, 32)
        if position < 0:
            return _NUMBER
        if length < -1 or length > end - position:
            return _FIELD_LENGTH
        if side >= 0:
            header_at[side], header_length[side] = position, max(length, 0)
        position += max(length, 0)
    return 0 if position == end else _TRAILING_BYTES


@njit(cache=True, nogil=True)
def _read_id(buffer: Bytes, start: _Int, end: _Int) -> _Int:
    """Return the id at the beginning of a field, -1 if there is none."""
    if end - start < FRAME_BYTES or buffer[start] != 0 or buffer[start + 1] > 127:
        return -1
    schema_id: _Int = np.int64(0)
    for position in range(start + 1, start + FRAME_BYTES):
        schema_id = schema_id << 8 | np.int64(buffer[position])
    return schema_id


@njit(cache=True, nogil=True)
def _enter_id(buffer: Bytes, state: Int64s, side: int, schema_id: _Int, guid_at: _Int) -> _Int:
    """Return the place of an id in the table of its side, where it is entered if it is new; -1 without room."""
    count: _Int = state[USED + side]
    first = side * TABLE_IDS
    for place in range(count):
        at = state[TABLE_AT + first + place]
        if state[TABLE_ID + first + place] == schema_id and (
            schema_id != OF_GUID or _equals(buffer, guid_at, buffer[at : at + GUID_BYTES - 1])
        ):
            return np.int64(place)
    if count == TABLE_IDS:
        return np.int64(-1)
    state[TABLE_ID + first + count], state[TABLE_AT + first + count] = schema_id, guid_at
    state[USED + side] = count + 1
    return count


@njit(cache=True, nogil=True)
def _enter_header(buffer: Bytes, state: Int64s, side: int, start: _Int, length: _Int) -> _Int:
    """Enter the id of a header: a GUID after 0x01, or an id after 0x00. Return as `_enter_id`; NO_ID for others."""
    if length == GUID_BYTES and buffer[start] == 1:
        return _enter_id(buffer, state, side, OF_GUID, start + 1)
    schema_id = _read_id(buffer, start, start + length) if length == FRAME_BYTES else np.int64(-1)
    return np.int64(NO_ID) if schema_id < 0 else _enter_id(buffer, state, side, schema_id, 0)


@njit(cache=True, nogil=True)
def _read_head(
    buffer: Bytes, position: _Int, batch_end: _Int, base_timestamp: _Int, last_delta: _Int, last_offset_delta: _Int
) -> tuple[_Int, _Int, _Int, int]:
    """Read a record up to its key. Return (position of the key, end of the record, offset delta, fault)."""
    length, at = read_varint(buffer, position, batch_end, 32)
    if at < 0:
        return 0, 0, 0, _NUMBER
    if length < 1 or length > batch_end - at:
        return 0, 0, 0, _RECORD_LENGTH
    end = at + length
    delta, at = read_varint(buffer, at + 1, end, 64)
    if at < 0:
        return 0, 0, 0, _NUMBER
    time = base_timestamp + delta
    if ((base_timestamp ^ time) & (delta ^ time)) < 0:
        return 0, 0, 0, _TIMESTAMP
    delta, at = read_varint(buffer, at, end, 32)
    if at < 0:
        return 0, 0, 0, _NUMBER
    if delta <= last_delta or delta > last_offset_delta:
        return 0, 0, 0, _OFFSET
    return at, end, delta, 0


@njit(cache=True, nogil=True)
def read_frames(buffer: Bytes, state: Int64s, rows: Int32s) -> int:
    """Read the next chunk of records into `state` and `rows` (by column, side and row); return a fault."""
    header_at, header_length = np.empty(SIDES, dtype=np.int64), np.empty(SIDES, dtype=np.int64)
    position, batch_end, wanted, records_left = state[POSITION], state[END], state[WANTED], state[RECORDS_LEFT]
    base_timestamp, last_delta, last_offset_delta = state[BASE_TIMESTAMP], state[LAST_DELTA], state[LAST_OFFSET_DELTA]
    last_id, last_place = np.full(SIDES, -1), np.empty(SIDES, dtype=np.int64)
    index, starts, ends = rows[INDEX], rows[START], rows[STOP]
    place: _Int = 0
    row = without_room = 0
    state[MISSING:TABLE_ID] = 0
    while row < CHUNK_RECORDS and row < records_left:
        at, end, delta, fault = _read_head(buffer, position, batch_end, base_timestamp, last_delta, last_offset_delta)
        if fault:
            return fault
        for side in range(SIDES):
            at, length, fault = read_field(buffer, at, end)
            if fault:
                return fault
            starts[side, row] = at
            at += max(length, 0)
            ends[side, row] = at if length >= 0 else -1
        count, at = read_varint(buffer, at, end, 32)
        if at < 0 or count < 0 or count > (end - at) // 2 or (count == 0 and at != end):
            return _HEADER_COUNT
        header_at[KEY] = header_at[VALUE] = -1
        fault = _find_id_headers(buffer, at, end, count, header_at, header_length) if count else 0
        if fault:
            return fault
        for side in range(SIDES):
            if not wanted >> side & 1:
                continue
            stop = ends[side, row]
            if stop < 0:
                place = NO_FIELD
            elif header_at[side] >= 0:
                place = _enter_header(buffer, state, side, header_at[side], header_length[side])
            else:
                schema_id = _read_id(buffer, starts[side, row], stop)
                starts[side, row] += FRAME_BYTES
                if schema_id < 0:
                    place = NO_ID
                elif schema_id != last_id[side]:
                    place = _enter_id(buffer, state, side, schema_id, 0)
                    last_id[side], last_place[side] = schema_id, place
                else:
                    place = last_place[side]
            index[side, row] = place
            state[MISSING + side] += int(place == NO_ID)
            without_room += int(place < 0)
        if without_room:
            break
        last_delta = delta
        row += 1
        position = end
    state[POSITION], state[LAST_DELTA] = position, last_delta
    state[RECORDS_LEFT], state[ROWS] = records_left - row, row
    return _TRAILING_BYTES if row == records_left and position != batch_end else 0
