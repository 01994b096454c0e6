"""Avro schemas of a load: a table by which datums are walked, and the envelope around them. Pure.

The envelope keeps a record's key, offset, timestamp and headers beside its value without decoding the value: a record
whose first fields are written here and whose last is the union of null (a tombstone) and the schema of the value, so
that the value's own bytes follow a single byte. It has no namespace, because names inside it would inherit that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
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


_PRIMITIVES: Mapping[str, AvroKind] = {
    "null": AvroKind.NULL,
    "boolean": AvroKind.BOOLEAN,
    "int": AvroKind.INT,
    "long": AvroKind.LONG,
    "float": AvroKind.FLOAT,
    "double": AvroKind.DOUBLE,
    "bytes": AvroKind.BYTES,
    "string": AvroKind.BYTES,
}


class SchemaError(PipelineError):
    """A text is not an Avro schema."""


@dataclass(frozen=True, slots=True, eq=False)
class SchemaTable:
    """Nodes of a schema, node 0 its root: kind, argument (size of a fixed, symbols of an enum, else the first
    index into `children`), and how many children. Named types that refer to each other make it a graph.
    """

    kind: NDArray[np.int64]
    argument: NDArray[np.int64]
    child_count: NDArray[np.int64]
    children: NDArray[np.int64]


def parse(text: str) -> Any:
    """Return fastavro's parsed schema with all names resolved. Raises SchemaError."""
    try:
        return fastavro.parse_schema(json.loads(text))
    except (ValueError, TypeError, KeyError, SchemaParseException, UnknownType) as error:
        raise SchemaError(f"not an Avro schema: {error}") from error


def schema_table(parsed: Any) -> SchemaTable:
    """Return the table of a parsed schema."""
    return _TableBuilder().build(parsed)


class _TableBuilder:
    def __init__(self) -> None:
        self._nodes: list[tuple[AvroKind, int, list[int]]] = []
        self._named: dict[str, int] = {}

    def build(self, parsed: Any) -> SchemaTable:
        self._add(parsed)
        children: list[int] = []
        arguments = []
        for kind, argument, node_children in self._nodes:
            arguments.append(argument if kind in {AvroKind.FIXED, AvroKind.ENUM} else len(children))
            children += node_children
        return SchemaTable(
            kind=np.array([kind for kind, _, _ in self._nodes], dtype=np.int64),
            argument=np.array(arguments, dtype=np.int64),
            child_count=np.array([len(node_children) for _, _, node_children in self._nodes], dtype=np.int64),
            children=np.array([*children, 0], dtype=np.int64),
        )

    def _add(self, schema: Any) -> int:
        if isinstance(schema, list):
            return self._add_parent(AvroKind.UNION, None, schema)
        name = schema if isinstance(schema, str) else schema["type"]
        if isinstance(name, dict | list):
            return self._add(name)
        if name in _PRIMITIVES:
            return self._add_leaf(_PRIMITIVES[name], 0, None)
        match name:
            case "fixed":
                return self._add_leaf(AvroKind.FIXED, schema["size"], schema["name"])
            case "enum":
                return self._add_leaf(AvroKind.ENUM, len(schema["symbols"]), schema["name"])
            case "record" | "error":
                return self._add_parent(AvroKind.RECORD, schema["name"], [field["type"] for field in schema["fields"]])
            case "array":
                return self._add_parent(AvroKind.ARRAY, None, [schema["items"]])
            case "map":
                return self._add_parent(AvroKind.MAP, None, [schema["values"]])
            case reference:
                return self._named[reference]

    def _add_leaf(self, kind: AvroKind, argument: int, name: str | None) -> int:
        self._nodes.append((kind, argument, []))
        return self._remember(name)

    def _add_parent(self, kind: AvroKind, name: str | None, children: list[Any]) -> int:
        node_children: list[int] = []
        self._nodes.append((kind, 0, node_children))
        node = self._remember(name)
        for child in children:
            node_children.append(self._add(child))  # noqa: PERF401 - a recursive type looks at itself meanwhile
        return node

    def _remember(self, name: str | None) -> int:
        node = len(self._nodes) - 1
        if name is not None:
            self._named[name] = node
        return node


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
