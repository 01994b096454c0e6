"""Builder of batches from columns: Arrow arrays of keys, values and encoded headers become one batch, in machine code.

The layout of a record is in `builder.py`. Rows are given in any order, with a timestamp each or with one for all.

Invariant: no object per row. Kernels run without the GIL, and write within the sizes that `row_sizes` or `cut_rows`
count.

Heavy imports (numba, numpy, pyarrow): never imported by a broker or by the package at start.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numba import njit

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
from pipeline.records.builder import Header, encode_headers, encode_varint
from pipeline.records.compression import Codec, compress
from pipeline.records.kernels import Bytes, Int32s, Int64s, copy_bytes, write_varint

_SURE_OVERHEAD: Final = 1 + 5
"""Most bytes of a record for its attributes and offset delta."""
_MAX_SHORT: Final = 8000
"""Size below which the length of a record takes two bytes."""
_MAX_RECORD_OVERHEAD: Final = 5 + 1 + 1 + 5 + 5 + 5
"""Bytes of a record beside key, value and headers: length, attributes, deltas, lengths of key and value."""

COLUMNS = pa.schema([pa.field(name, pa.binary()) for name in ("key", "value", "headers")])
"""Rows to build: `headers` are encoded by `encode_headers`, their count first, and never null."""
_NO_BYTES: Final = np.zeros(0, dtype=np.uint8)
_NO_BYTES.setflags(write=False)  # as Arrow's buffers are, so that each kernel is compiled for one type
HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""Headers of a row before they are encoded."""


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
    encodable = EncodableRows(rows, np.full(rows.num_rows, timestamp_ms, dtype=np.int64))
    return encodable.build(
        np.arange(rows.num_rows, dtype=np.int64),
        int(row_sizes(rows).sum()),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


class EncodableRows:
    """Rows of schema COLUMNS with their timestamps in ms, of which batches are built."""

    def __init__(self, rows: pa.RecordBatch, timestamps_ms: Int64s) -> None:
        self.timestamps_ms = timestamps_ms
        self._parts = (*_parts(rows.column("key")), *_parts(rows.column("value")), *_parts(rows.column("headers"))[1:])

    def cut(self, chosen: Int64s, partitions: Int32s, max_bytes: int, window_ms: int | None) -> tuple[Int64s, Int64s]:
        """Return where batches of the chosen rows end, and how many bytes each takes at most, without header.

        A batch ends before a row of another partition or another window of time, and before it exceeds `max_bytes`.
        """
        _, key_ends, _, _, value_ends, _, header_ends, _ = self._parts
        return _cut(
            chosen, partitions, self.timestamps_ms, key_ends, value_ends, header_ends, max_bytes, window_ms or 0
        )

    def build(
        self,
        chosen: Int64s,
        size_bytes: int,
        *,
        codec: Codec,
        level: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
    ) -> bytearray:
        """Return a batch of the chosen rows, which take at most `size_bytes` without header and compression."""
        timestamps_ms = self.timestamps_ms[chosen]
        batch = bytearray(HEADER_SIZE + size_bytes)
        used = _encode(chosen, timestamps_ms, *self._parts, np.frombuffer(batch, dtype=np.uint8)[HEADER_SIZE:])
        if codec is Codec.NONE:
            del batch[HEADER_SIZE + used :]
        else:
            payload = compress(codec, memoryview(batch)[HEADER_SIZE : HEADER_SIZE + used], level)
            batch = bytearray(HEADER_SIZE)
            batch += payload
        header = BatchHeader(
            base_offset=0,
            batch_length=len(batch) - LOG_OVERHEAD,
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=codec,
            last_offset_delta=len(chosen) - 1,
            base_timestamp=int(timestamps_ms[0]),
            max_timestamp=int(timestamps_ms.max()),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(chosen),
        )
        write_header(batch, header)
        return batch


def header_column(headers: pa.Array | None, count: int, added: Sequence[Header] = ()) -> pa.Array:
    """Return the encoded headers of each row. `headers`: list of (key, value) structs, or None if no row has any.

    `added` follow the headers of each row. Raises ValueError for a header without a key.
    """
    encoded = encode_headers(added)
    if headers is None or headers.null_count == len(headers) or not len(headers.flatten()):
        ends = np.arange(count + 1, dtype=np.int32) * len(encoded)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)])
    return _encoded_headers(headers.cast(HEADERS_TYPE), len(added), encoded[len(encode_varint(len(added))) :])


def _encoded_headers(headers: pa.Array, added_count: int, added: bytes) -> pa.Array:
    """Encode lists of (key, value), each followed by headers that are encoded already."""
    has_list, ends = np.asarray(headers.is_valid()).astype(np.uint8), _offsets(headers)
    # Those of these rows alone: a slice has the pairs of the whole array.
    pairs = headers.values.slice(ends[0], ends[-1] - ends[0])
    ends = ends - ends[0]
    has_key, key_ends, key_data = _parts(pairs.field("key"))
    has_value, value_ends, value_data = _parts(pairs.field("value"))
    if not has_key.all() or not np.asarray(pairs.is_valid()).all():
        raise ValueError("a header without a key")
    row_ends = np.zeros(len(headers) + 1, dtype=np.int64)
    tail = np.frombuffer(added, dtype=np.uint8) if added else _NO_BYTES
    given = (has_list, ends, key_ends, key_data, has_value, value_ends, value_data, added_count, tail, row_ends)
    _encode_headers(*given, np.zeros(0, dtype=np.uint8))
    encoded = np.empty(row_ends[-1], dtype=np.uint8)
    _encode_headers(*given, encoded)
    buffers = [None, pa.py_buffer(row_ends.astype(np.int32)), pa.py_buffer(encoded)]
    return pa.Array.from_buffers(pa.binary(), len(headers), buffers)


def partitions_for_keys(keys: pa.Array, without_key: int, partition_count: int) -> Int32s:
    """Return the partition of each row: by key as `partition_for_key`, and `without_key` for rows without one."""
    is_present, offsets, data = _parts(keys)
    return np.asarray(_partitions(is_present, offsets, data, without_key, partition_count))


def _offsets(column: pa.Array) -> Int32s:
    return np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]


def _parts(column: pa.Array) -> tuple[Bytes, Int32s, Bytes]:
    """Return presence, offsets and bytes of a binary column."""
    is_present = np.asarray(column.is_valid()).astype(np.uint8)
    data = column.buffers()[2]
    plain = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else _NO_BYTES
    return is_present, _offsets(column).copy(), plain


@njit(cache=True, nogil=True)
def _varint_size(value: int | np.int64) -> int:
    rest = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _cut(
    chosen: Int64s,
    partitions: Int32s,
    timestamps: Int64s,
    key_ends: Int32s,
    value_ends: Int32s,
    header_ends: Int32s,
    max_bytes: int,
    window_ms: int,
) -> tuple[Int64s, Int64s]:
    ends = np.empty(len(chosen), dtype=np.int64)
    sizes = np.empty(len(chosen), dtype=np.int64)
    count = 0
    first = chosen[0]
    size = np.int64(0)
    for index in range(len(chosen)):
        row = chosen[index]
        key_size = np.int64(key_ends[row + 1] - key_ends[row])
        value_size = np.int64(value_ends[row + 1] - value_ends[row])
        header_size = np.int64(header_ends[row + 1] - header_ends[row])
        delta = np.int64(timestamps[row] - timestamps[first])
        row_size = key_size + value_size + header_size + _SURE_OVERHEAD
        row_size += _varint_size(delta) + _varint_size(key_size) + _varint_size(value_size)
        row_size += 2 if row_size < _MAX_SHORT else 5
        is_full = size > 0 and size + row_size > max_bytes
        if window_ms and timestamps[row] // window_ms != timestamps[first] // window_ms:
            is_full = np.bool_(True)
        if is_full or partitions[row] != partitions[first]:
            ends[count] = index
            sizes[count] = size
            count += 1
            first = row
            size = np.int64(0)
        size += row_size
    ends[count] = len(chosen)
    sizes[count] = size
    return ends[: count + 1], sizes[: count + 1]


@njit(cache=True, nogil=True)
def _encode(
    chosen: Int64s,
    timestamps: Int64s,
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
    for index in range(len(chosen)):
        row = chosen[index]
        delta = timestamps[index] - timestamps[0]
        key_size = key_ends[row + 1] - key_ends[row] if has_key[row] else -1
        value_size = value_ends[row + 1] - value_ends[row] if has_value[row] else -1
        header_size = header_ends[row + 1] - header_ends[row]
        size = 1 + _varint_size(delta) + _varint_size(index) + _varint_size(key_size) + _varint_size(value_size)
        size += max(key_size, 0) + max(value_size, 0) + header_size
        position = write_varint(out, position, size)
        out[position] = 0  # attributes
        position = write_varint(out, position + 1, delta)
        position = write_varint(out, position, index)
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
def _encode_headers(
    has_list: Bytes,
    ends: Int32s,
    key_ends: Int32s,
    keys: Bytes,
    has_value: Bytes,
    value_ends: Int32s,
    values: Bytes,
    added_count: int,
    added: Bytes,
    row_ends: Int64s,
    out: Bytes,
) -> None:
    """Sum up the sizes of the rows; the second time, when there is `out`, write them."""
    is_writing = len(out) > 0
    position: int | np.int64 = 0
    for row in range(len(has_list)):
        first, last = (ends[row], ends[row + 1]) if has_list[row] else (0, 0)
        count = last - first + added_count
        position = write_varint(out, position, count) if is_writing else position + _varint_size(count)
        for pair in range(first, last):
            key_size = key_ends[pair + 1] - key_ends[pair]
            value_size = value_ends[pair + 1] - value_ends[pair] if has_value[pair] else -1
            if is_writing:
                position = write_varint(out, position, key_size)
                position = copy_bytes(keys, key_ends[pair], key_ends[pair + 1], out, position)
                position = write_varint(out, position, value_size)
                if value_size > 0:
                    position = copy_bytes(values, value_ends[pair], value_ends[pair + 1], out, position)
            else:
                position += _varint_size(key_size) + key_size + _varint_size(value_size) + max(value_size, 0)
        if is_writing:
            copy_bytes(added, 0, len(added), out, position)
        position += len(added)
        row_ends[row + 1] = position


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
