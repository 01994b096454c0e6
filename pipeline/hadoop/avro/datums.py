"""Finds Avro datums behind a schema id, checks that they are whole, and puts them into envelopes, by columns.

The framing is Confluent's: a zero byte, the schema's id as a big-endian int32, the datum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_kernels import (
    ENVELOPE_OVERHEAD,
    FRAME_SIZE,
    HEADER_OVERHEAD,
    DatumFault,
    Flags,
    find_faults,
    write_envelopes,
)
from pipeline.hadoop.avro.avro_schema import SchemaError, SchemaTable, parse, schema_table
from pipeline.records.kernels import Bytes, Int32s, Int64s

SchemaLookup = Callable[[int], str]
"""Picklable function that returns a schema's text, references inlined. Raises SchemaError for an unknown id."""

NO_SCHEMA: Final = -1


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """A binary Arrow column as arrays: row i is data[ends[i]:ends[i + 1]]."""

    data: Bytes
    ends: Int32s
    present: Flags

    @classmethod
    def of(cls, array: pa.Array) -> "ByteColumn":
        """Return a view of a binary or string array."""
        _, ends, data = array.buffers()
        first = array.offset
        return cls(
            data=np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8),
            ends=np.zeros(1, np.int32) if not ends else np.frombuffer(ends, np.int32)[first : first + len(array) + 1],
            present=array.is_valid().to_numpy(zero_copy_only=False),
        )

    @property
    def starts(self) -> Int64s:
        """First byte of each row."""
        return self.ends[:-1].astype(np.int64)

    @property
    def stops(self) -> Int64s:
        """Byte after each row."""
        return self.ends[1:].astype(np.int64)


def schema_ids(values: ByteColumn) -> tuple[Int64s, Bytes]:
    """Return by row the schema id (NO_SCHEMA for null or an unframed value), and a Fault for an unframed value."""
    starts = values.starts
    framed = values.present & (values.stops - starts >= FRAME_SIZE)
    at = np.where(framed, starts, 0)
    padded = values.data if len(values.data) >= FRAME_SIZE else np.zeros(FRAME_SIZE, np.uint8)
    framed &= padded[at] == 0
    ids = np.zeros(len(at), dtype=np.int64)
    for byte in range(1, FRAME_SIZE):
        ids = ids << 8 | padded[at + byte]
    framed &= ids < 2**31
    faults = np.where(values.present & ~framed, int(DatumFault.FRAME), 0).astype(np.uint8)
    return np.where(framed, ids, NO_SCHEMA), faults


@dataclass(frozen=True, slots=True, eq=False)
class DatumSchema:
    """A schema and the forms derived from it, once per task."""

    id: int
    text: str
    parsed: Any
    table: SchemaTable

    def find_faults(self, values: ByteColumn, rows: NDArray[np.intp]) -> Bytes:
        """Return a Fault for each of `rows`, whose values are framed datums of this schema."""
        faults = np.zeros(len(rows), dtype=np.uint8)
        table = self.table
        starts, ends = values.starts[rows] + FRAME_SIZE, values.stops[rows]
        find_faults(table.kind, table.argument, table.child_count, table.children, values.data, starts, ends, faults)
        return faults


def compiled(schema_id: int, text: str) -> DatumSchema:
    """Return a schema with its forms. Raises SchemaError if the text is none."""
    parsed = parse(text)
    return DatumSchema(schema_id, text, parsed, schema_table(parsed))


class DatumSchemas:
    """Schemas by id, each looked up and compiled once, also those that are none."""

    def __init__(self, lookup: SchemaLookup) -> None:
        self._lookup = lookup
        self._known: dict[int, DatumSchema] = {}
        self._bad: dict[int, str] = {}

    def get(self, schema_id: int) -> DatumSchema:
        """Return a schema. Raises SchemaError, and as the lookup if the registry does not answer."""
        if schema_id in self._bad:
            raise SchemaError(self._bad[schema_id])
        known = self._known.get(schema_id)
        if known is None:
            try:
                known = self._known[schema_id] = compiled(schema_id, self._lookup(schema_id))
            except SchemaError as error:
                self._bad[schema_id] = str(error)
                raise
        return known


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Encoded rows laid end to end; row i ends at ends[i]."""

    data: Bytes
    ends: Int64s


def encode_envelopes(rows: pa.RecordBatch, *, is_datum: bool, reasons: pa.Array | None = None) -> Envelopes:
    """Encode rows as datums of `envelope_schema`, with a reason each if there are reasons.

    With `is_datum`, values lose their frame, else they are bytes.
    """
    key, value = ByteColumn.of(rows.column("key")), ByteColumn.of(rows.column("value"))
    headers = rows.column("headers")
    first = headers.offset
    header_index = np.frombuffer(headers.buffers()[1], np.int32)[first : first + len(headers) + 1]
    pairs = headers.values
    header_key, header_value = ByteColumn.of(pairs.field("key")), ByteColumn.of(pairs.field("value"))
    starts, stops = value.starts, value.stops
    if is_datum:
        starts = np.minimum(starts + FRAME_SIZE, stops)
    header_count = int(header_index[-1] - header_index[0])
    size = len(rows) * ENVELOPE_OVERHEAD + header_count * HEADER_OVERHEAD
    reason = ByteColumn.of(pa.array([], pa.string()) if reasons is None else reasons)
    if reasons is not None:
        size += len(rows) * HEADER_OVERHEAD
    for column in (key, value, reason):
        size += int(column.ends[-1] - column.ends[0])
    for column in (header_key, header_value):
        size += int(column.ends[header_index[-1]] - column.ends[header_index[0]])
    encoded = np.empty(size, dtype=np.uint8)
    ends = np.empty(len(rows), dtype=np.int64)
    write_envelopes(
        rows.column("offset").to_numpy(),
        rows.column("partition").to_numpy(),
        rows.column("timestamp_ms").to_numpy(),
        key.data,
        key.ends,
        key.present,
        header_index,
        header_key.data,
        header_key.ends,
        header_value.data,
        header_value.ends,
        header_value.present,
        value.data,
        starts,
        stops,
        value.present,
        is_datum,
        reason.data,
        reason.ends,
        encoded,
        ends,
    )
    return Envelopes(encoded, ends)
