"""The machine-code loops of compaction (numba): scan batch headers, hash keys into the table, select records.

Invariants:

- No read outside of the stated bytes, whatever they hold: a failure is a code of `Fault`, never an exception.
- The table of keys is open addressing over rows of (hash, hash, offset + 1): 24 bytes per key, as Kafka's. Two keys are
  taken for one only if all 128 bits of their hash agree; the hash is SipHash-2-4 with a random key (Aumasson and
  Bernstein, 2012), so that nobody can prepare such keys.
- Kept records are copied as they lie; time deltas are written anew only where a batch gets its delete horizon
  (KIP-534).

`pipeline/testing/plain_cleaner.py` is the twin in plain Python.
"""

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.log.compaction.transaction_fates import ABORTED, ENDED, MARKER, RECORDS
from pipeline.model import MAX_INT64
from pipeline.records.batch import DELETE_HORIZON, HEADER_SIZE, LOG_OVERHEAD, MAGIC, MIN_RECORD_SIZE, TRANSACTIONAL
from pipeline.records.kernels import Bytes, Fault, Int64s, copy_bytes, read_varint, write_varint

Table = NDArray[np.uint64]
_Int = int | np.int64

# The columns of the table of batches: what the header says,
POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_OFFSET: Final = 3
ATTRIBUTES: Final = 4
BASE_TIMESTAMP: Final = 5
MAX_TIMESTAMP: Final = 6
PRODUCER_ID: Final = 7
RECORD_COUNT: Final = 8
# where its records lie, uncompressed, whether it stays when it is empty, its fate as part of a transaction,
START: Final = 9
END: Final = 10
KEEP_EMPTY: Final = 11
FATE: Final = 12
# and what becomes of it.
ACTION: Final = 13
OUT_START: Final = 14
OUT_END: Final = 15
KEPT: Final = 16
KEPT_MAX_TIMESTAMP: Final = 17
GETS_HORIZON: Final = 18
BATCH_FIELDS: Final = 19

DROP: Final = 0
COPY: Final = 1
EMPTY: Final = 2
REWRITE: Final = 3

# The columns of the places of kept records.
_START: Final = 0
_BEHIND_TIME: Final = 1
_END: Final = 2
_TIME: Final = 3

ENTRY_BYTES: Final = 24
MAX_GROWTH_BYTES: Final = 16
"""Maximum growth of a record whose time delta is rewritten."""

_NONE: Final = int(Fault.NONE)
_NUMBER: Final = int(Fault.NUMBER)
_RECORD_LENGTH: Final = int(Fault.RECORD_LENGTH)
_TIMESTAMP: Final = int(Fault.TIMESTAMP)
_OFFSET: Final = int(Fault.OFFSET)
_FIELD_LENGTH: Final = int(Fault.FIELD_LENGTH)
_TRAILING_BYTES: Final = int(Fault.TRAILING_BYTES)

_LOG_APPEND_TIME: Final = 0x08
_HORIZON: Final = DELETE_HORIZON


@njit(cache=True, nogil=True)
def _big_endian(buffer: Bytes, position: _Int, width: int) -> _Int:
    value = np.int64(np.int8(buffer[position]))
    for index in range(1, width):
        value = (value << 8) | np.int64(buffer[position + index])
    return value


@njit(cache=True, nogil=True)
def scan_headers(buffer: Bytes, end: int, next_offset: _Int, batches: Int64s) -> tuple[int, _Int, bool]:
    """Fill the table with the headers of the whole batches before `end`, as many as it has rows.

    Returns (batches, where they end, sound): not sound if what follows is no batch or its offset is before
    `next_offset`.
    """
    position: _Int = 0
    row = 0
    while row < len(batches) and end - position >= HEADER_SIZE:
        base_offset = _big_endian(buffer, position, 8)
        length = _big_endian(buffer, position + 8, 4)
        last_delta = _big_endian(buffer, position + 23, 4)
        count = _big_endian(buffer, position + 57, 4)
        if (
            buffer[position + 16] != MAGIC
            or length < HEADER_SIZE - LOG_OVERHEAD
            or last_delta < 0
            or base_offset < next_offset
            or base_offset > MAX_INT64 - last_delta - 1
            or count < 0
            or count > last_delta + 1
        ):
            return row, position, False
        if length + LOG_OVERHEAD > end - position:
            break
        batches[row, POSITION] = position
        batches[row, SIZE] = length + LOG_OVERHEAD
        batches[row, BASE_OFFSET] = base_offset
        batches[row, LAST_OFFSET] = base_offset + last_delta
        batches[row, ATTRIBUTES] = _big_endian(buffer, position + 21, 2)
        batches[row, BASE_TIMESTAMP] = _big_endian(buffer, position + 27, 8)
        batches[row, MAX_TIMESTAMP] = _big_endian(buffer, position + 35, 8)
        batches[row, PRODUCER_ID] = _big_endian(buffer, position + 43, 8)
        batches[row, RECORD_COUNT] = count
        batches[row, START] = position + HEADER_SIZE
        batches[row, END] = position + length + LOG_OVERHEAD
        batches[row, KEEP_EMPTY] = 0
        batches[row, FATE] = RECORDS
        next_offset = base_offset + last_delta + 1
        position += length + LOG_OVERHEAD
        row += 1
    return row, position, True


@njit(cache=True, nogil=True)
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _sip_round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@njit(cache=True, nogil=True)
def hash_key(buffer: Bytes, start: _Int, length: _Int, k0: np.uint64, k1: np.uint64) -> tuple[np.uint64, np.uint64]:
    """SipHash-2-4 with 128 bits of `length` bytes."""
    v0 = k0 ^ np.uint64(0x736F6D6570736575)
    v1 = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = k0 ^ np.uint64(0x6C7967656E657261)
    v3 = k1 ^ np.uint64(0x7465646279746573)
    position = start
    for _ in range(length // 8):
        word = np.uint64(0)
        for index in range(8):
            word |= np.uint64(buffer[position + index]) << np.uint64(8 * index)
        position += 8
        v3 ^= word
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
        v0 ^= word
    word = np.uint64(length & 0xFF) << np.uint64(56)
    for index in range(length % 8):
        word |= np.uint64(buffer[position + index]) << np.uint64(8 * index)
    v3 ^= word
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@njit(cache=True, nogil=True)
def _slot_of(table: Table, first: np.uint64, second: np.uint64) -> _Int:
    """The row of the key, or the free row where it belongs. At least one row must be free."""
    slot: _Int = np.int64(first % np.uint64(len(table)))
    while table[slot, 2] != np.uint64(0) and (table[slot, 0] != first or table[slot, 1] != second):
        slot += 1
        if slot == len(table):
            slot = 0
    return slot


@njit(cache=True, nogil=True)
def _read_record(
    buffer: Bytes, position: _Int, batch_end: _Int
) -> tuple[int, _Int, _Int, _Int, _Int, _Int, _Int, _Int]:
    """(fault, time delta, behind the time delta, offset delta, key's start, key's length, value's length, end)."""
    length, position = read_varint(buffer, position, batch_end, 32)
    if position < 0:
        return _NUMBER, 0, 0, 0, 0, 0, 0, 0
    if length < 1 or length > batch_end - position:
        return _RECORD_LENGTH, 0, 0, 0, 0, 0, 0, 0
    end = position + length
    time_delta, behind_time = read_varint(buffer, position + 1, end, 64)
    if behind_time < 0:
        return _NUMBER, 0, 0, 0, 0, 0, 0, 0
    offset_delta, position = read_varint(buffer, behind_time, end, 32)
    if position < 0:
        return _NUMBER, 0, 0, 0, 0, 0, 0, 0
    key_length, key_start = read_varint(buffer, position, end, 32)
    if key_start < 0:
        return _NUMBER, 0, 0, 0, 0, 0, 0, 0
    if key_length < -1 or key_length > end - key_start:
        return _FIELD_LENGTH, 0, 0, 0, 0, 0, 0, 0
    value_length, position = read_varint(buffer, key_start + max(key_length, 0), end, 32)
    if position < 0:
        return _NUMBER, 0, 0, 0, 0, 0, 0, 0
    if value_length < -1 or value_length > end - position:
        return _FIELD_LENGTH, 0, 0, 0, 0, 0, 0, 0
    return _NONE, time_delta, behind_time, offset_delta, key_start, key_length, value_length, end


@njit(cache=True, nogil=True)
def map_keys(
    buffer: Bytes,
    batches: Int64s,
    from_offset: int,
    table: Table,
    used: int,
    max_used: int,
    k0: np.uint64,
    k1: np.uint64,
) -> tuple[int, int, int, _Int, bool]:
    """Note the last offset of each key of records from `from_offset` on.

    Returns (fault, batch it was found in, rows used, offset up to which all is noted, whether the table is full).
    Only batches whose fate is RECORDS are noted: nothing is superseded by what was aborted.
    """
    next_offset: _Int = from_offset
    for batch in range(len(batches)):
        if batches[batch, LAST_OFFSET] < from_offset:
            continue
        if batches[batch, FATE] == RECORDS:
            position = batches[batch, START]
            batch_end = batches[batch, END]
            last_delta: _Int = -1
            for _ in range(batches[batch, RECORD_COUNT]):
                fault, _, _, delta, key_start, key_length, _, position = _read_record(buffer, position, batch_end)
                if fault:
                    return fault, batch, used, next_offset, False
                offset = batches[batch, BASE_OFFSET] + delta
                if delta <= last_delta or offset > batches[batch, LAST_OFFSET]:
                    return _OFFSET, batch, used, next_offset, False
                last_delta = delta
                if key_length < 0 or offset < from_offset:
                    continue
                first, second = hash_key(buffer, key_start, key_length, k0, k1)
                slot = _slot_of(table, first, second)
                if table[slot, 2] == np.uint64(0):
                    if used >= max_used:
                        return _NONE, batch, used, next_offset, True
                    used += 1
                    table[slot, 0] = first
                    table[slot, 1] = second
                table[slot, 2] = np.uint64(offset + 1)
                next_offset = offset + 1
            if position != batch_end:
                return _TRAILING_BYTES, batch, used, next_offset, False
        next_offset = batches[batch, LAST_OFFSET] + 1
    return _NONE, 0, used, next_offset, False


@njit(cache=True, nogil=True)
def _varint_size(value: _Int) -> int:
    rest = np.uint64(value << 1) ^ np.uint64(value >> 63)
    size = 1
    while rest >= np.uint64(0x80):
        rest >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _keep_records(
    buffer: Bytes,
    batch: Int64s,
    table: Table,
    mapped_end: int,
    now_ms: int,
    k0: np.uint64,
    k1: np.uint64,
    places: Int64s,
) -> tuple[int, int, bool]:
    """Find the records that a batch keeps: rows of (start, behind its time, end, time) in `places`.

    Returns (fault, rows, True if one of them is a deletion).
    """
    base_timestamp = batch[BASE_TIMESTAMP]
    are_deletes_over = batch[ATTRIBUTES] & _HORIZON != 0 and base_timestamp <= now_ms
    kept = 0
    has_deletion = False
    position = batch[START]
    for _ in range(batch[RECORD_COUNT]):
        start = position
        fault, delta, behind_time, offset_delta, key_start, key_length, value_length, position = _read_record(
            buffer, start, batch[END]
        )
        if fault:
            return fault, 0, False
        time = base_timestamp + delta
        if ((base_timestamp ^ time) & (delta ^ time)) < 0:
            return _TIMESTAMP, 0, False
        offset = batch[BASE_OFFSET] + offset_delta
        if offset < mapped_end:
            if key_length < 0 or (value_length < 0 and are_deletes_over):
                continue
            first, second = hash_key(buffer, key_start, key_length, k0, k1)
            if np.uint64(offset + 1) < table[_slot_of(table, first, second), 2]:
                continue
        places[kept, _START] = start
        places[kept, _BEHIND_TIME] = behind_time
        places[kept, _END] = position
        places[kept, _TIME] = time
        kept += 1
        has_deletion = bool(has_deletion or value_length < 0)
    return (_NONE if position == batch[END] else _TRAILING_BYTES), kept, has_deletion


@njit(cache=True, nogil=True)
def select_records(
    buffer: Bytes,
    batches: Int64s,
    table: Table,
    mapped_end: int,
    now_ms: int,
    horizon_ms: int,
    k0: np.uint64,
    k1: np.uint64,
    out: Bytes,
) -> tuple[int, int]:
    """Decide on each batch, and write the records of rewritten batches into `out`.

    `out` must have room for all payloads and MAX_GROWTH_BYTES for each record. Returns (fault, batch it was found in).
    """
    most = 0
    for number in range(len(batches)):
        if batches[number, RECORD_COUNT] * MIN_RECORD_SIZE > batches[number, END] - batches[number, START]:
            return _RECORD_LENGTH, number
        most = max(most, batches[number, RECORD_COUNT])
    places = np.empty((most, 4), np.int64)
    filled: _Int = 0
    for number in range(len(batches)):
        batch = batches[number]
        has_horizon = batch[ATTRIBUTES] & _HORIZON != 0
        is_ended = batch[FATE] == ENDED
        if batch[FATE] == MARKER or (is_ended and has_horizon):
            is_over = is_ended and batch[BASE_TIMESTAMP] <= now_ms and batch[KEEP_EMPTY] == 0
            batch[ACTION] = DROP if is_over else COPY
            continue
        kept = 0
        has_deletion = False
        if batch[FATE] != ABORTED:
            judged_end = 0 if is_ended else mapped_end
            fault, kept, has_deletion = _keep_records(buffer, batch, table, judged_end, now_ms, k0, k1, places)
            if fault:
                return fault, number
        times = places[:kept, _TIME]
        gets_horizon = (has_deletion or is_ended) and not has_horizon and _is_in_reach(times, horizon_ms)
        batch[KEPT] = kept
        batch[GETS_HORIZON] = gets_horizon
        if kept == 0:
            is_empty = batch[RECORD_COUNT] == 0 and batch[ATTRIBUTES] & TRANSACTIONAL == 0
            batch[ACTION] = DROP if batch[KEEP_EMPTY] == 0 else COPY if is_empty else EMPTY
            continue
        if kept == batch[RECORD_COUNT] and not gets_horizon:
            batch[ACTION] = COPY
            continue
        batch[ACTION] = REWRITE
        is_append_time = batch[ATTRIBUTES] & _LOG_APPEND_TIME != 0
        batch[KEPT_MAX_TIMESTAMP] = batch[MAX_TIMESTAMP] if is_append_time else max(np.int64(-1), times.max())
        batch[OUT_START] = filled
        if gets_horizon:
            filled = _write_with_horizon(buffer, places[:kept], horizon_ms, out, filled)
        else:
            filled = _write_as_they_are(buffer, places[:kept], out, filled)
        batch[OUT_END] = filled
    return _NONE, 0


@njit(cache=True, nogil=True)
def _is_in_reach(times: Int64s, horizon_ms: int) -> bool:
    """Return True if these times fit as deltas to the horizon, as all times of a clock do."""
    return not (((times ^ horizon_ms) & (times ^ (times - horizon_ms))) < 0).any()


@njit(cache=True, nogil=True)
def _write_as_they_are(buffer: Bytes, places: Int64s, out: Bytes, filled: _Int) -> _Int:
    row = 0
    while row < len(places):
        start = places[row, _START]
        end = places[row, _END]
        row += 1
        while row < len(places) and places[row, _START] == end:
            end = places[row, _END]
            row += 1
        filled = copy_bytes(buffer, start, end, out, filled)
    return filled


@njit(cache=True, nogil=True)
def _write_with_horizon(buffer: Bytes, places: Int64s, horizon_ms: int, out: Bytes, filled: _Int) -> _Int:
    """Write records with their times as deltas to the horizon, the new base timestamp of their batch."""
    for row in range(len(places)):
        delta = places[row, _TIME] - horizon_ms
        end = places[row, _END]
        _, attributes = read_varint(buffer, places[row, _START], end, 32)
        filled = write_varint(out, filled, 1 + _varint_size(delta) + end - places[row, _BEHIND_TIME])
        out[filled] = buffer[attributes]
        filled = write_varint(out, filled + 1, delta)
        filled = copy_bytes(buffer, places[row, _BEHIND_TIME], end, out, filled)
    return filled
