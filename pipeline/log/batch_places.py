"""Places of the batches in a segment's file, found by their lengths alone."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import DamagedSegmentError, StorageError
from pipeline.log.files import LogFile
from pipeline.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header

REMEDY = "restore the file, or move the partition's directory away to have it copied from another replica"
PLACE = struct.Struct(">qi11xi8xq")
"""The first bytes of a batch: base offset, length, last offset delta, newest timestamp."""

_READ_BYTES = 4096


class BatchPlace(NamedTuple):
    """Place of a batch in its segment."""

    position: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    size_bytes: int


def damage(path: Path, reason: str, position: int) -> DamagedSegmentError:
    """Return the error for a place that does not hold what it should."""
    return DamagedSegmentError(str(path), f"is damaged at position {position}: {reason}; {REMEDY}")


def walk_batches(file: LogFile, position: int, end: int, *, waits: bool = True) -> Iterator[tuple[int, bytes, int]]:
    """Each batch from `position` on: its position, and bytes with the place in them where its header starts."""
    chunk, chunk_position = b"", position
    while position + HEADER_SIZE <= end:
        at = position - chunk_position
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_position, at = file.read_at(_READ_BYTES, position, waits=waits), position, 0
            if len(chunk) < HEADER_SIZE:
                raise StorageError(str(file.path), f"ends at {position + len(chunk)}, before its length {end}")
        size_bytes = int.from_bytes(chunk[at + 8 : at + 12], "big", signed=True) + LOG_OVERHEAD
        if size_bytes < HEADER_SIZE:
            raise damage(file.path, "no batch begins here", position)
        yield position, chunk, at
        position += size_bytes


def find_places(file: LogFile, position: int, end: int, *, waits: bool = True) -> Iterator[BatchPlace]:
    """Each batch from `position` on, up to `end`. Raises StorageError where the bytes are no batch, and without `waits`
    SegmentClosedError where they are not in the page cache.
    """
    unpack = PLACE.unpack_from
    for at, chunk, start in walk_batches(file, position, end, waits=waits):
        base_offset, length, last_offset_delta, max_timestamp = unpack(chunk, start)
        if last_offset_delta < 0:  # a search for an offset would skip the batch, as if compaction had removed it
            raise damage(file.path, f"the batch there ends {-last_offset_delta} offsets before it begins", at)
        yield BatchPlace(at, base_offset, base_offset + last_offset_delta, max_timestamp, length + LOG_OVERHEAD)


def find_headers(file: LogFile, position: int, end: int) -> Iterator[BatchHeader]:
    """The header of each batch from `position` on, up to `end`. Raises StorageError, CorruptBatchError."""
    for _, chunk, start in walk_batches(file, position, end):
        yield read_header(chunk, start)
