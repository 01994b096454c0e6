"""Sums over the batches of an offset range of a log: over headers, frames or contents.

Invariants:

- A batch belongs to the range that holds its last offset. So consecutive ranges have each batch once, and the
  batch that holds a log start offset belongs to the range that begins there.
- A scan stops at damage, and never skips what it cannot read: the sums reach exactly up to there.
- A step reads at most STEP_BATCHES headers or about PIECE_BYTES of records; a compressed batch that is opened is read
  whole. Each call of `is_over` comes after at least one batch, so that a caller with little time gets on, too.
- Records are read and opened while a charge for their memory is held (`batch_contents.py`).
"""

from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from pipeline.errors import CorruptBatchError, DamagedSegmentError
from pipeline.log.batch_contents import has_right_checksum, read_contents, sum_contents
from pipeline.log.batch_places import damage, walk_batches
from pipeline.log.log_snapshot import LogSnapshot, require_gap, segment_number
from pipeline.log.segment import Segment
from pipeline.model import Offset
from pipeline.records.batch import CHECKED_FROM, HEADER_SIZE, BatchHeader, read_header
from pipeline.records.batch_sums import BatchSums, RunningSums, SumKind
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
    snapshot: LogSnapshot,
    from_offset: int,
    up_to_offset: int,
    is_over: Callable[[], bool],
    *,
    is_deep: bool = False,
    kind: SumKind = SumKind.HEADERS,
) -> Steps[RangeSums]:
    """Sum over the batches whose last offsets lie from `from_offset` on and before `up_to_offset`, until `is_over`.

    The range lies within the log. Over CONTENTS, and with `is_deep` over HEADERS, each batch is read, and wrong
    checksums are counted. Raises StorageError.
    """
    reads = kind is SumKind.CONTENTS or (is_deep and kind is SumKind.HEADERS)
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
            batches = walk_batches(segment.file, first.position, segment.size_bytes, is_whole=reads)
            read_from = first.position
            for count, (position, chunk, at) in enumerate(batches):
                if count % STEP_BATCHES == STEP_BATCHES - 1 or (reads and position - read_from >= PIECE_BYTES):
                    read_from = position
                    yield None
                    if is_over():
                        return RangeSums(sums.total(), next_offset)
                view = memoryview(chunk)
                raw = view[at : at + HEADER_SIZE]
                header = _read_sound(segment, raw, position)
                last_offset = header.last_offset
                if is_last and header.base_offset >= following:
                    break  # appended since the snapshot
                if last_offset >= following or (header.base_offset < next_offset and count):
                    reason = f"a batch of offset {header.base_offset} lies where {next_offset} is due"
                    raise damage(segment.path, reason, position)
                if last_offset >= up_to_offset:
                    break
                if reads:
                    batch = view[at : at + header.size_bytes]
                    if not _add_whole(sums, batch, raw, header, kind):
                        yield from _read(sums, segment, position, raw, header, kind)
                elif kind is SumKind.FRAMES:
                    sums.add_frame(header)
                else:
                    sums.add(raw, header)
                next_offset = last_offset + 1
                if next_offset >= up_to_offset:
                    break  # what follows may be above the high watermark, and be truncated at any time
                if reads and is_over():
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


def _add_whole(sums: RunningSums, batch: memoryview, raw: memoryview, header: BatchHeader, kind: SumKind) -> bool:
    """Add a batch to the sums by its bytes. Return False if they are not all there, or are to be opened."""
    if len(batch) != header.size_bytes:
        return False
    if kind is not SumKind.CONTENTS:
        is_sound = crc32c(batch[CHECKED_FROM:]) == header.crc
        sums.add(raw, header)
    elif header.is_compressed:
        return False
    else:
        is_sound, plain = sum_contents(batch, header)
        sums.add_contents(raw, header, plain)
    if not is_sound:
        sums.note_damaged(header.base_offset)
    return True


def _read(
    sums: RunningSums, segment: Segment, position: int, raw: memoryview, header: BatchHeader, kind: SumKind
) -> Steps[None]:
    """Read a batch and add it to the sums. Raises StorageError."""
    if kind is SumKind.CONTENTS:
        is_sound, plain = yield from read_contents(segment.file, position, header)
        sums.add_contents(raw, header, plain)
    else:
        is_sound = yield from has_right_checksum(segment.file, position, header)
        sums.add(raw, header)
    if not is_sound:
        sums.note_damaged(header.base_offset)
