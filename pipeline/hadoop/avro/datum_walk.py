"""Walk of datums by a schema whose references are other texts: the check that a broker plugs in.

Invariant: work and depth of each datum are bounded, as in `avro_kernels.py`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from pipeline.hadoop.avro.avro_kernels import (
    FAULT_REASONS,
    MAX_DEPTH,
    MAX_FREE_STEPS,
    DatumFault,
    skip_datum,
)
from pipeline.hadoop.avro.avro_schema import SchemaError, SchemaTable, parse, schema_table
from pipeline.records.kernels import Bytes, Int64s

_TRAILING_BYTES = int(DatumFault.TRAILING_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class CompiledDatums:
    """A schema as a table; datums are of its node `root`."""

    table: SchemaTable
    root: int

    def walk(self, buffer: Any, starts: Any, ends: Any, faults: Any, first: int, steps: int) -> tuple[int, int]:
        """Check the datums [start, end) from row `first` on until `steps` are used up, and set the fault of each.

        Return the first row that was not checked, and the steps left, which may be negative.
        """
        table = self.table
        row, left = check_rows(
            table.kind,
            table.argument,
            table.child_count,
            table.children,
            self.root,
            buffer,
            starts,
            ends,
            faults,
            first,
            steps,
        )
        return int(row), int(left)

    @property
    def too_complex(self) -> int:
        """The fault of a datum that takes too many steps."""
        return int(DatumFault.TOO_COMPLEX)

    def reason(self, fault: int) -> str:
        """Return the sentence for a fault."""
        return FAULT_REASONS[DatumFault(fault)]


def compile_datums(texts: Sequence[str]) -> CompiledDatums:
    """Compile the last text, whose references are the texts before it. Raises SchemaError.

    The first call of a process loads the kernel, and the first call ever compiles it, which takes seconds.
    """
    if len(texts) == 1:
        table, root = schema_table(parse(texts[0])), 0
    else:
        try:  # a list of types knows the names of all
            together = json.dumps([json.loads(text) for text in texts])
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"not an Avro schema: {error}") from error
        table = schema_table(parse(together))
        root = int(table.children[table.argument[0] + len(texts) - 1])
    compiled, none = CompiledDatums(table, root), np.empty(0, dtype=np.int64)
    compiled.walk(np.frombuffer(b"\0", dtype=np.uint8), none, none, np.empty(0, dtype=np.uint8), 0, 1)
    return compiled


@njit(cache=True, nogil=True)
def check_rows(
    kinds: Int64s,
    arguments: Int64s,
    child_counts: Int64s,
    children: Int64s,
    root: int,
    buffer: Bytes,
    starts: Int64s,
    ends: Int64s,
    faults: Bytes,
    first: int,
    steps: int,
) -> tuple[int, int]:
    """Walk the datums from row `first` on while there are steps. Return the next row, and the steps left."""
    stack = np.empty((MAX_DEPTH + len(children), 2), dtype=np.int64)
    row = first
    while row < len(starts) and steps > 0:
        start, end = starts[row], ends[row]
        allowed = MAX_FREE_STEPS + 16 * (end - start)
        position, fault, left = skip_datum(
            kinds, arguments, child_counts, children, buffer, start, end, root, allowed, stack
        )
        steps -= allowed - left
        if not fault and position != end:
            fault = _TRAILING_BYTES
        faults[row] = fault
        row += 1
    return row, steps
