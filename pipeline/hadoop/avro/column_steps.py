"""Steps that make Arrow columns from the values that a program has stored: one for each pair of types that resolve.

A step's values are dense: those of a union's branch are there only where the branch was taken. `valid` says in which
rows of the column they go; the other rows become null. A row with a value that the reader cannot take is reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.hadoop.avro.avro_kernels import Flags
from pipeline.hadoop.avro.avro_schema import SchemaNode
from pipeline.hadoop.avro.column_kernels import copy_strings
from pipeline.hadoop.avro.column_types import EMPTY_FIELD
from pipeline.hadoop.avro.column_values import (
    ByteStrings,
    ValueFault,
    decimals,
    late_fault,
    scaled,
    stored_numbers,
    utf8_fault,
)
from pipeline.records.kernels import Bytes, Int64s

_NUMBER_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoredValues:
    """Numbers that a program stored, with the bounds of each slot in them; positions are those in `buffer`."""

    numbers: Int64s
    bounds: Int64s
    buffer: Bytes

    def of(self, slot: int) -> Int64s:
        """Return the numbers of a slot."""
        return self.numbers[self.bounds[slot, 0] : self.bounds[slot, 1]]


@dataclass(frozen=True, slots=True)
class StringSource:
    """Slots of byte strings: first positions, and positions after the last byte; without these all have one size."""

    starts: int
    stops: int | None
    size: int

    def read(self, stored: StoredValues) -> ByteStrings:
        """Return the byte strings."""
        starts = stored.of(self.starts)
        stops = starts + self.size if self.stops is None else stored.of(self.stops)
        ends = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(stops - starts, out=ends[1:])
        octets = np.empty(int(ends[-1]), dtype=np.uint8)
        copy_strings(stored.buffer, starts, stops, octets)
        return ByteStrings(ends, octets)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Arrow array, and values in it that are faults, marked by row."""

    array: pa.Array
    faults: Sequence[ValueFault] = ()


class Step(Protocol):
    """Makes the column of one type. `count` is the number of dense values, `valid` marks as many rows (None: all)."""

    @property
    def type(self) -> pa.DataType:
        """Type of the column."""

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:
        """Return the column."""


def _bitmap(valid: Flags | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _spread(values: NDArray[Any], valid: Flags | None, absent: int = 0) -> NDArray[Any]:
    if valid is None:
        return values
    rows = np.full((len(valid), *values.shape[1:]), absent, dtype=values.dtype)
    rows[valid] = values
    return rows


def _spread_ends(ends: Int64s, valid: Flags | None) -> pa.Buffer:
    """Return offsets of Arrow; `ends` begins with 0."""
    if valid is not None:
        ends = ends[np.concatenate(([0], np.cumsum(valid)))]
    return pa.py_buffer(ends.astype(np.int32))


def _spread_faults(faults: Sequence[ValueFault | None], valid: Flags | None) -> list[ValueFault]:
    return [ValueFault(_spread(fault.bad, valid), fault.reason) for fault in faults if fault is not None]


def _rows(valid: Flags | None, count: int) -> int:
    return count if valid is None else len(valid)


def _of_strings(data_type: pa.DataType, strings: ByteStrings, valid: Flags | None) -> pa.Array:
    buffers = [_bitmap(valid), _spread_ends(strings.ends, valid), pa.py_buffer(strings.octets)]
    return pa.Array.from_buffers(data_type, _rows(valid, len(strings)), buffers)


@dataclass(frozen=True, slots=True)
class NullStep:
    """Nulls, which store nothing."""

    type: pa.DataType

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return nulls."""
        return Column(pa.nulls(_rows(valid, count), self.type))


@dataclass(frozen=True, slots=True)
class RefusedStep:
    """Values of a type that the reader's does not take: each is a fault."""

    type: pa.DataType
    reason: str

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return nulls, and all values as faults."""
        bad = np.ones(count, dtype=np.bool_) if valid is None else valid
        return Column(pa.nulls(len(bad), self.type), [ValueFault(bad, self.reason)] if bad.any() else ())


@dataclass(frozen=True, slots=True, eq=False)
class DefaultStep:
    """The default of a field that the writer does not have."""

    type: pa.DataType
    value: pa.Array

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return the default for each value."""
        mask = None if valid is None else ~valid
        indices = pa.array(np.zeros(_rows(valid, count), dtype=np.int64), mask=mask)
        return Column(self.value.take(indices))


@dataclass(frozen=True, slots=True)
class NumberStep:
    """Booleans, numbers and times."""

    type: pa.DataType
    slot: int
    writer: str
    factor: int
    divisor: int

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return numbers of the column's type."""
        fault = late = None
        values = stored_numbers(stored.of(self.slot), self.writer)
        if self.factor != 1 or self.divisor != 1:
            values, fault = scaled(values, self.factor, self.divisor)
        if pa.types.is_timestamp(self.type) and self.type.unit == "ms":
            late = late_fault(values)
        if pa.types.is_boolean(self.type):
            data = np.packbits(_spread(values, valid).astype(np.bool_), bitorder="little")
        else:
            width = np.dtype(f"{'f' if pa.types.is_floating(self.type) else 'i'}{self.type.bit_width // 8}")
            with np.errstate(over="ignore"):  # a long that a float cannot hold exactly, as Avro has it
                data = _spread(values.astype(width, copy=False), valid)
        rows = _rows(valid, len(values))
        array = pa.Array.from_buffers(self.type, rows, [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(data))])
        return Column(array, _spread_faults([fault, late], valid))


@dataclass(frozen=True, slots=True, eq=False)
class EnumStep:
    """Symbols by the writer's number. `symbols` are the reader's, `numbers` their numbers or -1 for an unknown one."""

    type: pa.DataType
    slot: int
    symbols: pa.Array
    numbers: Int64s
    name: str

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return strings."""
        numbers = self.numbers[stored.of(self.slot)]
        bad = numbers < 0
        fault = ValueFault(bad, f"a symbol is not in the reader's enum {self.name}") if bad.any() else None
        spread = _spread(numbers, valid, -1)
        return Column(self.symbols.take(pa.array(spread, mask=spread < 0)), _spread_faults([fault], valid))


@dataclass(frozen=True, slots=True)
class StringStep:
    """Strings and bytes. A string that is not UTF-8 is a fault."""

    type: pa.DataType
    source: StringSource

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return strings or bytes."""
        strings = self.source.read(stored)
        fault = utf8_fault(strings) if pa.types.is_string(self.type) else None
        return Column(_of_strings(self.type, strings, valid), _spread_faults([fault], valid))


@dataclass(frozen=True, slots=True)
class FixedStep:
    """Byte strings of one size above 0."""

    type: pa.DataType
    source: StringSource

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:
        """Return byte strings."""
        octets = self.source.read(stored).octets.reshape(-1, self.source.size)
        buffers = [_bitmap(valid), pa.py_buffer(_spread(octets, valid))]
        return Column(pa.Array.from_buffers(self.type, _rows(valid, count), buffers))


@dataclass(frozen=True, slots=True)
class DecimalStep:
    """Decimals, from bytes or from fixed byte strings."""

    type: pa.DataType
    source: StringSource
    writer: SchemaNode
    reader: SchemaNode

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return decimals or their text."""
        strings = self.source.read(stored)
        array, fault = decimals(strings, self.writer, self.reader)
        if valid is not None:
            at = np.cumsum(valid) - 1
            array = array.take(pa.array(at, mask=~valid))
        return Column(array, _spread_faults([fault], valid))


@dataclass(frozen=True, slots=True)
class RecordStep:
    """Fields of a record, in the reader's order. A record of no fields has one that is always null."""

    type: pa.DataType
    fields: tuple[Step, ...]

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:
        """Return structs."""
        columns = [field.column(stored, valid, count) for field in self.fields]
        rows = _rows(valid, count)
        arrays = [column.array for column in columns] or [pa.nulls(rows, EMPTY_FIELD.type)]
        array = pa.Array.from_buffers(self.type, rows, [_bitmap(valid)], children=arrays)
        return Column(array, [fault for column in columns for fault in column.faults])


@dataclass(frozen=True, slots=True)
class ItemsStep:
    """Items of arrays, and entries of maps (`key`)."""

    type: pa.DataType
    slot: int
    key: Step | None
    item: Step

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return lists or maps."""
        ends = np.concatenate(([0], stored.of(self.slot)))
        items = int(ends[-1])
        item = self.item.column(stored, None, items)
        faults, child = list(item.faults), item.array
        if self.key is not None:
            key = self.key.column(stored, None, items)
            faults += key.faults
            entries = pa.struct([self.type.key_field, self.type.item_field])
            child = pa.Array.from_buffers(entries, items, [None], children=[key.array, item.array])
        lifted = []
        for fault in faults:
            marked = np.concatenate(([0], np.cumsum(fault.bad)))[ends]
            lifted.append(ValueFault(marked[1:] > marked[:-1], fault.reason))
        buffers = [_bitmap(valid), _spread_ends(ends, valid)]
        array = pa.Array.from_buffers(self.type, _rows(valid, len(ends) - 1), buffers, children=[child])
        return Column(array, _spread_faults(lifted, valid))


@dataclass(frozen=True, slots=True)
class UnionStep:
    """The writer's union: each branch is resolved by itself, and all give the same type."""

    type: pa.DataType
    slot: int
    branches: tuple[Step, ...]

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:  # noqa: ARG002
        """Return the values of whichever branch was taken."""
        taken = _spread(stored.of(self.slot), valid, -1)
        carrying = [at for at, step in enumerate(self.branches) if not isinstance(step, NullStep | RefusedStep)]
        faults: list[ValueFault] = []
        for at, step in enumerate(self.branches):
            if isinstance(step, RefusedStep) and (bad := taken == at).any():
                faults.append(ValueFault(bad, step.reason))
        if len(carrying) == 1:
            here = taken == carrying[0]
            column = self.branches[carrying[0]].column(stored, here, int(np.count_nonzero(here)))
            return Column(column.array, [*faults, *column.faults])
        arrays = [pa.array([], self.type)]
        at_value = np.full(len(taken), -1, dtype=np.int64)
        base = 0
        for at in carrying:
            here = taken == at
            found = int(np.count_nonzero(here))
            column = self.branches[at].column(stored, None, found)
            arrays.append(column.array)
            at_value[here] = np.arange(base, base + found)
            base += found
            faults += _spread_faults(column.faults, here)
        merged = pa.concat_arrays(arrays).take(pa.array(at_value, mask=at_value < 0))
        return Column(merged, faults)


@dataclass(frozen=True, slots=True)
class MemberStep:
    """A value of a union of several types: a struct of which one member is set."""

    type: pa.DataType
    member: int
    step: Step

    def column(self, stored: StoredValues, valid: Flags | None, count: int) -> Column:
        """Return structs."""
        column = self.step.column(stored, valid, count)
        rows = len(column.array)
        arrays = [
            column.array if index == self.member else pa.nulls(rows, field.type)
            for index, field in enumerate(self.type)
        ]
        return Column(pa.Array.from_buffers(self.type, rows, [_bitmap(valid)], children=arrays), column.faults)


def value_bytes(step: Step) -> int:
    """Return the bytes that a value may take in the column beside those of its datum: numbers, symbols, defaults.

    Items of lists are left out, see `added_bytes`.
    """
    match step:
        case DefaultStep() | EnumStep():
            return added_bytes(step)
        case RecordStep():
            return sum(value_bytes(field) for field in step.fields)
        case UnionStep():
            return sum(value_bytes(branch) for branch in step.branches)
        case MemberStep():
            return value_bytes(step.step) + _NUMBER_BYTES * len(step.type)
    return _NUMBER_BYTES


def items_of(step: Step) -> Iterator[tuple[int, Step]]:
    """Yield the slot of each list and map, and the step of its items."""
    if isinstance(step, ItemsStep):
        yield step.slot, step.item
    for part in _parts(step):
        yield from items_of(part)


def takes_bytes(step: Step) -> bool:
    """Return True if each value takes a byte of its datum."""
    match step:
        case NullStep() | RefusedStep() | DefaultStep():
            return False
        case RecordStep() | MemberStep():
            return any(takes_bytes(part) for part in _parts(step))
    return True


def added_bytes(step: Step) -> int:
    """Return the bytes of defaults and symbols that a value may take, but for those of items of its lists."""
    match step:
        case DefaultStep():
            return int(step.value.nbytes)
        case EnumStep():
            return max((len(symbol.encode()) for symbol in step.symbols.to_pylist()), default=0)
        case ItemsStep():
            return 0
        case UnionStep():
            return max((added_bytes(branch) for branch in step.branches), default=0)
    return sum(added_bytes(part) for part in _parts(step))


def _parts(step: Step) -> Sequence[Step]:
    match step:
        case RecordStep():
            return step.fields
        case UnionStep():
            return step.branches
        case MemberStep():
            return [step.step]
        case ItemsStep():
            return [step.item]
    return ()
