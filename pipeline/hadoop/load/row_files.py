"""Writes files of rows: Avro containers of envelopes, and Parquet.

Bytes and CRC-32C of each file are summed up while it is written, for the manifest.
"""

from types import TracebackType
from typing import Final, Self

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_columns import (
    PLAIN_SCHEMA,
    TOMBSTONE_SCHEMA,
    DatumColumns,
    plain_columns,
    tombstone_columns,
)
from pipeline.hadoop.avro.avro_container import ContainerWriter, encode_long
from pipeline.hadoop.avro.avro_schema import BATCH_SCHEMA, PARTITION, envelope_schema
from pipeline.hadoop.avro.datums import DatumSchema, encode_envelopes
from pipeline.hadoop.commit.layout import place_of_rows
from pipeline.hadoop.files.doors import FileSink
from pipeline.hadoop.table.column_types import cast_batch, common_schema

AVRO_BLOCK_BYTES: Final = 512 * 1024
PARQUET_GROUP_BYTES: Final = 16 * 1024 * 1024
MAX_GROUP_BYTES: Final = 2 * PARQUET_GROUP_BYTES
_ROW_BYTES: Final = 32
"""Bytes that a row takes beside key and value."""

LEVEL_BYTES: Final = 4
"""Bytes that Parquet needs for an item of a list, beside its value."""


class SummingSink:
    """A sink that counts bytes and sums them up; also the file object that pyarrow writes to.

    As a context it drops what is written after an error: pyarrow ends a file, whose sink is gone, when it frees it.
    """

    closed = False

    def __init__(self, sink: FileSink) -> None:
        self._sink: FileSink | None = sink
        self.bytes = 0
        self.crc32c = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.give_up()

    def give_up(self) -> None:
        """Drop what is written from now on."""
        self._sink = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append all of `data`."""
        view = memoryview(data)
        if self._sink is None:
            return view.nbytes
        try:
            self._sink.write(view)
        except BaseException:
            self.give_up()
            raise
        self.bytes += view.nbytes
        self.crc32c = crc32c.crc32c(view, self.crc32c)
        return view.nbytes

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.bytes

    def flush(self) -> None:
        """Do nothing: no bytes wait here."""

    def close(self) -> None:
        """Do nothing: the owner of the sink closes it."""


class AvroFile:
    """Envelopes around the values of one schema, or around plain bytes, in blocks. `pending_bytes` are in memory.

    In a file of the quarantine the rows have a column `reason`.
    """

    def __init__(
        self, sink: SummingSink, schema: DatumSchema | None, codec: str, path: str, *, with_reason: bool = False
    ) -> None:
        """The bytes do not depend on the run in `path`, so that a replay writes the same ones."""
        self._is_datum = schema is not None
        self._with_reason = with_reason
        header = envelope_schema(None if schema is None else schema.text, with_reason=with_reason)
        self._container = ContainerWriter(sink, header, codec, place_of_rows(path))
        self._pending: list[memoryview] = []
        self._pending_rows = 0
        self.pending_bytes = 0

    def add(self, rows: pa.RecordBatch, values: pa.StructArray | None) -> None:  # noqa: ARG002 - datums are copied
        """Add rows; `values` are decoded if the file has columns for them."""
        reasons = rows.column("reason") if self._with_reason else None
        envelopes = encode_envelopes(rows, is_datum=self._is_datum, reasons=reasons)
        first_row, start = 0, 0
        data = envelopes.data.data
        while first_row < len(envelopes.ends):
            room = max(AVRO_BLOCK_BYTES - self.pending_bytes, 1)
            last_row = int(np.searchsorted(envelopes.ends, start + room)) + 1
            last_row = min(last_row, len(envelopes.ends))
            end = int(envelopes.ends[last_row - 1])
            self._pending.append(data[start:end])
            self._pending_rows += last_row - first_row
            self.pending_bytes += end - start
            first_row, start = last_row, end
            if self.pending_bytes >= AVRO_BLOCK_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write the rows that wait in memory."""
        if self._pending_rows:
            block = self._pending[0] if len(self._pending) == 1 else memoryview(b"".join(self._pending))
            self._container.write_block(block, self._pending_rows)
        self._pending, self._pending_rows, self.pending_bytes = [], 0, 0

    def finish(self) -> None:
        """Write the rows that wait, and the end of the file. The sink stays open."""
        self.flush()


class ParquetFile:
    """Columns of the record, and of decoded values, of plain bytes, or of no value. `pending_bytes` are in memory."""

    def __init__(
        self,
        sink: SummingSink,
        columns: DatumColumns | None,
        codec: str,
        *,
        is_plain: bool = False,
        has_table_types: bool = False,
        partition_column: str = PARTITION,
    ) -> None:
        """`is_plain` puts the bytes of the values into a column if there are no `columns`.

        `has_table_types` gives columns the types that a table has for them (`table_type`). `partition_column` is the
        name of the column of partitions.
        """
        self._columns = columns
        self._is_plain = is_plain
        self._has_table_types = has_table_types
        schema = columns.schema if columns is not None else PLAIN_SCHEMA if is_plain else TOMBSTONE_SCHEMA
        self._schema = common_schema([list(schema)]) if has_table_types else schema
        names = [partition_column if name == PARTITION else name for name in self._schema.names]
        self._written_schema = pa.schema([column.with_name(n) for column, n in zip(self._schema, names, strict=True)])
        compression = {"null": "none", "zstandard": "zstd", "deflate": "gzip"}.get(codec, codec)
        self._writer = pq.ParquetWriter(sink, self._written_schema, compression=compression)
        self._pending: list[pa.RecordBatch] = []
        self._group_bytes = 0
        self.pending_bytes = 0

    def add(self, rows: pa.RecordBatch, values: pa.StructArray | None) -> None:
        """Add rows; `values` are decoded if the file has columns for them.

        A row group ends after the row whose key and value fill PARQUET_GROUP_BYTES, however the rows come here; or
        earlier, if its columns fill MAX_GROUP_BYTES of memory.
        """
        if self._columns is not None and values is not None:
            batch = self._columns.to_arrow(rows, values)
        else:
            batch = plain_columns(rows) if self._is_plain else tombstone_columns(rows)
        if self._has_table_types:
            batch = cast_batch(batch, self._schema)
        ends = np.cumsum(_row_bytes(rows))
        first_row, start = 0, 0
        while first_row < len(ends):
            room = max(PARQUET_GROUP_BYTES - self._group_bytes, 1)
            last_row = min(int(np.searchsorted(ends, start + room)) + 1, len(ends))
            part = batch.slice(first_row, last_row - first_row)
            self._pending.append(part)
            self._group_bytes += int(ends[last_row - 1]) - start
            self.pending_bytes += part.nbytes + sum(LEVEL_BYTES * _items(column) for column in part.columns)
            first_row, start = last_row, int(ends[last_row - 1])
            if self._group_bytes >= PARQUET_GROUP_BYTES or self.pending_bytes >= MAX_GROUP_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write the rows that wait in memory."""
        if self._pending:
            rows = pa.Table.from_batches(self._pending, schema=self._schema).combine_chunks()
            rows = rows.rename_columns(self._written_schema.names)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._pending, self._group_bytes, self.pending_bytes = [], 0, 0

    def finish(self) -> None:
        """Write the rows that wait, and the end of the file. The sink stays open."""
        self.flush()
        self._writer.close()


class BatchFile:
    """Batches that could not be opened, each a block or several, as they come (`fault_rows`). Nothing is pending."""

    pending_bytes = 0

    def __init__(self, sink: SummingSink, codec: str, unique_name: str) -> None:
        self._container = ContainerWriter(sink, BATCH_SCHEMA, codec, unique_name)

    def add(self, rows: pa.RecordBatch, values: pa.StructArray | None) -> None:  # noqa: ARG002 - batches have none
        """Write rows of batches."""
        for row in rows.to_pylist():
            numbers = (row["partition"], row["offset"], row["batch_records"], row["timestamp_ms"], int(row["key"]))
            reason = row["batch_fault"].encode()
            fields = [*map(encode_long, numbers), encode_long(len(reason)), reason, encode_long(len(row["value"]))]
            self._container.write_block(memoryview(b"".join([*fields, row["value"]])), 1)

    def flush(self) -> None:
        """Do nothing: all rows are written."""

    def finish(self) -> None:
        """Do nothing: the file ends with its last block."""


RowFile = AvroFile | ParquetFile | BatchFile


def _items(array: pa.Array) -> int:
    """Return the number of items in the lists of a column, at all depths."""
    if pa.types.is_struct(array.type):
        return sum(_items(array.field(index)) for index in range(array.type.num_fields))
    if pa.types.is_map(array.type):
        return len(array.items) + _items(array.items)
    if pa.types.is_list(array.type):
        return len(array.values) + _items(array.values)
    return 0


def _row_bytes(rows: pa.RecordBatch) -> NDArray[np.int64]:
    sizes = np.full(rows.num_rows, _ROW_BYTES, dtype=np.int64)
    for name in ("key", "value"):
        sizes += pc.fill_null(pc.binary_length(rows.column(name)), 0).to_numpy(zero_copy_only=False)
    return sizes
