"""Resolves a writer's schema to a reader's: a program that walks the datums, and steps that make the columns.

Source: Avro specification 1.12, "Schema Resolution". Where it leaves room, as Java and as the project's registry do:
names of records, enums and fixeds match in their last part or by the reader's aliases; of a reader's union, the branch
of the same full name or type comes first, then the first that takes the writer's type; a field's alias takes a
writer's field only if no field of the reader bears its name.

Times and decimals are converted by the writer's logical type, so that a change of unit keeps the instant.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.hadoop.avro.avro_defaults import encode_default
from pipeline.hadoop.avro.avro_schema import SchemaError, SchemaNode, SchemaTable
from pipeline.hadoop.avro.column_decoder import ColumnDecoder
from pipeline.hadoop.avro.column_kernels import WalkOperation
from pipeline.hadoop.avro.column_steps import (
    DecimalStep,
    DefaultStep,
    EnumStep,
    FixedStep,
    ItemsStep,
    MemberStep,
    NullStep,
    NumberStep,
    RecordStep,
    RefusedStep,
    Step,
    StringSource,
    StringStep,
    UnionStep,
    added_bytes,
    items_of,
    takes_bytes,
)
from pipeline.hadoop.avro.column_types import ColumnTypes, branches_of, is_nullable, wider_type
from pipeline.hadoop.avro.column_values import time_factors

MAX_INSTRUCTIONS: Final = 50_000

_PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_NUMBERS: Final[Mapping[str, WalkOperation]] = {
    "boolean": WalkOperation.BOOLEAN,
    "int": WalkOperation.INT,
    "long": WalkOperation.LONG,
    "float": WalkOperation.FLOAT,
    "double": WalkOperation.DOUBLE,
}


def resolve(writer: SchemaTable, reader: SchemaTable, types: ColumnTypes, root: int = 0) -> ColumnDecoder:
    """Return a decoder of the writer's datums into a column of the reader's type, both from node `root` on.

    `types` are the reader's. Raises SchemaError if the program gets too long.
    """
    resolver = _Resolver(writer, reader, types)
    step = resolver.resolve(root, root)
    resolver.emit(WalkOperation.END)
    items = dict(items_of(step))
    return ColumnDecoder(
        writer=writer,
        program=np.array(resolver.program, dtype=np.int64),
        jumps=np.array([*resolver.jumps, 0], dtype=np.int64),
        slots=resolver.slots,
        loops=sum(line[0] == WalkOperation.ITEMS for line in resolver.program),
        added=np.array(
            [added_bytes(items[slot]) if slot in items else 0 for slot in range(resolver.slots)], dtype=np.int64
        ),
        has_empty_items=not all(map(takes_bytes, items.values())),
        step=step,
        dropped=tuple(resolver.dropped),
    )


class _Resolver:
    def __init__(self, writer: SchemaTable, reader: SchemaTable, types: ColumnTypes) -> None:
        self._writer = writer
        self._reader = reader
        self._types = types
        self.program: list[list[int]] = []
        self.jumps: list[int] = []
        self.slots = 0
        self.dropped: list[str] = []

    def emit(self, operation: WalkOperation, *arguments: int) -> list[int]:
        """Append an instruction."""
        if len(self.program) >= MAX_INSTRUCTIONS:
            raise SchemaError("the schema has too many columns; load the topic as avro")
        line = [operation, *arguments, *[0] * (3 - len(arguments))]
        self.program.append(line)
        return line

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def resolve(self, writer_number: int, reader_number: int) -> Step:
        """Emit instructions for the writer's type, and return the step that makes the reader's column."""
        writer, reader = self._writer.nodes[writer_number], self._reader.nodes[reader_number]
        if writer.type == "union":
            return self._union(writer, reader_number)
        if reader.type == "union":
            return self._to_union(writer_number, reader_number)
        if not is_readable(writer, reader):
            return self._refused(writer_number, reader_number)
        data_type = self._types.of(reader_number)
        match writer.type:
            case "null":
                return NullStep(data_type)
            case "record":
                return self._record(writer, reader, data_type)
            case "array" | "map":
                return self._items(writer, reader, data_type)
            case "enum":
                return self._enum(writer, reader)
            case "string" | "bytes" | "fixed":
                return self._octets(writer, reader, data_type)
        return self._number(writer_number, reader_number, data_type)

    def _refused(self, writer_number: int, reader_number: int, reason: str | None = None) -> Step:
        self.emit(WalkOperation.SKIP, writer_number)
        reader = self._reader.nodes[reader_number]
        names = _label(self._writer.nodes[writer_number]), _label(reader)
        reason = reason or f"the reader's schema takes no {names[0]} as {names[1]}"
        return RefusedStep(self._types.of(reader_number), reason)

    def _union(self, writer: SchemaNode, reader_number: int) -> Step:
        slot, first, count = self._slot(), len(self.jumps), len(writer.children)
        self.emit(WalkOperation.UNION, slot, count, first)
        self.jumps += [0] * count
        steps: list[Step] = []
        ends = []
        for branch, child in enumerate(writer.children):
            self.jumps[first + branch] = len(self.program)
            steps.append(self.resolve(child, reader_number))
            ends.append(self.emit(WalkOperation.JUMP))
        for line in ends:
            line[2] = len(self.program)
        return UnionStep(self._types.of(reader_number), slot, tuple(steps))

    def _to_union(self, writer_number: int, reader_number: int) -> Step:
        """Resolve a type to a branch of the reader's union."""
        writer, reader = self._writer.nodes[writer_number], self._reader.nodes[reader_number]
        if writer.type == "null" and is_nullable(self._reader, reader_number):
            return NullStep(self._types.of(reader_number))
        nodes = self._reader.nodes
        exact = [child for child in reader.children if _is_same(writer, nodes[child])]
        matching = exact or [child for child in reader.children if is_readable(writer, nodes[child])]
        if not matching:
            return self._refused(writer_number, reader_number)
        branches, chosen = branches_of(self._reader, reader_number), matching[0]
        if len(branches) == 1:
            return self.resolve(writer_number, chosen)
        wider = wider_type(self._reader, branches)
        if wider is not None:
            return self._number(writer_number, chosen, wider)
        step = self.resolve(writer_number, chosen)
        return MemberStep(self._types.of(reader_number), branches.index(chosen), step)

    def _number(self, writer_number: int, reader_number: int, data_type: pa.DataType) -> Step:
        writer, reader = self._writer.nodes[writer_number], self._reader.nodes[reader_number]
        factors = time_factors(writer, reader)
        if factors is None:
            reason = f"the reader's schema takes no {writer.logical} as {reader.logical}"
            return self._refused(writer_number, reader_number, reason)
        slot = self._slot()
        self.emit(_NUMBERS[writer.type], slot)
        return NumberStep(data_type, slot, writer.type, *factors)

    def _octets(self, writer: SchemaNode, reader: SchemaNode, data_type: pa.DataType) -> Step:
        slot = self._slot()
        if writer.type == "fixed":
            self.emit(WalkOperation.FIXED, slot, writer.size)
            source = StringSource(slot, None, writer.size)
        else:
            source = StringSource(slot, self._slot(), 0)
            self.emit(WalkOperation.BYTES, slot, self.slots - 1)
        if reader.logical == "decimal":
            return DecimalStep(data_type, source, writer, reader)
        return FixedStep(data_type, source) if writer.size else StringStep(data_type, source)

    def _enum(self, writer: SchemaNode, reader: SchemaNode) -> Step:
        slot = self._slot()
        self.emit(WalkOperation.ENUM, slot, len(writer.symbols))
        default = reader.symbols.index(reader.default_symbol) if reader.default_symbol in reader.symbols else -1
        known = {symbol: number for number, symbol in enumerate(reader.symbols)}
        numbers = np.array([known.get(symbol, default) for symbol in writer.symbols], dtype=np.int64)
        return EnumStep(pa.string(), slot, pa.array(reader.symbols, pa.string()), numbers, reader.name)

    def _items(self, writer: SchemaNode, reader: SchemaNode, data_type: pa.DataType) -> Step:
        slot = self._slot()
        begin = self.emit(WalkOperation.ITEMS, slot)
        body = len(self.program)
        key = None
        if writer.type == "map":
            source = StringSource(self._slot(), self._slot(), 0)
            self.emit(WalkOperation.BYTES, source.starts, self.slots - 1)
            key = StringStep(pa.string(), source)
        item = self.resolve(writer.children[0], reader.children[0])
        begin[2] = len(self.program)
        self.emit(WalkOperation.NEXT, slot, body)
        return ItemsStep(data_type, slot, key, item)

    def _record(self, writer: SchemaNode, reader: SchemaNode, data_type: pa.DataType) -> Step:
        names = {field.name: field for field in writer.fields}
        own = {field.name for field in reader.fields}
        sources: dict[str, int] = {}
        for at, field in enumerate(reader.fields):
            candidates = [field.name, *(alias for alias in field.aliases if alias not in own)]
            source = next((name for name in candidates if name in names and name not in sources), None)
            if source is not None:
                sources[source] = at
        steps: list[Step | None] = [None] * len(reader.fields)
        for written in writer.fields:
            if written.name in sources:
                at = sources[written.name]
                steps[at] = self.resolve(written.node, reader.fields[at].node)
            else:
                self.emit(WalkOperation.SKIP, written.node)
                self.dropped.append(f"{writer.name}.{written.name}")
        for at, field in enumerate(reader.fields):
            if steps[at] is None:
                steps[at] = self._default(reader, at) if field.has_default else self._missing(reader, at)
        return RecordStep(data_type, tuple(step for step in steps if step is not None))

    def _missing(self, reader: SchemaNode, at: int) -> Step:
        field = reader.fields[at]
        reason = f"field {field.name} of {reader.name} is missing, and the reader's schema has no default for it"
        return RefusedStep(self._types.of(field.node), reason)

    def _default(self, reader: SchemaNode, at: int) -> Step:
        field = reader.fields[at]
        data_type = self._types.of(field.node)
        if field.default is None and is_nullable(self._reader, field.node):
            return NullStep(data_type)
        value = _default_column(self._reader, self._types, field.node, field.default)
        if value is None:
            reason = f"the default of field {field.name} of {reader.name} does not fit its type"
            return RefusedStep(data_type, reason)
        return DefaultStep(data_type, value)


def _default_column(reader: SchemaTable, types: ColumnTypes, number: int, default: Any) -> pa.Array | None:
    """Return a default as a column of one row, decoded as a datum of its type is; None if it does not fit the type."""
    datum = encode_default(reader, number, default)
    if datum is None:
        return None
    data = np.frombuffer(datum or b"\0", dtype=np.uint8)
    bounds = np.array([0], dtype=np.int64), np.array([len(datum)], dtype=np.int64)
    column = resolve(reader, reader, types, number).decode(data, *bounds)
    return None if column.faults else column.array


def _is_same(writer: SchemaNode, reader: SchemaNode) -> bool:
    return writer.type == reader.type and writer.name == reader.name and writer.size == reader.size


def is_readable(writer: SchemaNode, reader: SchemaNode) -> bool:
    """Return true if values of the writer's type may be read as the reader's, as far as their heads tell."""
    if writer.type != reader.type:
        return reader.type in _PROMOTIONS.get(writer.type, ())
    if not writer.name:
        return True
    last = writer.name.rpartition(".")[2]
    return writer.size == reader.size and (last == reader.name.rpartition(".")[2] or writer.name in reader.aliases)


def _label(node: SchemaNode) -> str:
    return f"{node.type} {node.name}".strip()
