"""Avro schemas of a load: their types as nodes, a table by which datums are walked, and the envelope. Pure.

The envelope keeps a record's key, offset, timestamp and headers beside its value without decoding the value: a record
whose first fields are written here and whose last is the union of null (a tombstone) and the schema of the value, so
that the value's own bytes follow a single byte. It has no namespace, because names inside it would inherit that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import fastavro
import numpy as np
from fastavro.schema import SchemaParseException, UnknownType
from numpy.typing import NDArray

from pipeline.errors import PipelineError

KEY: Final = "_key"
OFFSET: Final = "_offset"
PARTITION: Final = "_partition"
ICEBERG_PARTITION: Final = "_kafka_partition"
"""Name of that column in Iceberg tables: Spark reads no table with a column `_partition`, which Iceberg reserves."""
TIMESTAMP: Final = "_timestamp"
HEADERS: Final = "_headers"
VALUE: Final = "value"
REASON: Final = "_reason"

BATCH_SCHEMA: Final = json.dumps(
    {
        "type": "record",
        "name": "PipelineBatch",
        "fields": [
            {"name": PARTITION, "type": "int"},
            {"name": OFFSET, "type": "long"},
            {"name": "_records", "type": "int"},
            {"name": TIMESTAMP, "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "_piece", "type": "int"},
            {"name": REASON, "type": "string"},
            {"name": VALUE, "type": "bytes"},
        ],
    }
)
"""Schema of quarantine files of batches. The bytes of a large batch are several rows, numbered by `_piece` from 0; only
the first has `_records`."""

BYTES_OR_NULL: Final = ["null", "bytes"]


class AvroKind(IntEnum):
    """Kinds of a schema's nodes."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    FIXED = 7
    ENUM = 8
    RECORD = 9
    UNION = 10
    ARRAY = 11
    MAP = 12


_KINDS: Mapping[str, AvroKind] = {
    "null": AvroKind.NULL,
    "boolean": AvroKind.BOOLEAN,
    "int": AvroKind.INT,
    "long": AvroKind.LONG,
    "float": AvroKind.FLOAT,
    "double": AvroKind.DOUBLE,
    "bytes": AvroKind.BYTES,
    "string": AvroKind.BYTES,
    "fixed": AvroKind.FIXED,
    "enum": AvroKind.ENUM,
    "record": AvroKind.RECORD,
    "error": AvroKind.RECORD,
    "union": AvroKind.UNION,
    "array": AvroKind.ARRAY,
    "map": AvroKind.MAP,
}

_LOGICAL_TYPES: Final = frozenset(
    {
        ("int", "date"),
        ("int", "time-millis"),
        ("long", "time-micros"),
        *(("long", f"{local}timestamp-{unit}") for local in ("", "local-") for unit in ("millis", "micros", "nanos")),
    }
)
"""Logical types that change a column, by the types that may bear them; `decimal` is a matter of its attributes."""

MAX_DECIMAL_PRECISION: Final = 1000
"""Digits of a decimal. One of more stays bytes: arithmetic with its powers of ten takes time and memory without end."""

MAX_FIXED_SIZE: Final = 2**31 - 1


class SchemaError(PipelineError):
    """A text is not an Avro schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNode:
    """A field of a record; `node` is the number of its type. `has_default` tells a default of null from none."""

    name: str
    aliases: tuple[str, ...]
    node: int
    has_default: bool
    default: Any


@dataclass(slots=True, kw_only=True)
class SchemaNode:
    """A type of a schema: Avro's word for it, full names, attributes. `children` are numbers of other nodes.

    `logical` is the logical type, empty if there is none or if it does not fit the type, which Avro says to ignore.
    """

    type: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    children: list[int] = field(default_factory=list)
    fields: list[FieldNode] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SchemaTable:
    """Nodes of a schema, node 0 its root: kind, argument (size of a fixed, symbols of an enum, else the first
    index into `children`), and how many children. Named types that refer to each other make it a graph.
    """

    kind: NDArray[np.int64]
    argument: NDArray[np.int64]
    child_count: NDArray[np.int64]
    children: NDArray[np.int64]
    nodes: tuple[SchemaNode, ...]


def parse(text: str) -> Any:
    """Return fastavro's parsed schema with all names resolved. Raises SchemaError."""
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, SchemaParseException, UnknownType) as error:
        raise SchemaError(f"not an Avro schema: {error}") from error
    except RecursionError as error:
        raise SchemaError("not an Avro schema: nested too deeply") from error


def schema_table(parsed: Any) -> SchemaTable:
    """Return the table of a parsed schema. Raises SchemaError for attributes that Avro does not know."""
    try:
        nodes = _NodeBuilder().build(parsed)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SchemaError(f"not an Avro schema: {error!r}") from error
    except RecursionError as error:
        raise SchemaError("not an Avro schema: nested too deeply") from error
    children: list[int] = []
    arguments = []
    for node in nodes:
        kind = _KINDS[node.type]
        argument = {AvroKind.FIXED: node.size, AvroKind.ENUM: len(node.symbols)}.get(kind, len(children))
        arguments.append(argument)
        children += node.children
    return SchemaTable(
        kind=np.array([_KINDS[node.type] for node in nodes], dtype=np.int64),
        argument=np.array(arguments, dtype=np.int64),
        child_count=np.array([len(node.children) for node in nodes], dtype=np.int64),
        children=np.array([*children, 0], dtype=np.int64),
        nodes=tuple(nodes),
    )


class _NodeBuilder:
    def __init__(self) -> None:
        self._nodes: list[SchemaNode] = []
        self._named: dict[str, int] = {}

    def build(self, parsed: Any) -> list[SchemaNode]:
        self._add(parsed)
        return self._nodes

    def _add(self, schema: Any) -> int:
        if isinstance(schema, list):
            return self._add_parent(SchemaNode(type="union"), schema)
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, dict | list):
            return self._add(kind)
        if kind not in _KINDS:
            return self._named[kind]
        node = SchemaNode(type="record" if kind == "error" else kind)
        if isinstance(schema, str):
            return self._append(node)
        if kind in {"record", "error", "enum", "fixed"}:
            node.name = schema["name"]
            node.aliases = _full_names(schema.get("aliases", ()), node.name)
        if kind == "fixed":
            node.size = _fixed_size(schema)
        _set_logical_type(node, schema)
        match kind:
            case "enum":
                node.symbols = tuple(schema["symbols"])
                node.default_symbol = schema.get("default")
            case "record" | "error":
                return self._add_record(node, schema["fields"])
            case "array":
                return self._add_parent(node, [schema["items"]])
            case "map":
                return self._add_parent(node, [schema["values"]])
        return self._append(node)

    def _add_record(self, node: SchemaNode, fields: Any) -> int:
        number = self._add_parent(node, [field["type"] for field in fields])
        for field_schema, child in zip(fields, node.children, strict=True):
            field_schema["name"].encode()  # raises for half of a surrogate pair, which no column can be called
            node.fields.append(
                FieldNode(
                    name=field_schema["name"],
                    aliases=tuple(field_schema.get("aliases", ())),
                    node=child,
                    has_default="default" in field_schema,
                    default=field_schema.get("default"),
                )
            )
        return number

    def _add_parent(self, node: SchemaNode, children: list[Any]) -> int:
        number = self._append(node)
        for child in children:
            node.children.append(self._add(child))  # one by one: a recursive type looks at itself meanwhile
        return number

    def _append(self, node: SchemaNode) -> int:
        self._nodes.append(node)
        if node.name:
            self._named[node.name] = len(self._nodes) - 1
        return len(self._nodes) - 1


def _full_names(aliases: Any, name: str) -> tuple[str, ...]:
    namespace = name.rpartition(".")[0]
    return tuple(alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in aliases)


def _fixed_size(schema: Mapping[str, Any]) -> int:
    size = schema["size"]
    if not isinstance(size, int) or not 0 <= size <= MAX_FIXED_SIZE:
        raise SchemaError(f"not an Avro schema: a fixed has no size of {size!r} bytes")
    return size


def _set_logical_type(node: SchemaNode, schema: Mapping[str, Any]) -> None:
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return
    if logical == "decimal" and node.type in {"bytes", "fixed"}:
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        are_numbers = isinstance(precision, int) and isinstance(scale, int)
        if are_numbers and 0 < precision <= MAX_DECIMAL_PRECISION and 0 <= scale <= precision:
            node.logical, node.precision, node.scale = logical, precision, scale
    elif (node.type, logical) in _LOGICAL_TYPES:
        node.logical = logical


def envelope_schema(value_schema: str | None, *, with_reason: bool = False) -> str:
    """Return the schema of a data file: the envelope around values of `value_schema`, or around plain bytes for None.

    A schema that is itself a union (which no union may hold) is wrapped into a record of one field, which adds no
    byte. `with_reason` adds the field of quarantine files: why the record was set aside.
    """
    value: Any = "bytes" if value_schema is None else json.loads(value_schema)
    if isinstance(value, list) or value == "null":
        value = {"type": "record", "name": "PipelineDatum", "fields": [{"name": "datum", "type": value}]}
    header = {
        "type": "record",
        "name": "PipelineHeader",
        "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": BYTES_OR_NULL}],
    }
    fields = [
        {"name": KEY, "type": BYTES_OR_NULL},
        {"name": OFFSET, "type": "long"},
        {"name": PARTITION, "type": "int"},
        {"name": TIMESTAMP, "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": HEADERS, "type": {"type": "array", "items": header}},
        {"name": VALUE, "type": ["null", value]},
        *([{"name": REASON, "type": "string"}] if with_reason else ()),
    ]
    return json.dumps({"type": "record", "name": "PipelineEnvelope", "fields": fields})
