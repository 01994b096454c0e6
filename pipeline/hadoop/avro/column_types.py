"""Arrow types of Avro schemas, chosen so that Parquet holds them and Spark reads them. Pure.

Spark reads neither times of day nor timestamps in nanoseconds nor decimals of more than 38 digits: they are numbers in
the unit of the schema, and text. Unions of several types are mapped as Spark's Avro source does.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from pipeline.hadoop.avro.avro_schema import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    VALUE,
    SchemaError,
    SchemaNode,
    SchemaTable,
    parse,
    schema_table,
)

TOMBSTONE: Final = "_tombstone"
RECORD_COLUMNS: Final = (KEY, OFFSET, PARTITION, TIMESTAMP, HEADERS, TOMBSTONE)
MAX_DECIMAL_DIGITS: Final = 38
MAX_COLUMNS: Final = 10_000
MAX_NESTING: Final = 100
"""Types inside one another. Readers of columns recurse."""

EMPTY_FIELD: Final = pa.field("_empty", pa.bool_())
"""Only field, always null, of the column for a record type without fields: Parquet has no group without columns."""

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}

_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}

_WIDER: Mapping[frozenset[str], pa.DataType] = {
    frozenset({"int", "long"}): pa.int64(),
    frozenset({"float", "double"}): pa.float64(),
}


def branches_of(table: SchemaTable, number: int) -> list[int]:
    """Return the nodes of a union without null, or the node itself if it is no union."""
    node = table.nodes[number]
    if node.type != "union":
        return [number]
    return [child for child in node.children if table.nodes[child].type != "null"]


def is_nullable(table: SchemaTable, number: int) -> bool:
    """Return true if null is a value of the type."""
    node = table.nodes[number]
    types = [table.nodes[child].type for child in node.children] if node.type == "union" else [node.type]
    return "null" in types


def wider_type(table: SchemaTable, branches: list[int]) -> pa.DataType | None:
    """Return the type of a union of two numbers, of which each is a value of the other; else None."""
    nodes = [table.nodes[number] for number in branches]
    if len(nodes) != 2 or any(node.logical for node in nodes):
        return None
    return _WIDER.get(frozenset(node.type for node in nodes))


def value_fields(table: SchemaTable, types: "ColumnTypes") -> tuple[list[pa.Field], bool]:
    """Return the columns of a schema's values, and true if they are the fields of a record, false for one column.

    Raises SchemaError for a type that has no columns: one that contains itself or has too many, a name that is taken.
    """
    whole = types.of(0)
    branches = branches_of(table, 0)
    if len(branches) != 1 or table.nodes[branches[0]].type != "record":
        return [pa.field(VALUE, whole)], False
    # A record without fields adds no column; inside of others it has one that Parquet can hold.
    fields = list(whole) if table.nodes[branches[0]].fields else []
    clash = [field.name for field in fields if field.name in RECORD_COLUMNS]
    if clash:
        raise SchemaError(f"the field name {clash[0]} is taken; load the topic as avro")
    return fields, True


def check_columns(text: str) -> None:
    """Raise SchemaError unless values of the schema have columns."""
    table = schema_table(parse(text))
    value_fields(table, ColumnTypes(table))


class ColumnTypes:
    """Arrow types by node of a schema, each made once."""

    def __init__(self, table: SchemaTable) -> None:
        self._table = table
        self._types: dict[int, pa.DataType] = {}
        self._sizes: dict[int, int] = {}
        self._inside: set[int] = set()

    def of(self, number: int) -> pa.DataType:
        """Return the type of a node. Raises SchemaError for a type that contains itself or has too many columns."""
        known = self._types.get(number)
        if known is not None:
            return known
        node = self._table.nodes[number]
        if number in self._inside:
            raise SchemaError(f"type {node.name} contains itself and has no column; load the topic as avro")
        if len(self._inside) >= MAX_NESTING:
            raise SchemaError(f"more than {MAX_NESTING} types lie inside one another; load the topic as avro")
        self._inside.add(number)
        found = self._make(number, node)
        self._inside.remove(number)
        self._types[number] = found
        size = self._sizes[number] = 1 + sum(self._sizes[child] for child in node.children)
        if size > MAX_COLUMNS:
            raise SchemaError(f"the schema has more than {MAX_COLUMNS} columns; load the topic as avro")
        return found

    def _make(self, number: int, node: SchemaNode) -> pa.DataType:
        if node.logical in _LOGICAL:
            return _LOGICAL[node.logical]
        if node.logical == "decimal":
            fits = node.precision <= MAX_DECIMAL_DIGITS
            return pa.decimal128(node.precision, node.scale) if fits else pa.string()
        match node.type:
            case "record":
                fields = [pa.field(member.name, self.of(member.node)) for member in node.fields]
                return pa.struct(fields or [EMPTY_FIELD])
            case "array":
                return pa.list_(self.of(node.children[0]))
            case "map":
                return pa.map_(pa.string(), self.of(node.children[0]))
            case "fixed":
                return pa.binary(node.size) if node.size else pa.binary()
            case "union":
                return self._of_union(number, node)
        return _PRIMITIVES[node.type]

    def _of_union(self, number: int, node: SchemaNode) -> pa.DataType:
        types = {child: self.of(child) for child in node.children}
        branches = branches_of(self._table, number)
        if len(branches) < 2:
            return types[branches[0]] if branches else pa.null()
        wider = wider_type(self._table, branches)
        if wider is not None:
            return wider
        return pa.struct([pa.field(f"member{index}", types[branch]) for index, branch in enumerate(branches)])
