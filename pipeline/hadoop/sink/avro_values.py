"""Values as framed Avro datums: the column `value` is encoded by a schema of the registry.

The driver looks the schema up, or registers one that it derives from the column, and compares it with the column's
type; tasks encode by that schema without asking the registry.
"""

import io
import json
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import pyarrow as pa
import trio
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pipeline.client.registry.client import SchemaRegistryError, open_schema_registry
from pipeline.client.registry.references import complete_text
from pipeline.errors import ConfigurationError
from pipeline.net.http.login import NO_LOGIN, HttpLogin

_FRAME: Final = struct.Struct(">bi")
_INTS: Final = (ByteType, ShortType, IntegerType)
_ACCEPTED: Final[dict[str, tuple[type[DataType], ...]]] = {
    "boolean": (BooleanType,),
    "int": _INTS,
    "long": (*_INTS, LongType),
    "float": (FloatType,),
    "double": (FloatType, DoubleType),
    "string": (StringType,),
    "enum": (StringType,),
    "bytes": (BinaryType,),
    "fixed": (BinaryType,),
    "date": (*_INTS, DateType),
    "uuid": (StringType,),
    "timestamp-millis": (LongType, TimestampType),
    "timestamp-micros": (LongType, TimestampType),
    "local-timestamp-millis": (LongType, TimestampNTZType),
    "local-timestamp-micros": (LongType, TimestampNTZType),
    "time-millis": _INTS,
    "time-micros": (*_INTS, LongType),
}
"""Types of columns by Avro's types and logical types."""
_DERIVED: Final[dict[type[DataType], Any]] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
"""Avro types by types of columns, as Spark's `to_avro` chooses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroOptions:
    """Registry and subject of the schema of values. `subject` is None for `<topic>-value`."""

    registry: tuple[str, ...]
    subject: str | None
    registers: bool
    login: HttpLogin = NO_LOGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroValues:
    """Schema that values are encoded by; picklable."""

    schema_id: int
    text: str

    def encode(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with framed datums as `value`; null stays null. Raises ValueError that names the row."""
        schema = fastavro.parse_schema(json.loads(self.text))
        frame = _FRAME.pack(0, self.schema_id)
        index = rows.schema.get_field_index("value")
        column = rows.column(index)
        datums: list[Any] = column.to_pylist()
        if _holds_map(column.type):
            datums = [_with_dicts(datum, column.type) for datum in datums]
        encoded: list[bytes | None] = []
        for row, datum in enumerate(datums):
            if datum is None:
                encoded.append(None)
                continue
            target = io.BytesIO()
            target.write(frame)
            try:
                fastavro.schemaless_writer(target, schema, datum, strict_allow_default=True)
            except Exception as error:  # fastavro does not document its exceptions
                reason = " ".join(str(error).split())
                raise ValueError(f"row {row}: the value does not match schema {self.schema_id}: {reason}") from error
            encoded.append(target.getvalue())
        fields = rows.schema.set(index, pa.field("value", pa.binary()))
        columns = [*rows.columns[:index], pa.array(encoded, pa.binary()), *rows.columns[index + 1 :]]
        return pa.RecordBatch.from_arrays(columns, schema=fields)


def find_avro_values(options: AvroOptions, topic: str | None, value: DataType) -> AvroValues:
    """Return the schema for a column: the latest of the subject, or one derived from the column and registered.

    Raises ConfigurationError for a column that the schema cannot encode, and as the client of the registry.
    """
    subject = options.subject or (f"{topic}-value" if topic else None)
    if subject is None:
        raise ConfigurationError("valueSubject", "is missing: valueFormat=avro needs it, or the option topic")

    async def fetch() -> AvroValues:
        async with open_schema_registry(options.registry, login=options.login) as registry:
            if options.registers:
                text = json.dumps(derive_schema(value, _record_name(subject)))
                return AvroValues(schema_id=await registry.register(subject, text), text=text)
            found = await registry.version(subject)
            return AvroValues(schema_id=found.id, text=await complete_text(registry, found.schema))

    try:
        values = trio.run(fetch)
    except SchemaRegistryError as error:
        hint = "" if options.registers else " (autoRegisterSchemas=true registers a schema of the column)"
        raise ConfigurationError("valueFormat", f"avro: subject {subject}: {error}{hint}") from error
    faults = list(incompatibilities(json.loads(values.text), value))
    if faults:
        raise ConfigurationError("valueFormat", f"avro: subject {subject}, schema {values.schema_id}: {faults[0]}")
    return values


def derive_schema(column: DataType, name: str) -> Any:
    """Return an Avro schema for a column. Records are named by their path. Raises ConfigurationError."""
    simple = _DERIVED.get(type(column))
    if simple is not None:
        return simple
    if isinstance(column, StructType):
        fields: list[dict[str, Any]] = []
        for field in column:
            kind = derive_schema(field.dataType, f"{name}_{field.name}")
            optional = {"name": field.name, "type": ["null", kind], "default": None}
            fields.append(optional if field.nullable else {"name": field.name, "type": kind})
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(column, ArrayType):
        items = derive_schema(column.elementType, f"{name}_item")
        return {"type": "array", "items": ["null", items] if column.containsNull else items}
    if isinstance(column, MapType) and isinstance(column.keyType, StringType):
        items = derive_schema(column.valueType, f"{name}_value")
        return {"type": "map", "values": ["null", items] if column.valueContainsNull else items}
    if isinstance(column, DecimalType):
        decimal = {"logicalType": "decimal", "precision": column.precision, "scale": column.scale}
        return {"type": "bytes", **decimal}
    raise ConfigurationError("valueFormat", f"avro: there is no Avro type for {name} of type {column.simpleString()}")


def incompatibilities(schema: Any, column: DataType) -> Iterable[str]:
    """Yield why a column cannot be encoded by a schema, with the path of each field."""
    return _faults(schema, column, "value", {})


def _faults(schema: Any, column: DataType, path: str, named: dict[str, Any]) -> Iterable[str]:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            yield f"{path} is a union of several types, which no column can be"
            return
        schema = branches[0]
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    if isinstance(schema["type"], list | dict):
        yield from _faults(schema["type"], column, path, named)
        return
    if "name" in schema:
        named[schema["name"]] = schema
    kind, logical = schema["type"], schema.get("logicalType")
    if kind in {"record", "error"}:
        yield from _record_faults(schema, column, path, named)
    elif kind == "array" and isinstance(column, ArrayType):
        yield from _faults(schema["items"], column.elementType, f"{path}[]", named)
    elif kind == "map" and isinstance(column, MapType) and isinstance(column.keyType, StringType):
        yield from _faults(schema["values"], column.valueType, f"{path}[]", named)
    elif logical == "decimal":
        precision, scale = schema["precision"], schema.get("scale", 0)
        if not (
            isinstance(column, DecimalType)
            and column.scale <= scale
            and column.precision - column.scale <= precision - scale
        ):
            yield _mismatch(path, column, f"decimal({precision},{scale})")
    elif not isinstance(column, _ACCEPTED.get(logical or kind, _ACCEPTED.get(kind, ()))):
        yield _mismatch(path, column, logical or kind)


def _record_faults(schema: Any, column: DataType, path: str, named: dict[str, Any]) -> Iterable[str]:
    if not isinstance(column, StructType):
        yield _mismatch(path, column, f"record {schema['name']}")
        return
    columns = {field.name: field.dataType for field in column}
    fields = {field["name"]: field for field in schema["fields"]}
    for name in columns.keys() - fields.keys():
        yield f"{path}.{name} is no field of record {schema['name']}"
    for name, field in fields.items():
        if name in columns:
            yield from _faults(field["type"], columns[name], f"{path}.{name}", named)
        elif "default" not in field:
            yield f"{path}.{name} is missing among the columns, and its field has no default"


def _mismatch(path: str, column: DataType, wanted: str) -> str:
    return f"{path} is a column of type {column.simpleString()}, which is no Avro {wanted}"


def _record_name(subject: str) -> str:
    name = re.sub(r"\W", "_", subject.removesuffix("-value"), flags=re.ASCII)
    return f"_{name}" if name[:1].isdigit() else name


def _holds_map(data_type: pa.DataType) -> bool:
    if pa.types.is_map(data_type):
        return True
    if pa.types.is_struct(data_type) or pa.types.is_list(data_type):
        return any(_holds_map(data_type.field(index).type) for index in range(data_type.num_fields))
    return False


def _with_dicts(datum: Any, data_type: pa.DataType) -> Any:
    """Return a datum of Arrow with dicts for maps."""
    if datum is None:
        return None
    if pa.types.is_map(data_type):
        return {key: _with_dicts(item, data_type.item_type) for key, item in datum}
    if pa.types.is_list(data_type):
        return [_with_dicts(item, data_type.value_type) for item in datum]
    if pa.types.is_struct(data_type):
        return {field.name: _with_dicts(datum[field.name], field.type) for field in data_type}
    return datum
