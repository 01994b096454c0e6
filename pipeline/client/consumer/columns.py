"""Fetched batches as Arrow record batches, opened in portions. Runs in threads: kernels and codecs release the GIL.

Heavy imports (numba, numpy, pyarrow): imported when the first batch is opened as columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.errors import CorruptBatchError
from pipeline.model import MAX_INT64, TopicPartition
from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.records.columns import ARROW_SCHEMA, RecordColumns, open_in_portions

OPENED_BYTES: Final = 8 << 20
"""Size of the record batches that are opened at a time, or of a single larger portion."""
CONSUMED_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(ARROW_SCHEMA.field(name) for name in ("offset", "timestamp", "key", "value", "headers")),
    ]
)
"""Columns of what `columns()` yields, unless it is given fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class ClosedPiece:
    """Fetched batches of one partition, to be opened from `position` on."""

    topic_partition: TopicPartition
    data: memoryview
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class OpenedPortion:
    """Records of a piece, from `position` to before `next_offset`. `piece`: its number."""

    piece: int
    position: int
    next_offset: int
    table: pa.RecordBatch


@dataclass(frozen=True, slots=True, eq=False)
class RefusedBatch:
    """A batch that cannot be opened; what follows in its piece is left closed."""

    piece: int
    header: BatchHeader
    error: CorruptBatchError


Opened = OpenedPortion | RefusedBatch


def opened_portions(
    pieces: Sequence[ClosedPiece], max_batch_bytes: int, names: Sequence[str] | None
) -> Iterator[Opened]:
    """Open one piece after the other. `names`: columns, all without. Raises MemoryExhaustedError."""
    for number, piece in enumerate(pieces):
        yield from _opened_piece(number, piece, max_batch_bytes, names or CONSUMED_SCHEMA.names)


def next_opened(portions: Iterator[Opened]) -> list[Opened]:
    """Take what is to be opened at a time; an empty list at the end. Raises MemoryExhaustedError."""
    opened: list[Opened] = []
    size_bytes = 0
    for portion in portions:
        opened.append(portion)
        size_bytes += portion.table.nbytes if isinstance(portion, OpenedPortion) else 0
        if size_bytes >= OPENED_BYTES:
            break
    return opened


def _opened_piece(number: int, piece: ClosedPiece, max_batch_bytes: int, names: Sequence[str]) -> Iterator[Opened]:
    position = piece.position
    is_sound = True
    try:
        for portion in _portions(number, piece, _from(piece.data, position), max_batch_bytes, names):
            position = portion.next_offset
            yield portion
    except CorruptBatchError:
        is_sound = False
    if is_sound:
        return
    # Batch by batch, to return those before the bad one.
    rest = _from(piece.data, position)
    for start, header in iterate_headers(rest):
        batch = rest[start : start + header.size_bytes]
        try:
            yield from _portions(number, replace(piece, position=position), batch, max_batch_bytes, names)
        except CorruptBatchError as error:
            yield RefusedBatch(number, header, error)
            return
        position = header.next_offset


def _portions(
    number: int, piece: ClosedPiece, data: memoryview, max_batch_bytes: int, names: Sequence[str]
) -> Iterator[OpenedPortion]:
    schema = pa.schema([CONSUMED_SCHEMA.field(name) for name in names])
    position = piece.position
    # The fetcher has verified the checksums.
    for columns in open_in_portions(data, max_batch_bytes=max_batch_bytes, is_verified=True):
        chosen = columns.between(position, MAX_INT64)
        table = pa.RecordBatch.from_arrays(
            [_column(chosen, piece.topic_partition, name) for name in names], schema=schema
        )
        next_offset = position if columns.next_offset is None else max(position, columns.next_offset)
        yield OpenedPortion(number, position, next_offset, table)
        position = next_offset


def _from(data: memoryview, position: int) -> memoryview:
    """Return the batches that have offsets from `position` on."""
    for start, header in iterate_headers(data):
        if header.next_offset > position:
            return data[start:]
    return data[len(data) :]


def _column(columns: RecordColumns, topic_partition: TopicPartition, name: str) -> pa.Array:
    if name == "topic":
        indices = pa.array(np.zeros(len(columns), dtype=np.int32))
        topics: pa.Array = pa.DictionaryArray.from_arrays(indices, pa.array([topic_partition.topic]))
        return topics
    if name == "partition":
        return pa.array(np.full(len(columns), topic_partition.partition, dtype=np.int32))
    return columns.arrow_column(name)
