"""Decodes Avro datums into Arrow columns, resolved from the schema they were written with to another one.

Logical types become Arrow's (dates, times, timestamps, decimals); they are decoded as plain numbers
and converted afterwards, so that a date beyond Python's calendar is no error.
"""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.types import Schema

from pipeline.hadoop.avro.avro_schema import HEADERS, KEY, OFFSET, PARTITION, TIMESTAMP, SchemaError
from pipeline.hadoop.avro.datums import DatumSchema

TOMBSTONE = "_tombstone"
VALUE = "value"

RECORD_FIELDS: Sequence[pa.Field] = (
    pa.field(KEY, pa.binary()),
    pa.field(OFFSET, pa.int64()),
    pa.field(PARTITION, pa.int32()),
    pa.field(TIMESTAMP, pa.timestamp("ms", tz="UTC")),
    pa.field(HEADERS, pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    pa.field(TOMBSTONE, pa.bool_()),
)
"""Columns beside those of the value. `_tombstone` tells a null value from one whose fields are all null."""

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}

_DECODE_ERRORS = (
    ValueError,
    TypeError,
    EOFError,
    IndexError,
    KeyError,
    OverflowError,
    SchemaParseException,
    UnknownType,
    SchemaResolutionError,
)


class DatumDecodeError(Exception):
    """A whole datum cannot be decoded: it holds bad UTF-8, or its schema cannot be resolved to the reader's."""


class DatumColumns:
    """Columns of one reader schema: the fields of a record, or a single column `value` for any other type."""

    def __init__(self, reader: DatumSchema) -> None:
        """Raise SchemaError for a type that has no column: a union of several types, or one that holds itself."""
        self.reader_id = reader.id
        self._reader = _without_logical_types(reader.parsed)
        data_type = _arrow_type(reader.parsed, {}, ())
        self._is_record = pa.types.is_struct(data_type)
        fields = list(data_type) if self._is_record else [pa.field(VALUE, data_type)]
        taken = {field.name for field in RECORD_FIELDS}
        clash = [field.name for field in fields if field.name in taken]
        if clash:
            raise SchemaError(f"schema {reader.id}: the field name {clash[0]} is taken; load the topic as avro")
        self.schema = pa.schema([*RECORD_FIELDS, *(field.with_nullable(True) for field in fields)])
        self._type = pa.struct([field.with_nullable(True) for field in fields])
        self._writers: dict[int, Any] = {}

    def decoder(self, writer: DatumSchema) -> Callable[[bytes], dict[str, Any]]:
        """Return a function that decodes an unframed datum of `writer` into a row. It raises DatumDecodeError."""
        if writer.id not in self._writers:
            self._writers[writer.id] = _without_logical_types(writer.parsed)
        writer_schema = self._writers[writer.id]
        reader_schema = None if writer.id == self.reader_id else self._reader

        def decode(datum: bytes) -> dict[str, Any]:
            try:
                decoded = fastavro.schemaless_reader(BytesIO(datum), writer_schema, reader_schema)
            except _DECODE_ERRORS as error:
                raise DatumDecodeError(f"{type(error).__name__}: {error}") from error
            return decoded if self._is_record else {VALUE: decoded}  # type: ignore[return-value]

        return decode

    def to_arrow(self, rows: pa.RecordBatch, decoded: Sequence[dict[str, Any] | None]) -> pa.RecordBatch:
        """Return rows with their decoded values, None for a tombstone."""
        values = pa.array(decoded, self._type)
        columns = [*record_columns(rows), *values.flatten()]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


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


def _arrow_type(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> pa.DataType:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) > 1:
            raise SchemaError("a union of several types has no column; load the topic as avro")
        return _arrow_type(branches[0] if branches else "null", named, inside)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in inside:
            raise SchemaError(f"type {schema} contains itself and has no column; load the topic as avro")
        return _arrow_type(named[schema], named, inside)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _arrow_type(kind, named, inside)
    if "name" in schema:
        named[schema["name"]] = schema
    if schema.get("logicalType") == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    logical = _LOGICAL.get((kind, schema.get("logicalType", "")))
    if logical is not None:
        return logical
    match kind:
        case "record" | "error":
            inner = (*inside, schema["name"])
            return pa.struct(
                [pa.field(field["name"], _arrow_type(field["type"], named, inner)) for field in schema["fields"]]
            )
        case "array":
            return pa.list_(_arrow_type(schema["items"], named, inside))
        case "map":
            return pa.map_(pa.string(), _arrow_type(schema["values"], named, inside))
        case "enum":
            return pa.string()
        case "fixed":
            return pa.binary(schema["size"])
        case _:
            return _arrow_type(kind, named, inside)


def _without_logical_types(schema: Any) -> Schema:
    return fastavro.parse_schema(_stripped(schema))


def _stripped(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_stripped(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not key.startswith("__")}
    if kept.get("logicalType") != "decimal":
        kept.pop("logicalType", None)
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = _stripped(kept[key])
    if "fields" in kept:
        kept["fields"] = [dict(field, type=_stripped(field["type"])) for field in kept["fields"]]
    return kept
