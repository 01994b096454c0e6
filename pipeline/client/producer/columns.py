"""Tables as batches: rows are validated, cut into pieces, assigned to partitions and encoded without an object per row.

The functions here need no event loop: `Producer.send_columns` runs the long ones in a thread, and adds what they return
to the accumulator.

Invariants:
- A table is read whole before its first row is sent: a row that cannot be sent is named, and nothing is sent then.
- What a piece is encoded from is made twice, to validate it and to encode it, and held for one piece at a time.
- Rows of a partition keep their order. Each piece is accepted as a whole, so the rows that were accepted come first.

Heavy imports (numba, numpy, pyarrow): imported when the first table is sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import UNKNOWN_OFFSET, DeliveryError, ProducerBatch
from pipeline.errors import DeadlineExceededError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE
from pipeline.records.builder import MAX_TIMESTAMP_MS
from pipeline.records.column_builder import COLUMNS, HEADERS_TYPE, EncodableRows, header_column, partitions_for_keys
from pipeline.records.kernels import Int32s, Int64s

PIECE_BYTES: Final = 4 << 20
"""Size of the rows that are encoded at a time."""
_PIECE_ROWS: Final = 1 << 17
_MAX_ROW_OVERHEAD: Final = 40
"""Most bytes of a row beside key, value and headers."""
_LIKELY_ROW_OVERHEAD: Final = 20
"""Bytes of most rows beside key, value and headers, with a little room."""
_MAX_OFFSET: Final = int(np.iinfo(np.int32).max)
_NAMES: Final = frozenset({"key", "value", "headers", "timestamp", "partition"})
_CAST_TO_BINARY: Final = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_binary_view,
    pa.types.is_string_view,
    pa.types.is_fixed_size_binary,
    pa.types.is_null,
)
PLACES_SCHEMA: Final = pa.schema([pa.field("partition", pa.int32()), pa.field("offset", pa.int64())])


@dataclass(frozen=True, slots=True, eq=False)
class TablePiece:
    """Rows of the table that are encoded and accepted together, known to be valid.

    `size_bytes` is a bound of their bytes in batches; `greatest_named` the highest partition that a row names, or -1;
    `now_ms` the timestamp of rows without one.
    """

    first_row: int
    rows: pa.RecordBatch
    size_bytes: int
    greatest_named: int
    now_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class _EncodablePiece:
    """A piece of schema COLUMNS. `named`: the partition that a row names, -1 if it names none.

    `sizes` are bounds of the bytes of each row.
    """

    rows: pa.RecordBatch
    timestamps_ms: Int64s
    named: Int32s
    sizes: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class BuiltBatch:
    """A batch of rows of the table, and the memory that it is charged with."""

    partition: int
    rows: Int64s
    data: bytearray
    charge: int
    timestamp_ms: int


class ColumnsNotAcceptedError(DeadlineExceededError):
    """The memory stayed full, or the topic or the producer was gone after the first rows.

    The rows before `accepted_rows` were accepted: `delivery` is theirs.
    """

    def __init__(self, delivery: "ColumnsDelivery", reason: str) -> None:
        self.delivery = delivery
        self.accepted_rows = delivery.accepted_rows
        super().__init__(f"{reason}; the first {delivery.accepted_rows} of {delivery.row_count} rows were accepted")


class ColumnsDelivery:
    """The outcome of a table, known at the latest when the producer's delivery timeout is over."""

    def __init__(self, row_count: int) -> None:
        self.row_count = row_count
        self.accepted_rows = 0
        self._parts: list[tuple[Int64s, ProducerBatch]] = []

    def add(self, rows: Int64s, batch: ProducerBatch) -> None:
        """Take over a batch that was accepted."""
        self._parts.append((rows, batch))

    @property
    def is_done(self) -> bool:
        """True if `wait` returns at once."""
        return all(batch.outcome.is_over for _, batch in self._parts)

    @property
    def failures(self) -> list[tuple[Int64s, DeliveryError]]:
        """Rows that were not delivered, as arrays of their numbers, each with the reason. Empty until it is known."""
        return [
            (rows, batch.outcome.error) for rows, batch in self._parts if isinstance(batch.outcome.error, DeliveryError)
        ]

    async def wait(self) -> pa.RecordBatch:
        """Wait until all rows are acknowledged, and return their places: columns `partition` and `offset`.

        Raises the first DeliveryError, once the outcome of every row is known; then see `failures` and `places`.
        """
        for _, batch in self._parts:
            await batch.outcome.wait_over()
        return self.result()

    def result(self) -> pa.RecordBatch:
        """Return what `wait` returns, if `is_done`. Raises the first DeliveryError."""
        for _, error in self.failures:
            raise error
        return self.places()

    def places(self) -> pa.RecordBatch:
        """Return partition and offset of each row, in the order of the table.

        Null for rows without outcome, and for those that were not delivered. An offset is -1 as in RecordMetadata.
        """
        partitions = np.zeros(self.row_count, dtype=np.int32)
        offsets = np.zeros(self.row_count, dtype=np.int64)
        is_missing = np.ones(self.row_count, dtype=bool)
        for rows, batch in self._parts:
            if batch.outcome.is_over and batch.outcome.error is None:
                partitions[rows] = batch.topic_partition.partition
                known = batch.base_offset != UNKNOWN_OFFSET
                offsets[rows] = batch.base_offset + np.arange(len(rows)) if known else UNKNOWN_OFFSET
                is_missing[rows] = False
        columns = [pa.array(partitions, mask=is_missing), pa.array(offsets, mask=is_missing)]
        return pa.RecordBatch.from_arrays(columns, schema=PLACES_SCHEMA)


def pieces_of(
    table: pa.Table | pa.RecordBatch, config: ProducerConfig, now_ms: int, max_charge: int
) -> list[TablePiece]:
    """Return the rows of a table in pieces, each row valid.

    Raises TypeError for what is no table or a column of a wrong type, ValueError for wrong columns and values, and
    KafkaError for a row that is too large.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise TypeError(f"a table or record batch of pyarrow is needed, not {type(table).__name__}")
    _check_columns(table)
    pieces: list[TablePiece] = []
    first_row = 0
    max_bytes = min(PIECE_BYTES, config.buffer_memory // 2)
    for chunk in table.to_batches(max_chunksize=_PIECE_ROWS):
        sizes = _sizes([chunk.column(name) for name in ("key", "value") if name in chunk.schema.names])
        _check_sizes(sizes, first_row, max_charge)
        for start, end in _cuts(sizes, max_bytes):
            rows = chunk.slice(start, end - start)
            piece = _encodable(rows, first_row + start, config, now_ms)
            _check_sizes(piece.sizes, first_row + start, max_charge)
            for first, last in _cuts(piece.sizes, max_bytes):
                size_bytes, greatest = int(piece.sizes[first:last].sum()), int(piece.named[first:last].max())
                part = rows.slice(first, last - first)
                pieces.append(TablePiece(first_row + start + first, part, size_bytes, greatest, now_ms))
        first_row += chunk.num_rows
    return pieces


def _sizes(columns: Sequence[pa.Array]) -> Int64s:
    """Return an upper bound of the bytes of each row."""
    sizes = np.full(len(columns[0]), _MAX_ROW_OVERHEAD, dtype=np.int64)
    for column in columns:
        sizes += _lengths(column)
    return sizes


def _check_sizes(sizes: Int64s, first_row: int, max_charge: int) -> None:
    """Raise KafkaError for a row that no request can hold."""
    wrong = np.flatnonzero(sizes > max_charge)
    if len(wrong):
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"row {first_row + wrong[0]} of up to {sizes[wrong[0]]} bytes; max.request.size and buffer.memory allow "
            f"for {max_charge}",
        )


def _check_columns(table: pa.Table) -> None:
    names = table.column_names
    if "value" not in names:
        raise ValueError(f"the table has no column 'value', but {names}")
    for name in names:
        if name not in _NAMES or names.count(name) > 1:
            raise ValueError(f"column {name!r} is none of {', '.join(sorted(_NAMES))}, or there twice: select columns")
    for name in ("key", "value"):
        if name in names and not any(fits(table.schema.field(name).type) for fits in _CAST_TO_BINARY):
            raise TypeError(f"column {name!r} must be binary or string, and is {table.schema.field(name).type}")
    for name, fits in (("partition", pa.types.is_integer), ("timestamp", _is_time)):
        if (
            name in names
            and not fits(table.schema.field(name).type)
            and not pa.types.is_null(table.schema.field(name).type)
        ):
            raise TypeError(f"column {name!r} has the type {table.schema.field(name).type}")

    if "headers" in names:
        try:
            pa.nulls(0, table.schema.field("headers").type).cast(HEADERS_TYPE)
        except pa.ArrowException as error:
            raise TypeError(f"column 'headers' must hold lists of structs of key and value: {error}") from error


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_integer(data_type))


def _cuts(sizes: Int64s, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of spans of at most `max_bytes`, at least one row long."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
        yield start, end
        start = end


def _lengths(column: pa.Array) -> Int64s:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), dtype=np.int64)
    if pa.types.is_binary_view(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_binary())
    return np.asarray(pc.binary_length(column).fill_null(0)).astype(np.int64)


def _encodable(rows: pa.RecordBatch, first_row: int, config: ProducerConfig, now_ms: int) -> _EncodablePiece:
    """Return the rows with encoded headers. Raises ValueError for a row that is not valid."""
    names = rows.schema.names
    count = rows.num_rows
    key = _binary(rows.column("key")) if "key" in names else pa.nulls(count, pa.binary())
    value = _binary(rows.column("value"))
    try:
        headers = header_column(rows.column("headers") if "headers" in names else None, count, config.record_headers)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"column 'headers', rows {first_row} to {first_row + count - 1}: {error}") from error
    timestamps_ms = np.full(count, now_ms, dtype=np.int64)
    if "timestamp" in names:
        timestamps_ms = _timestamps(rows.column("timestamp"), first_row, now_ms)
    named = np.full(count, -1, dtype=np.int32)
    if "partition" in names:
        named = _named_partitions(rows.column("partition"), first_row)
    encodable = pa.RecordBatch.from_arrays([key, value, headers], schema=COLUMNS)
    return _EncodablePiece(encodable, timestamps_ms, named, _sizes([key, value, headers]))


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_null(column.type):
        column = pa.nulls(len(column), pa.binary())
    if pa.types.is_binary_view(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_binary())
    if _end_of_bytes(column) > _MAX_OFFSET:
        column = column.take(pa.array(np.arange(len(column))))  # a copy, whose offsets begin at 0
    as_binary: pa.Array = column.cast(pa.binary())
    return as_binary


def _end_of_bytes(column: pa.Array) -> int:
    """Return where the bytes of a slice end in the buffer of its array, which may hold more than 32 bits can count."""
    end: int = column.offset + len(column)
    if pa.types.is_fixed_size_binary(column.type):
        return end * int(column.type.byte_width)
    if pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        return int(np.frombuffer(column.buffers()[1], dtype=np.int64)[end])
    return 0


def _timestamps(column: pa.Array, first_row: int, now_ms: int) -> Int64s:
    if pa.types.is_timestamp(column.type):
        try:
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=column.type.unit == "s")
        except pa.ArrowInvalid as error:
            raise ValueError(f"column 'timestamp', rows from {first_row} on: {error}") from error
    times = _as_int64(column, "timestamp", first_row).fill_null(now_ms).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((times < -MAX_TIMESTAMP_MS) | (times > MAX_TIMESTAMP_MS))
    if len(wrong):
        raise ValueError(
            f"row {first_row + wrong[0]}: a timestamp must be within {MAX_TIMESTAMP_MS} ms, and is {times[wrong[0]]}"
        )
    return np.ascontiguousarray(times, dtype=np.int64)


def _as_int64(column: pa.Array, name: str, first_row: int) -> pa.Array:
    try:
        numbers: pa.Array = column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name!r}, rows from {first_row} on: {error}") from error
    return numbers


def _named_partitions(column: pa.Array, first_row: int) -> Int32s:
    is_named = np.asarray(column.is_valid())
    given = _as_int64(column, "partition", first_row).fill_null(0).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(is_named & ((given < 0) | (given > np.iinfo(np.int32).max)))
    if len(wrong):
        raise ValueError(f"row {first_row + wrong[0]}: {given[wrong[0]]} is not a partition")
    return np.where(is_named, given, -1).astype(np.int32)


def sticky_count(piece: TablePiece, config: ProducerConfig) -> int:
    """Return a bound of the batches that the rows without key and partition fill."""
    return 1 + piece.size_bytes // _turn_bytes(config)


def _turn_bytes(config: ProducerConfig) -> int:
    return max(config.batch_size - HEADER_SIZE - _LIKELY_ROW_OVERHEAD, 1)


def build_piece(
    piece: TablePiece, config: ProducerConfig, partition_count: int, sticky: Sequence[int], max_charge: int
) -> list[BuiltBatch]:
    """Return the batches of a piece, in the order of its rows within each partition.

    `sticky`: partitions for the rows that have neither key nor partition; as many as `sticky_count` says.
    """
    encodable = _encodable(piece.rows, piece.first_row, config, piece.now_ms)
    partitions = _partitions_of(encodable, config, partition_count, sticky)
    order = np.arange(len(partitions), dtype=np.int64)
    if (partitions[1:] < partitions[:-1]).any():
        order = np.argsort(partitions, kind="stable")
    rows = EncodableRows(encodable.rows, encodable.timestamps_ms)
    max_bytes = min(config.batch_size - HEADER_SIZE, max_charge)
    ends, sizes = rows.cut(order, partitions, max_bytes, config.window_ms)
    built = []
    start = 0
    for end, size in zip(ends.tolist(), sizes.tolist(), strict=True):
        chosen = order[start:end]
        data = rows.build(chosen, size, codec=config.compression, level=config.compression_level)
        charge = min(len(data), size + HEADER_SIZE)
        timestamp_ms = int(encodable.timestamps_ms[chosen[0]])
        built.append(BuiltBatch(int(partitions[chosen[0]]), piece.first_row + chosen, data, charge, timestamp_ms))
        start = end
    return built


def _partitions_of(
    piece: _EncodablePiece, config: ProducerConfig, partition_count: int, sticky: Sequence[int]
) -> Int32s:
    """Return the partition of each row: as named, by key, or the next of `sticky` for each batch size of the others."""
    keys = piece.rows.column("key")
    partitions = partitions_for_keys(keys, -1, partition_count) if keys.null_count < len(keys) else piece.named.copy()
    partitions = np.where(piece.named >= 0, piece.named, partitions)
    is_free = partitions < 0
    if is_free.any():
        sizes = np.where(is_free, _LIKELY_ROW_OVERHEAD + _lengths(piece.rows.column("value")), 0)
        turn = np.minimum(np.cumsum(sizes) // _turn_bytes(config), len(sticky) - 1)
        partitions = np.where(is_free, np.asarray(sticky, dtype=np.int32)[turn], partitions)
    return partitions.astype(np.int32)
