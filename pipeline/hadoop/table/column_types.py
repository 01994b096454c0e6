"""Columns of a table whose files were written with different columns. Pure.

The table's schema is the union of its files' columns by name. Types that differ are promoted as Avro promotes them:
int to long, numbers to double, text and bytes to bytes, decimals to one that holds both, structs field by field.
Invariant: a cast from a file's column to the table's column keeps every value (a long above 2**53 that becomes a
double is rounded, as Avro rounds it), or raises TimeRangeError.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import PipelineError

MAX_PRECISION = 38
"""Digits of Spark's decimals. Longer decimals are read as text."""

_UTC = "UTC"


class ColumnConflictError(PipelineError):
    """Two files have columns of one name whose types have no common type."""

    def __init__(self, column: str, first: object, second: object) -> None:
        super().__init__(
            f"column '{column}' is {first} in some files and {second} in others, which have no common type. "
            "Read the commits before the change by versionAsOf"
        )
        self.column = column


class TimeRangeError(PipelineError):
    """A time of a file is out of range of microseconds."""

    def __init__(self, column: str) -> None:
        super().__init__(
            f"column '{column}' has a time that microseconds cannot count, which an earlier version loaded. "
            "Read the other columns, by .schema(...)"
        )
        self.column = column


def table_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a table has for a file's type: one that Spark can hold.

    Timestamps count microseconds, times of the day are the numbers of Avro, decimals of more than 38 digits are text.
    """
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=_UTC if kind.tz else None)
    if pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_time64(kind):
        return pa.int64()
    if pa.types.is_decimal(kind):
        return pa.string() if kind.precision > MAX_PRECISION else pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, table_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(table_type(kind.key_type), table_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", table_type(kind.value_type)))
    return kind


def common_schema(schemas: Iterable[Sequence[pa.Field]]) -> pa.Schema:
    """Return the columns of a table over files of these columns, in order of appearance. Raises ColumnConflictError."""
    columns: dict[str, pa.DataType] = {}
    for fields in schemas:
        for field in fields:
            kind = table_type(field.type)
            known = columns.get(field.name)
            columns[field.name] = kind if known is None else _common_type(field.name, known, kind)
    return pa.schema([pa.field(name, _without_null(kind)) for name, kind in columns.items()])


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the columns of `schema`: missing ones are null, others are cast. Raises TimeRangeError."""
    names = set(batch.schema.names)
    columns = [
        cast_array(batch.column(field.name), field.type, field.name)
        if field.name in names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_array(array: pa.Array, kind: pa.DataType, name: str) -> Any:
    """Cast a column to a type that `common_schema` found for it. Fields of structs are matched by name.

    Raises TimeRangeError that has `name`.
    """
    if array.type.equals(kind):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    validity = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        given = {field.name: index for index, field in enumerate(array.type)}
        flat = array.flatten()
        children = [
            cast_array(flat[given[field.name]], field.type, f"{name}.{field.name}")
            if field.name in given
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=validity)
    if pa.types.is_map(kind):
        array = array if not array.offset else pa.concat_arrays([array])
        keys, items = cast_array(array.keys, kind.key_type, name), cast_array(array.items, kind.item_type, name)
        return pa.MapArray.from_arrays(_offsets(array), keys, items, kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_offsets(array), cast_array(array.values, kind.value_type, name), type=kind)
    if pa.types.is_timestamp(array.type) and array.type.unit in ("s", "ms"):
        try:
            return pc.cast(array, kind)  # unchecked, a time out of range would become another one
        except pa.ArrowInvalid as error:
            raise TimeRangeError(name) from error
    return pc.cast(array, kind, safe=False)


def _offsets(array: pa.Array) -> Any:
    """Return the offsets of lists or maps, null where the list is: so that a rebuilt array keeps its nulls."""
    offsets = array.offsets
    if not array.null_count:
        return offsets
    mask = pa.concat_arrays([array.is_null(), pa.array([False])])
    return pc.if_else(mask, pa.scalar(None, pa.int32()), offsets)


def _common_type(name: str, first: pa.DataType, second: pa.DataType) -> pa.DataType:
    if first.equals(second) or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    if _is_number(first) and _is_number(second):
        return pa.int64() if pa.types.is_integer(first) and pa.types.is_integer(second) else pa.float64()
    if _is_text(first) and _is_text(second):
        return pa.binary()
    if pa.types.is_decimal(first) and pa.types.is_decimal(second):
        scale = max(first.scale, second.scale)
        digits = max(first.precision - first.scale, second.precision - second.scale)
        if digits + scale <= MAX_PRECISION:
            return pa.decimal128(digits + scale, scale)
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        fields = {field.name: field.type for field in first}
        for field in second:
            known = fields.get(field.name)
            fields[field.name] = (
                field.type if known is None else _common_type(f"{name}.{field.name}", known, field.type)
            )
        return pa.struct([pa.field(key, kind) for key, kind in fields.items()])
    if pa.types.is_map(first) and pa.types.is_map(second):
        return pa.map_(pa.string(), _common_type(f"{name}.value", first.item_type, second.item_type))
    if pa.types.is_list(first) and pa.types.is_list(second):
        return pa.list_(pa.field("element", _common_type(f"{name}.element", first.value_type, second.value_type)))
    raise ColumnConflictError(name, first, second)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _without_null(kind: pa.DataType) -> pa.DataType:
    """Return the type with text in place of null, which no column of Spark's files has."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_null(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_null(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _without_null(kind.value_type)))
    return kind
