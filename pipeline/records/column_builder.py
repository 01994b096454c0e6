"""Builder of batches from columns: Arrow arrays of keys, values and encoded headers become one batch, in machine code.

The layout of a record is in `builder.py`. All records of a batch have one timestamp.

Heavy imports (numba, numpy, pyarrow): never imported by a broker or by the package at start.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numba import njit

from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchHeader, write_header
from pipeline.records.builder import Header, encode_headers
from pipeline.records.compression import Codec, compress
from pipeline.records.kernels import Bytes, Int32s, Int64s, copy_bytes, write_varint

_MAX_RECORD_OVERHEAD: Final = 5 + 1 + 1 + 5 + 5 + 5
"""Bytes of a record beside key, value and headers: length, attributes, deltas, lengths of key and value."""
NO_HEADERS: Final = encode_headers(())

COLUMNS = pa.schema([pa.field(name, pa.binary()) for name in ("key", "value", "headers")])
"""Rows to build: `headers` are encoded by `encode_headers`, their count first, and never null."""


def row_sizes(rows: pa.RecordBatch) -> Int64s:
    """Return an upper bound of each row's bytes in a batch without compression."""
    sizes = np.full(rows.num_rows, _MAX_RECORD_OVERHEAD, dtype=np.int64)
    for column in rows.columns:
        sizes += np.diff(_offsets(column))
    return sizes


def build_batch(
    rows: pa.RecordBatch, *, codec: Codec, timestamp_ms: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytearray:
    """Return a batch of all rows (schema COLUMNS). Raises ValueError without rows."""
    if not rows.num_rows:
        raise ValueError("a batch needs at least one record")
    keys, values = _parts(rows.column("key")), _parts(rows.column("value"))
    _, header_ends, headers = _parts(rows.column("headers"))
    payload = np.empty(int(row_sizes(rows).sum()), dtype=np.uint8)
    used = _encode(*keys, *values, header_ends, headers, payload)
    batch = bytearray(HEADER_SIZE)
    plain = payload.data[:used]
    batch += plain if codec is Codec.NONE else compress(codec, plain)
    header = BatchHeader(
        base_offset=0,
        batch_length=len(batch) - LOG_OVERHEAD,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec,
        last_offset_delta=rows.num_rows - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=rows.num_rows,
    )
    write_header(batch, header)
    return batch


def header_column(headers: pa.Array | None, count: int) -> pa.Array:
    """Return the encoded headers of each row. `headers`: list of (key, value) structs, or None if no row has any."""
    if headers is None or headers.null_count == len(headers) or not len(headers.flatten()):
        ends = np.arange(count + 1, dtype=np.int32) * len(NO_HEADERS)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(NO_HEADERS * count)])
    return pa.array([encode_headers(_pairs(row)) for row in headers.to_pylist()], pa.binary())


def partitions_for_keys(keys: pa.Array, without_key: int, partition_count: int) -> Int32s:
    """Return the partition of each row: by key as `partition_for_key`, and `without_key` for rows without one."""
    is_present, offsets, data = _parts(keys)
    return np.asarray(_partitions(is_present, offsets, data, without_key, partition_count))


def _pairs(row: Sequence[dict[str, object]] | None) -> list[Header]:
    return [(pair["key"], pair["value"]) for pair in row or ()]  # type: ignore[misc]  # Arrow's types


def _offsets(column: pa.Array) -> Int32s:
    return np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]


def _parts(column: pa.Array) -> tuple[Bytes, Int32s, Bytes]:
    """Return presence, offsets and bytes of a binary column."""
    is_present = np.asarray(column.is_valid()).astype(np.uint8)
    data = column.buffers()[2]
    plain = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.zeros(0, dtype=np.uint8)
    return is_present, _offsets(column).copy(), plain


@njit(cache=True, nogil=True)
def _varint_size(value: int) -> int:
    rest = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _encode(
    has_key: Bytes,
    key_ends: Int32s,
    keys: Bytes,
    has_value: Bytes,
    value_ends: Int32s,
    values: Bytes,
    header_ends: Int32s,
    headers: Bytes,
    out: Bytes,
) -> int | np.int64:
    position: int | np.int64 = 0
    for row in range(len(has_key)):
        key_size = key_ends[row + 1] - key_ends[row] if has_key[row] else -1
        value_size = value_ends[row + 1] - value_ends[row] if has_value[row] else -1
        header_size = header_ends[row + 1] - header_ends[row]
        size = 2 + _varint_size(row) + _varint_size(key_size) + _varint_size(value_size)
        size += max(key_size, 0) + max(value_size, 0) + header_size
        position = write_varint(out, position, size)
        out[position] = 0  # attributes
        out[position + 1] = 0  # timestamp delta
        position = write_varint(out, position + 2, row)
        position = write_varint(out, position, key_size)
        if key_size > 0:
            copy_bytes(keys, key_ends[row], key_ends[row + 1], out, position)
            position += key_size
        position = write_varint(out, position, value_size)
        if value_size > 0:
            copy_bytes(values, value_ends[row], value_ends[row + 1], out, position)
            position += value_size
        copy_bytes(headers, header_ends[row], header_ends[row + 1], out, position)
        position += header_size
    return position


@njit(cache=True, nogil=True)
def _partitions(is_present: Bytes, offsets: Int32s, data: Bytes, without_key: int, partition_count: int) -> Int32s:
    mask = 0xFFFFFFFF
    multiplier = 0x5BD1E995
    chosen = np.empty(len(is_present), dtype=np.int32)
    for row in range(len(is_present)):
        if not is_present[row]:
            chosen[row] = without_key
            continue
        start, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        value = np.int64(0x9747B28C) ^ (end - start)
        while start + 4 <= end:
            word = np.int64(data[start]) | np.int64(data[start + 1]) << 8
            word |= np.int64(data[start + 2]) << 16 | np.int64(data[start + 3]) << 24
            word = word * multiplier & mask
            word = ((word ^ (word >> 24)) * multiplier) & mask
            value = ((value * multiplier) & mask) ^ word
            start += 4
        if start < end:
            word = np.int64(0)
            for index in range(end - start):
                word |= np.int64(data[start + index]) << (8 * index)
            value = ((value ^ word) * multiplier) & mask
        value = ((value ^ (value >> 13)) * multiplier) & mask
        value ^= value >> 15
        chosen[row] = (value & 0x7FFFFFFF) % partition_count
    return chosen
