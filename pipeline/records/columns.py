"""Columns of opened batches: arrays of offsets, timestamps and field positions over one buffer, and Arrow from them.

Invariants:
- No object per record. Fields stay in the given buffer if nothing in it is compressed, else in one new buffer. So the
  columns are valid as long as the given buffer is not changed.
- Checksums are verified, unless the caller has done so. Bytes that are no batches raise CorruptBatchError; no byte
  outside of them is read.
- Arrays are of Arrow's memory pool, which keeps its pages: a large array of numpy has a page fault for each 4 KiB.
- Control batches are not opened: they are listed, and `next_offset` counts them.

Heavy imports (numba, numpy, pyarrow): never imported by a broker or by the package at start.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipeline.errors import CorruptBatchError, OpenedBatchTooLargeError
from pipeline.records.batch import (
    HEADER_SIZE,
    MIN_RECORD_SIZE,
    BatchHeader,
    TimestampType,
    iterate_headers,
    verify_crc,
)
from pipeline.records.compression import Codec, ReadableBuffer, decompress, plain_limits
from pipeline.records.kernels import (
    BATCH_FIELDS,
    FAULT_REASONS,
    Bytes,
    Fault,
    Int32s,
    Int64s,
    gather,
    parse_headers,
    parse_records,
)
from pipeline.records.memory import MIN_OPENED_BYTES, OPENED_BATCHES
from pipeline.records.record import MAX_UNCOMPRESSED_BYTES

_MAX_BUFFER_BYTES = 2**31 - 1
_COLUMNS_BYTES = 64
"""Memory of the arrays for each record, without headers."""

_HEADER_TYPE = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
ARROW_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER_TYPE, nullable=False)), nullable=False),
        pa.field("batch", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fields:
    """Byte strings in the buffer: parallel arrays of position and length, length -1 for null."""

    position: Int32s
    length: Int32s

    def __getitem__(self, rows: slice) -> "Fields":
        return Fields(position=self.position[rows], length=self.length[rows])


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RecordColumns:
    """Columns of n records of m batches. `header_index` (n + 1 long): headers of row i are rows header_index[i] up to
    [i + 1] of `header_key` and `header_value`. `batch_index` points into `batches`. Timestamps in ms since 1970 UTC.
    """

    buffer: Bytes
    batches: tuple[BatchHeader, ...]
    control_batches: tuple[BatchHeader, ...]
    offset: Int64s
    timestamp: Int64s
    batch_index: Int32s
    key: Fields
    value: Fields
    header_index: Int32s
    header_key: Fields
    header_value: Fields

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def next_offset(self) -> int | None:
        """Offset after the last batch, control batches included: the next one to read. None without batches."""
        return max((header.next_offset for header in self.batches + self.control_batches), default=None)

    def between(self, start_offset: int, end_offset: int) -> "RecordColumns":
        """Return the records from `start_offset` to before `end_offset`, for batches in log order. Copies nothing."""
        first, last = np.searchsorted(self.offset, (start_offset, end_offset))
        rows = slice(int(first), max(int(first), int(last)))
        return replace(
            self,
            offset=self.offset[rows],
            timestamp=self.timestamp[rows],
            batch_index=self.batch_index[rows],
            key=self.key[rows],
            value=self.value[rows],
            header_index=self.header_index[rows.start : rows.stop + 1],
        )

    def to_arrow(self) -> pa.RecordBatch:
        """Return a record batch of ARROW_SCHEMA. Fields are copied once.

        A header key that is not UTF-8 gets replacement characters, as in Java clients.
        """
        return pa.RecordBatch.from_arrays([self.arrow_column(name) for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA)

    def arrow_column(self, name: str) -> pa.Array:
        """Return a column of ARROW_SCHEMA, as in `to_arrow`."""
        match name:
            case "offset":
                return _fixed_width(pa.int64(), self.offset)
            case "timestamp":
                return _fixed_width(pa.timestamp("ms", tz="UTC"), self.timestamp)
            case "timestamp_type":
                types = np.array([header.timestamp_type for header in self.batches], dtype=np.int32)
                return _fixed_width(pa.int32(), types[self.batch_index])
            case "key":
                return self._gathered(pa.binary(), self.key)
            case "value":
                return self._gathered(pa.binary(), self.value)
            case "headers":
                return self._arrow_headers()
            case _:
                return _fixed_width(pa.int32(), self.batch_index)

    def _arrow_headers(self) -> pa.Array:
        first, last = int(self.header_index[0]), int(self.header_index[-1])
        keys = self._gathered(pa.string(), self.header_key[first:last])
        try:
            keys.validate(full=True)
        except pa.ArrowInvalid:
            raw = self._gathered(pa.binary(), self.header_key[first:last]).to_pylist()
            keys = pa.array([key.decode(errors="replace") for key in raw], pa.string())
        values = self._gathered(pa.binary(), self.header_value[first:last])
        pairs = pa.Array.from_buffers(_HEADER_TYPE, last - first, [None], 0, children=[keys, values])
        indexes = pa.py_buffer(np.ascontiguousarray(self.header_index - first))
        data_type = ARROW_SCHEMA.field("headers").type
        return pa.Array.from_buffers(data_type, len(self), [None, indexes], 0, children=[pairs])

    def _gathered(self, data_type: pa.DataType, column: Fields) -> pa.Array:
        count = len(column.length)
        is_present = column.length >= 0
        null_count = count - int(np.count_nonzero(is_present))
        if null_count == count:
            nulls: pa.Array = pa.nulls(count, data_type)
            return nulls
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(column.length if not null_count else np.maximum(column.length, 0), out=offsets[1:])
        gathered = pa.allocate_buffer(int(offsets[-1]))
        gather(self.buffer, column.position, offsets, np.frombuffer(gathered, dtype=np.uint8))
        validity = pa.py_buffer(np.packbits(is_present, bitorder="little")) if null_count else None
        buffers = [validity, pa.py_buffer(offsets), gathered]
        return pa.Array.from_buffers(data_type, count, buffers, null_count)


def open_batches(
    buffer: ReadableBuffer,
    *,
    max_bytes: int = MAX_UNCOMPRESSED_BYTES,
    max_batch_bytes: int = MIN_OPENED_BYTES,
    is_verified: bool = False,
) -> RecordColumns:
    """Return the records of all whole batches in `buffer`; a partial last batch is left out.

    `max_bytes` bounds the payloads of all compressed batches together, `max_batch_bytes` each of them. `is_verified`:
    True for batches of a consumer, whose checksums were verified already. Blocks until
    there is memory to open them; the caller owns the columns. Raises CorruptBatchError, MemoryExhaustedError;
    OpenedBatchTooLargeError beyond a bound (with the offset, if a single batch is too large); ValueError if buffer and
    bound together reach 2 GiB: open the buffer in portions.
    """
    if len(buffer) + max_bytes > _MAX_BUFFER_BYTES:
        raise ValueError(f"{len(buffer)} bytes and up to {max_bytes} more are too many to open at once")
    opened: list[tuple[int, BatchHeader]] = []
    control: list[BatchHeader] = []
    for position, header in iterate_headers(buffer):
        if not is_verified:
            verify_crc(buffer, position, header)
        if header.is_control:
            control.append(header)
        else:
            opened.append((position, header))
    view = memoryview(buffer)
    sections = [(header.codec, view[start + HEADER_SIZE : start + header.size_bytes]) for start, header in opened]
    headers = tuple(header for _, header in opened)
    if all(codec is Codec.NONE for codec, _ in sections):
        spans = [(position + HEADER_SIZE, position + header.size_bytes) for position, header in opened]
        return _columns(buffer, spans, headers, tuple(control))
    plain_sections_bytes = sum(len(section) for codec, section in sections if codec is Codec.NONE)
    *likely, last = plain_limits(sections, max_bytes + plain_sections_bytes)
    for limit_bytes in (*likely, last):
        with OPENED_BATCHES.charged(_need_bytes(limit_bytes, headers)):
            try:
                plain, spans = _uncompress(sections, headers, limit_bytes, max_batch_bytes)
            except OpenedBatchTooLargeError as error:
                if error.offset is not None or limit_bytes == last:
                    raise
                continue
            return _columns(plain, spans, headers, tuple(control))
    raise AssertionError("the last limit suffices or raises")


def open_in_portions(
    buffer: ReadableBuffer,
    *,
    max_batch_bytes: int = MIN_OPENED_BYTES,
    portion_bytes: int = MIN_OPENED_BYTES,
    is_verified: bool = False,
) -> Iterator[RecordColumns]:
    """Yield the records of all whole batches in portions of at most `portion_bytes`, or of a single larger batch.

    `is_verified` as in `open_batches`, which says what is raised.
    """
    starts = [position for position, _ in iterate_headers(buffer)]
    try:
        max_bytes = portion_bytes if len(starts) > 1 else max(max_batch_bytes, MIN_OPENED_BYTES)
        columns = open_batches(buffer, max_bytes=max_bytes, max_batch_bytes=max_batch_bytes, is_verified=is_verified)
    except OpenedBatchTooLargeError as error:
        if error.offset is not None or len(starts) == 1:
            raise
    else:
        yield columns
        return
    # Outside of the handler: its error would keep the opened payloads alive.
    middle = starts[len(starts) // 2]
    view = memoryview(buffer)
    for half in (view[:middle], view[middle:]):
        yield from open_in_portions(
            half, max_batch_bytes=max_batch_bytes, portion_bytes=portion_bytes, is_verified=is_verified
        )


def _need_bytes(plain_bytes: int, headers: Sequence[BatchHeader]) -> int:
    """Return the memory of all payloads, of a second copy of the last one, and of the columns."""
    records = min(sum(header.record_count for header in headers), plain_bytes // MIN_RECORD_SIZE)
    return 2 * plain_bytes + _COLUMNS_BYTES * records


def _uncompress(
    sections: Sequence[tuple[Codec, ReadableBuffer]],
    headers: Sequence[BatchHeader],
    limit_bytes: int,
    max_batch_bytes: int,
) -> tuple[ReadableBuffer, list[tuple[int, int]]]:
    """Return a buffer of all payloads, and the span of each in it."""
    plain = bytearray()
    spans = []
    for (codec, section), header in zip(sections, headers, strict=True):
        rest_bytes = limit_bytes - len(plain)
        bound = rest_bytes if codec is Codec.NONE else min(rest_bytes, max_batch_bytes)
        try:
            payload = decompress(codec, section, bound)
        except OpenedBatchTooLargeError as error:
            is_own = codec is not Codec.NONE and max_batch_bytes <= rest_bytes
            raise OpenedBatchTooLargeError(bound, header.base_offset if is_own else None) from error
        start = len(plain)
        plain += payload
        spans.append((start, len(plain)))
    return plain, spans


def _columns(
    plain: ReadableBuffer,
    spans: Sequence[tuple[int, int]],
    headers: tuple[BatchHeader, ...],
    control: tuple[BatchHeader, ...],
) -> RecordColumns:
    table = np.empty((len(headers), BATCH_FIELDS), dtype=np.int64)
    for row, ((start, end), header) in enumerate(zip(spans, headers, strict=True)):
        if header.record_count * MIN_RECORD_SIZE > end - start:
            raise CorruptBatchError(f"{header.record_count} records in {end - start} bytes", header.base_offset)
        table[row] = (
            start,
            end,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.timestamp_type is TimestampType.LOG_APPEND_TIME,
            header.record_count,
        )
    # Read-only, so that each kernel is compiled for one type of buffer.
    array = np.frombuffer(memoryview(plain).toreadonly(), dtype=np.uint8)
    return _parse(array, table, headers, control)


def _parse(
    buffer: Bytes, table: Int64s, headers: tuple[BatchHeader, ...], control: tuple[BatchHeader, ...]
) -> RecordColumns:
    count = sum(header.record_count for header in headers)
    columns = RecordColumns(
        buffer=buffer,
        batches=headers,
        control_batches=control,
        offset=_new_int64s(count),
        timestamp=_new_int64s(count),
        batch_index=_new_int32s(count),
        key=_empty_fields(count),
        value=_empty_fields(count),
        header_index=_new_int32s(count + 1),
        header_key=_empty_fields(0),
        header_value=_empty_fields(0),
    )
    header_start = _new_int32s(count)
    record_end = _new_int32s(count)
    fault, batch = parse_records(
        buffer,
        table,
        columns.offset,
        columns.timestamp,
        columns.batch_index,
        columns.key.position,
        columns.key.length,
        columns.value.position,
        columns.value.length,
        columns.header_index,
        header_start,
        record_end,
    )
    if fault:
        raise CorruptBatchError(FAULT_REASONS[Fault(fault)], headers[batch].base_offset)
    header_count = int(columns.header_index[-1])
    if not header_count:
        return columns
    columns = replace(columns, header_key=_empty_fields(header_count), header_value=_empty_fields(header_count))
    fault, row = parse_headers(
        buffer,
        columns.header_index,
        header_start,
        record_end,
        columns.header_key.position,
        columns.header_key.length,
        columns.header_value.position,
        columns.header_value.length,
    )
    if fault:
        raise CorruptBatchError(FAULT_REASONS[Fault(fault)], headers[columns.batch_index[row]].base_offset)
    return columns


def _empty_fields(count: int) -> Fields:
    return Fields(position=_new_int32s(count), length=_new_int32s(count))


def _new_int64s(count: int) -> Int64s:
    return np.frombuffer(pa.allocate_buffer(8 * count), dtype=np.int64)


def _new_int32s(count: int) -> Int32s:
    return np.frombuffer(pa.allocate_buffer(4 * count), dtype=np.int32)


def _fixed_width(data_type: pa.DataType, values: Int32s | Int64s) -> pa.Array:
    return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))], 0)
