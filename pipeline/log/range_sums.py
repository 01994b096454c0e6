"""Sums over the batches of an offset range of a log: over headers, frames or contents.

Invariants:

- A batch belongs to the range that holds its last offset. So consecutive ranges have each batch once, and the
  batch that holds a log start offset belongs to the range that begins there.
- A scan stops at damage, and never skips what it cannot read: the sums reach exactly up to there.
- A step reads at most STEP_BATCHES headers or about PIECE_BYTES of records; a compressed batch that is opened is read
  whole. Each call of `is_over` comes after at least one batch, so that a caller with little time gets on, too; where
  records are read, the first call comes after the first batch, and each other one after about PIECE_BYTES.
- Records are read and opened while a charge for their memory is held (`batch_contents.py`).
- Batches that are as expected are gathered, and added many at once (`gathered_batches.py`). Any other one is looked at
  alone, after all gathered ones before it were added: so a scan stops at the first damage.
"""

from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from pipeline.errors import CorruptBatchError, DamagedSegmentError, StorageError
from pipeline.log.batch_contents import has_right_checksum, read_contents, sum_contents
from pipeline.log.batch_places import BatchPlace, damage
from pipeline.log.gathered_batches import WHOLE_BYTES, GatheredBatches
from pipeline.log.log_snapshot import LogSnapshot, require_gap, segment_number
from pipeline.log.segment import Segment
from pipeline.model import Offset
from pipeline.records.batch import CHECKED_FROM, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, read_header
from pipeline.records.batch_sums import BatchSums, RunningSums, SumKind
from pipeline.records.compression import PIECE_BYTES
from pipeline.records.turns import Steps

STEP_BATCHES = 1_000
_HEADERS_BYTES = 256
"""Read at once where only headers are read, of large batches."""
_SMALL_BYTES = 16 * 1024
_FIRST_BYTES = 64 * 1024
"""Read first where only headers are read, of batches of at most _SMALL_BYTES: most ranges that are halved end there."""


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
    gathered = GatheredBatches(kind, from_offset, reads=reads)
    segments = snapshot.segments
    try:
        for number in range(segment_number(segments, from_offset), len(segments)):
            segment = segments[number]
            if segment.base_offset >= up_to_offset:
                break
            next_offset = gathered.next_offset
            first = segment.locate(next_offset)
            if first is None or first.base_offset > next_offset:
                require_gap(segment, Offset(next_offset), first, waits=True)
            if first is None:
                continue
            is_last = number + 1 == len(segments)
            following = snapshot.end_offset if is_last else segments[number + 1].base_offset
            scan = _SegmentScan(segment, first, following, up_to_offset, gathered, is_last=is_last)
            try:
                stops = yield from scan.run(is_over)
            except StorageError:
                gathered.settle()  # damage of an earlier batch comes first
                raise
            gathered.settle()
            if stops:
                return RangeSums(gathered.sums.total(), gathered.next_offset)
    except DamagedSegmentError as error:
        return RangeSums(gathered.sums.total(), gathered.next_offset, str(error))
    return RangeSums(gathered.sums.total(), up_to_offset)


class _SegmentScan:
    """Goes through a segment from a batch on, up to the offset `following` or the batch that holds `up_to_offset`."""

    def __init__(
        self,
        segment: Segment,
        first: BatchPlace,
        following: int,
        up_to_offset: int,
        gathered: GatheredBatches,
        *,
        is_last: bool,
    ) -> None:
        self._segment = segment
        self._following = following
        self._up_to_offset = up_to_offset
        self._gathered = gathered
        self._is_last = is_last
        self._first_position = self._position = self._chunk_position = first.position
        self._chunk = b""
        self._batch_bytes = first.size_bytes
        """About the size of the batches here."""

    def run(self, is_over: Callable[[], bool]) -> Steps[bool]:
        """Add the batches of the segment. Return True if `is_over` ended that. Raises StorageError.

        Some of the batches may still be gathered then.
        """
        gathered = self._gathered
        gathered.enter(self._segment.path, self._position)
        while self._position + HEADER_SIZE <= self._segment.size_bytes:
            at = self._position - self._chunk_position
            # The first batch is looked at alone: a scan whose time is over gets on by one.
            if self._position > self._first_position and self._gather(at):
                if len(gathered) < STEP_BATCHES:
                    continue
                gathered.settle()
                yield None
                if is_over():
                    return True
            elif self._must_read(at):
                if self._chunk and gathered.reads:
                    yield None
                    if is_over():
                        return True
                self._read_on()
            else:
                gathered.settle()
                is_end = yield from self._look_at_one(memoryview(self._chunk)[at:])
                if is_end:
                    break
                gathered.enter(self._segment.path, self._position)
                if gathered.reads and is_over():
                    return True
        return False

    def _gather(self, at: int) -> int:
        """Gather batches of the chunk. Return their number.

        The last batch of a range is left: what follows may be above the high watermark, and be truncated at any time.
        """
        before = min(self._following, self._up_to_offset) - 1
        room = STEP_BATCHES - len(self._gathered)
        end, count = self._gathered.gather(
            self._chunk, at, before, self._segment.size_bytes - self._chunk_position, room
        )
        if count:
            self._batch_bytes = (end - at) // count
            self._position += end - at
        return count

    def _must_read(self, at: int) -> bool:
        """True if the chunk lacks the header at `at`, or records that would be read together with their neighbours."""
        held_bytes = len(self._chunk) - at
        if held_bytes < HEADER_SIZE:
            return True
        if not (at and self._gathered.reads):
            return False
        size_bytes = int.from_bytes(self._chunk[at + 8 : at + 12], "big", signed=True) + LOG_OVERHEAD
        return held_bytes < size_bytes <= WHOLE_BYTES

    def _read_on(self) -> None:
        """Read a chunk from the present position on."""
        if self._gathered.reads:
            read_bytes = PIECE_BYTES if self._batch_bytes <= WHOLE_BYTES else _HEADERS_BYTES
        else:
            neighbours_bytes = PIECE_BYTES if self._chunk else _FIRST_BYTES
            read_bytes = neighbours_bytes if self._batch_bytes <= _SMALL_BYTES else _HEADERS_BYTES
        file = self._segment.file
        self._chunk, self._chunk_position = file.read_at(read_bytes, self._position), self._position
        if len(self._chunk) < HEADER_SIZE:
            end = self._position + len(self._chunk)
            raise StorageError(str(file.path), f"ends at {end}, before its length {self._segment.size_bytes}")

    def _look_at_one(self, view: memoryview) -> Steps[bool]:
        """Check the batch at the present position and add it. Return True if it is the last one, or does not belong."""
        gathered, segment, position = self._gathered, self._segment, self._position
        raw = view[:HEADER_SIZE]
        header = _read_sound(segment, raw, position)
        next_offset = gathered.next_offset
        if self._is_last and header.base_offset >= self._following:
            return True  # appended since the snapshot
        is_overlapping = header.base_offset < next_offset and position > self._first_position
        if header.last_offset >= self._following or is_overlapping:
            reason = f"a batch of offset {header.base_offset} lies where {next_offset} is due"
            raise damage(segment.path, reason, position)
        if header.last_offset >= self._up_to_offset:
            return True
        if not gathered.reads:
            gathered.add_one(raw, header)
        elif not _add_whole(gathered.sums, view[: header.size_bytes], raw, header, gathered.kind):
            yield from _read(gathered.sums, segment, position, raw, header, gathered.kind)
        gathered.next_offset = header.next_offset
        self._batch_bytes = header.size_bytes
        self._position += header.size_bytes
        return gathered.next_offset >= self._up_to_offset


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
