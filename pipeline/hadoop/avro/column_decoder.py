"""Decodes datums of one writer's schema into a column of a reader's: two walks of machine code, then Arrow."""

from dataclasses import dataclass

import numpy as np

from pipeline.hadoop.avro.avro_kernels import FAULT_REASONS, DatumFault, Flags
from pipeline.hadoop.avro.avro_schema import SchemaTable
from pipeline.hadoop.avro.column_kernels import Program, walk_datums
from pipeline.hadoop.avro.column_steps import Column, Step, StoredValues
from pipeline.hadoop.avro.column_values import ValueFault
from pipeline.records.kernels import Bytes, Int64s

NO_NUMBERS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ColumnDecoder:
    """Program that walks datums of `writer`, and the step that makes their column.

    `loops` is the number of its lists and maps; `added` are the bytes that the reader adds to an item, by slot;
    `has_empty_items` is False if each item takes a byte; `dropped` are the writer's fields that the reader lacks.
    """

    writer: SchemaTable
    program: Program
    jumps: Int64s
    slots: int
    loops: int
    added: Int64s
    has_empty_items: bool
    step: Step
    dropped: tuple[str, ...]

    def decode(self, data: Bytes, starts: Int64s, ends: Int64s, valid: Flags | None = None) -> Column:
        """Return the column of the datums [start, end) of `data`; with `valid` they go to the rows that it marks.

        A datum with a fault is null or any value, and reported in the column's faults.
        """
        codes = np.zeros(len(starts), dtype=np.uint8)
        used = np.full(self.slots, len(starts), dtype=np.int64)
        if self.loops:
            used = self._walk(data, starts, ends, codes, np.zeros(self.slots, dtype=np.int64), NO_NUMBERS)
        stored = self._store(data, starts, ends, codes, used)
        good = codes == 0
        bad = not good.all()
        if bad:
            starts, ends = starts[good], ends[good]
            stored = self._store(data, starts, ends, np.zeros(len(starts), dtype=np.uint8), used)
        whole = np.ones(len(codes), dtype=np.bool_) if valid is None else valid
        decoded = valid
        if bad:
            decoded = np.zeros(len(whole), dtype=np.bool_)
            decoded[np.flatnonzero(whole)[good]] = True
        column = self.step.column(stored, decoded, len(starts))
        if not bad:
            return column
        rows = np.zeros(len(whole), dtype=np.uint8)
        rows[whole] = codes
        faults = [ValueFault(rows == code, FAULT_REASONS[DatumFault(int(code))]) for code in np.unique(codes[~good])]
        return Column(column.array, [*faults, *column.faults])

    def _store(self, data: Bytes, starts: Int64s, ends: Int64s, faults: Bytes, room: Int64s) -> StoredValues:
        first = np.cumsum(room) - room
        numbers = np.empty(int(room.sum()) + 1, dtype=np.int64)
        used = self._walk(data, starts, ends, faults, first.copy(), numbers)
        return StoredValues(numbers=numbers, bounds=np.column_stack((first, used)), buffer=data)

    def _walk(self, data: Bytes, starts: Int64s, ends: Int64s, faults: Bytes, used: Int64s, numbers: Int64s) -> Int64s:
        table = self.writer
        walk_datums(
            self.program,
            self.jumps,
            table.kind,
            table.argument,
            table.child_count,
            table.children,
            data,
            starts,
            ends,
            self.added,
            np.zeros(self.loops + 1, dtype=np.int64),
            used,
            np.zeros(self.slots, dtype=np.int64),
            faults,
            numbers,
        )
        return used
