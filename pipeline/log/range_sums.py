"""Sums over the batches of an offset range of a log, from headers alone or with recomputed checksums.

Invariants:

- A batch belongs to the range that holds its last offset. So consecutive ranges have each batch once, and the
  batch that holds a log start offset belongs to the range that begins there.
- A scan stops at damage, and never skips what it cannot read: the sums reach exactly up to there.
- A step reads at most STEP_BATCHES headers or about PIECE_BYTES of records. Each call of `is_over` comes after at least
  one batch, so that a caller with little time gets on, too.
"""

from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from pipeline.errors import CorruptBatchError, DamagedSegmentError
from pipeline.log.batch_places import damage, walk_batches
from pipeline.log.log_snapshot import LogSnapshot, require_gap, segment_number
from pipeline.log.segment import Segment
from pipeline.model import Offset
from pipeline.records.batch import CHECKED_FROM, HEADER_SIZE, BatchHeader, read_header
from pipeline.records.batch_sums import BatchSums, RunningSums
from pipeline.records.compression import PIECE_BYTES
from pipeline.records.turns import Steps

STEP_BATCHES = 500


class RangeSums(NamedTuple):
    """Sums over the batches whose last offsets lie before `next_offset`, which is the end of the range, or where the
    scan stopped. `damage` says why the log cannot be read there.
    """

    sums: BatchSums
    next_offset: int
    damage: str | None = None


def sum_range(
    snapshot: LogSnapshot, from_offset: int, up_to_offset: int, is_over: Callable[[], bool], *, is_deep: bool = False
) -> Steps[RangeSums]:
    """Sum over the batches whose last offsets lie from `from_offset` on and before `up_to_offset`, until `is_over`.

    The range lies within the log. With `is_deep` each batch is read, and wrong checksums are counted. Raises
    StorageError.
    """
    sums, next_offset = RunningSums(), from_offset
    segments = snapshot.segments
    try:
        for number in range(segment_number(segments, from_offset), len(segments)):
            segment = segments[number]
            if segment.base_offset >= up_to_offset:
                break
            first = segment.locate(next_offset)
            if first is None or first.base_offset > next_offset:
                require_gap(segment, Offset(next_offset), first, waits=True)
            if first is None:
                continue
            is_last = number + 1 == len(segments)
            following = snapshot.end_offset if is_last else segments[number + 1].base_offset
            batches = walk_batches(segment.file, first.position, segment.size_bytes)
            for count, (position, chunk, at) in enumerate(batches):
                if count % STEP_BATCHES == STEP_BATCHES - 1:
                    yield None
                    if is_over():
                        return RangeSums(sums.total(), next_offset)
                raw = memoryview(chunk)[at : at + HEADER_SIZE]
                header = _read_sound(segment, raw, position)
                if is_last and header.base_offset >= following:
                    break  # appended since the snapshot
                if header.last_offset >= following or (header.base_offset < next_offset and count):
                    reason = f"a batch of offset {header.base_offset} lies where {next_offset} is due"
                    raise damage(segment.path, reason, position)
                if header.last_offset >= up_to_offset:
                    break
                if is_deep and not (yield from _has_right_checksum(segment, position, header)):
                    sums.note_damaged(header.base_offset)
                sums.add(raw, header)
                next_offset = header.last_offset + 1
                if next_offset >= up_to_offset:
                    break  # what follows may be above the high watermark, and be truncated at any time
                if is_deep and is_over():
                    return RangeSums(sums.total(), next_offset)
    except DamagedSegmentError as error:
        return RangeSums(sums.total(), next_offset, str(error))
    return RangeSums(sums.total(), up_to_offset)


def _read_sound(segment: Segment, raw: memoryview, position: int) -> BatchHeader:
    try:
        header = read_header(raw)
    except CorruptBatchError as error:
        raise damage(segment.path, error.reason, position) from error
    if position + header.size_bytes > segment.size_bytes:
        raise damage(segment.path, f"the batch of offset {header.base_offset} is longer than the file", position)
    return header


def _has_right_checksum(segment: Segment, position: int, header: BatchHeader) -> Steps[bool]:
    """Compute the checksum of a batch, piece by piece. Raises StorageError."""
    crc, at, end = 0, position + CHECKED_FROM, position + header.size_bytes
    while at < end:
        piece = segment.file.read_at(min(PIECE_BYTES, end - at), at)
        if not piece:
            return False
        crc = crc32c(piece, crc)
        at += len(piece)
        if at < end:
            yield None
    return crc == header.crc
