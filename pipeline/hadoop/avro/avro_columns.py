"""Decodes Avro datums into Arrow columns, resolved from the schema they were written with to another one.

No object is made for a record, and no value makes the decoding fail: it is the fault of its row.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_kernels import FRAME_SIZE, Flags
from pipeline.hadoop.avro.avro_resolution import resolve
from pipeline.hadoop.avro.avro_schema import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, VALUE
from pipeline.hadoop.avro.column_decoder import ColumnDecoder
from pipeline.hadoop.avro.column_kernels import MAX_ADDED_BYTES, MAX_EMPTY_ITEMS
from pipeline.hadoop.avro.column_steps import value_bytes
from pipeline.hadoop.avro.column_types import TOMBSTONE, ColumnTypes, value_fields
from pipeline.hadoop.avro.datums import ByteColumn, DatumSchema

RECORD_FIELDS: Sequence[pa.Field] = (
    pa.field(KEY, pa.binary()),
    pa.field(OFFSET, pa.int64()),
    pa.field(PARTITION, pa.int32()),
    pa.field(TIMESTAMP, pa.timestamp("ms", tz="UTC")),
    pa.field(HEADERS, pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    pa.field(TOMBSTONE, pa.bool_()),
)
"""Columns beside those of the value. `_tombstone` tells a null value from one whose fields are all null."""

Faults = dict[int, str]
"""Row number of a bad row, and the reason."""


class DatumColumns:
    """Columns of one reader schema: the fields of a record, or a single column `value` for any other type."""

    def __init__(self, reader: DatumSchema) -> None:
        """Raise SchemaError for a type that has no columns: one that contains itself, or a name that is taken."""
        self.reader_id = reader.id
        self._reader = reader.table
        self._types = ColumnTypes(reader.table)
        fields, self._is_record = value_fields(reader.table, self._types)
        self.schema = pa.schema([*RECORD_FIELDS, *fields])
        self.value_type = pa.struct(fields)
        self._decoders: dict[int, ColumnDecoder] = {}
        self._row_bytes: dict[int, tuple[int, int]] = {}

    def dropped_fields(self, writer: DatumSchema) -> Sequence[str]:
        """Return the fields of the writer's schema that have no column."""
        return self._decoder(writer).dropped

    def row_bytes(self, writer: DatumSchema, datum_bytes: int) -> int:
        """Return the bytes that a row of the writer's may take in the columns beside those of its datum.

        datum_bytes: size of the datum, which has at most as many items in its lists, and MAX_EMPTY_ITEMS.
        """
        decoder = self._decoder(writer)
        known = self._row_bytes.get(writer.id)
        if known is None:
            known = self._row_bytes[writer.id] = value_bytes(decoder.step), int(decoder.added.max(initial=0))
        own, of_item = known
        items = datum_bytes + (MAX_EMPTY_ITEMS if decoder.has_empty_items else 0)
        return own + min(of_item * items, MAX_ADDED_BYTES)

    def decode(
        self, values: ByteColumn, writers: Sequence[tuple[DatumSchema, NDArray[np.intp]]]
    ) -> tuple[pa.StructArray, Faults]:
        """Return the values of all rows as a struct of the columns, null in rows of no writer; and faults by row.

        `writers` names the rows of each schema, whose values are framed datums. A bad row is null or any value.
        """
        rows = len(values.ends) - 1
        faults: Faults = {}
        if len(writers) == 1:
            writer, at = writers[0]
            valid = np.zeros(rows, dtype=np.bool_)
            valid[at] = True
            return self._as_struct(self._column(values, writer, at, valid, faults)), faults
        arrays = [pa.array([], self._types.of(0))]
        place = np.full(rows, -1, dtype=np.int64)
        base = 0
        for writer, at in writers:
            arrays.append(self._column(values, writer, at, None, faults))
            place[at] = np.arange(base, base + len(at))
            base += len(at)
        return self._as_struct(pa.concat_arrays(arrays).take(pa.array(place, mask=place < 0))), faults

    def to_arrow(self, rows: pa.RecordBatch, values: pa.StructArray) -> pa.RecordBatch:
        """Return rows with their decoded values, null for a tombstone."""
        return pa.RecordBatch.from_arrays([*record_columns(rows), *values.flatten()], schema=self.schema)

    def _decoder(self, writer: DatumSchema) -> ColumnDecoder:
        known = self._decoders.get(writer.id)
        if known is None:
            known = self._decoders[writer.id] = resolve(writer.table, self._reader, self._types)
        return known

    def _column(
        self, values: ByteColumn, writer: DatumSchema, at: NDArray[np.intp], valid: Flags | None, faults: Faults
    ) -> pa.Array:
        starts, stops = values.starts[at] + FRAME_SIZE, values.stops[at]
        column = self._decoder(writer).decode(values.data, starts, stops, valid)
        for fault in column.faults:
            for index in np.flatnonzero(fault.bad).tolist():
                row = index if valid is not None else int(at[index])
                faults.setdefault(row, f"schema {writer.id}: {fault.reason}")
        return column.array

    def _as_struct(self, array: pa.Array) -> pa.StructArray:
        if self._is_record and self.value_type.num_fields:
            return cast("pa.StructArray", array)
        children = [] if self._is_record else [array]
        return cast("pa.StructArray", pa.Array.from_buffers(self.value_type, len(array), [None], children=children))


def record_columns(rows: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns of RECORD_FIELDS."""
    return [
        rows.column("key"),
        rows.column("offset"),
        rows.column("partition"),
        rows.column("timestamp_ms").cast(pa.timestamp("ms", tz="UTC")),
        rows.column("headers").cast(RECORD_FIELDS[4].type),
        rows.column("value").is_null(),
    ]


PLAIN_SCHEMA = pa.schema([*RECORD_FIELDS, pa.field(VALUE, pa.binary())])
"""Columns of a file whose values stay bytes."""


def plain_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose values stay bytes."""
    return pa.RecordBatch.from_arrays([*record_columns(rows), rows.column("value")], schema=PLAIN_SCHEMA)


TOMBSTONE_SCHEMA = pa.schema(RECORD_FIELDS)
"""Columns of a file of tombstones alone, whose record type nobody knows. Any other file's columns agree with these."""


def tombstone_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without values."""
    return pa.RecordBatch.from_arrays(record_columns(rows), schema=TOMBSTONE_SCHEMA)
