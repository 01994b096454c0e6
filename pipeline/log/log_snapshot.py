"""Reads of a log, from an immutable snapshot: no append or deletion blocks a read."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from pipeline.errors import CorruptBatchError, OffsetOutOfRangeError, SegmentClosedError
from pipeline.log.batch_places import BatchPlace, damage
from pipeline.log.leader_epochs import LeaderEpochs
from pipeline.log.segment import Segment
from pipeline.log.segment_indexes import position_before
from pipeline.model import FileRegion, Offset
from pipeline.records.batch import HEADER_SIZE, BatchHeader, read_header
from pipeline.records.compression import PIECE_BYTES, Codec, ReadableBuffer
from pipeline.records.reopening import START_BYTES, payload_pieces, scan_memory
from pipeline.records.turns import Steps, scan_in_turns

MAX_SKIPPED = 5000
"""Batches without records that a request may skip: some milliseconds of the event loop."""

PLACES_OF_A_STEP = 1000
"""Batches that a search by time reads before other requests have a turn."""

_BASE_OFFSET = attrgetter("base_offset")


class SkipBudget:
    """The number of batches without records that one request may still skip, in all its partitions together."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_SKIPPED


class LogSlice(NamedTuple):
    """Bytes of one segment. They start with a whole batch, at `base_offset`, and may end within one."""

    region: FileRegion
    base_offset: Offset
    offset_count: float = 0
    """Offsets that the bytes span: exact at the end of what may be read of the segment, else an estimate by bytes."""
    end_offset: Offset = Offset(0)
    """The end of what may be read of the segment."""
    segment: Segment | None = None

    def upper_bound(self, *, waits: bool = True) -> Offset:
        """Return an offset behind all records of the slice, and close to them. Raises as `Segment.locate`."""
        end = self.region.position + self.region.size
        offset = self.base_offset + int(self.offset_count)
        step = 1 + int(self.offset_count) // 16
        while self.segment is not None and offset < self.end_offset:
            place = self.segment.locate(offset, waits=waits)
            if place is None:
                break
            if place.position >= end:
                return Offset(place.base_offset)
            offset, step = max(offset + step, place.last_offset + 1), 2 * step
        return self.end_offset


class LogSnapshot(NamedTuple):
    """The contents of a log at one moment. A log replaces its snapshot as a whole.

    The last segment may have newer batches, so readers stop at `end_offset`.
    """

    segments: tuple[Segment, ...]
    start_offset: Offset
    end_offset: Offset
    epochs: LeaderEpochs
    """Shared by all snapshots of a log between two truncations."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def max_timestamp(self) -> int:
        """The newest timestamp of all records, in ms; -1 if there is none."""
        return max(segment.max_timestamp for segment in self.segments)

    def closed_segments(self) -> list[tuple[Segment, Offset]]:
        """All segments but the active one, each with the offset at which the next one starts."""
        return [(segment, Offset(after.base_offset)) for segment, after in pairwise(self.segments)]

    def read(
        self, offset: Offset, max_bytes: int, up_to_offset: Offset, skips: SkipBudget, *, waits: bool, holds: bool
    ) -> LogSlice:
        """Batches from the one that holds `offset` (or, in a gap, the next one) on, of one segment, ending before
        `up_to_offset`. At least one whole batch, also if it is longer than `max_bytes`; none at the end.

        Batches that compaction left without records are skipped at the beginning, unless nothing follows: librdkafka
        takes an answer without any record for one that was truncated, and in the end gives up (MSG_SIZE_TOO_LARGE).
        Once `skips` are used up, the last one is returned, and a reader goes on behind it.

        With `holds` the files of visited segments stay open. Raises OffsetOutOfRangeError, StorageError, and without
        `waits` SegmentClosedError if a file that is needed is not open, or not in the page cache.
        """
        segments, start_offset, log_end_offset, _ = self
        if not start_offset <= offset <= log_end_offset:
            raise OffsetOutOfRangeError(offset, start_offset, log_end_offset)
        end_offset = min(log_end_offset, up_to_offset)
        without_records: LogSlice | None = None
        for number in range(segment_number(segments, offset), len(segments)):
            segment = segments[number]
            if segment.base_offset >= end_offset or offset >= end_offset:
                break
            if not (waits or segment.is_at_hand(offset)):
                raise SegmentClosedError(f"{segment.path} or its index is not open")
            if holds:
                segment.hold_open()
            first = segment.locate(offset, waits=waits)
            if first is None or first.base_offset > offset:
                require_gap(segment, offset, first, waits=waits)
            if first is None:
                continue
            if first.last_offset >= end_offset:
                break
            if first.size_bytes == HEADER_SIZE:
                last, place = _skip(segment, first, end_offset, skips, waits=waits)
                if place is None:
                    without_records = LogSlice(
                        FileRegion(segment.file, last.position, last.size_bytes),
                        Offset(last.base_offset),
                        end_offset=Offset(last.last_offset + 1),
                    )
                    if skips.left <= 0:
                        break
                    continue
                first = place
            following = Offset(segments[number + 1].base_offset) if number + 1 < len(segments) else log_end_offset
            limit = None if following <= end_offset else segment.locate(end_offset, waits=waits)
            end = segment.size_bytes if limit is None else limit.position
            following = min(following, end_offset)
            size = min(end - first.position, max(max_bytes, first.size_bytes))
            records = (following - first.base_offset) * size / (end - first.position)
            region = FileRegion(segment.file, first.position, size)
            return LogSlice(region, Offset(first.base_offset), records, following, segment)
        return without_records or LogSlice(FileRegion(segments[-1].file, 0, 0), Offset(offset))

    def read_batch(self, header: BatchHeader) -> bytes:
        """Read the whole batch with this header. Raises StorageError."""
        segment = self.segments[segment_number(self.segments, header.base_offset)]
        place = segment.locate(header.base_offset)
        return b"" if place is None else segment.file.read_at(place.size_bytes, place.position)

    def headers(self, from_offset: Offset) -> Iterator[BatchHeader]:
        """The header of each batch from the one that holds `from_offset` on. Raises StorageError."""
        for segment in self.segments[segment_number(self.segments, from_offset) :]:
            first = segment.locate(from_offset)
            if first is None:
                continue
            for header in segment.headers(first.position):
                if header.base_offset >= self.end_offset:
                    return
                yield header

    def first_record_since(self, timestamp: int, max_opened_bytes: int) -> Steps[tuple[int, Offset] | None]:
        """Find time and offset of the first record that is not older than `timestamp` (ms); None if all are older.

        A batch that needs more than `max_opened_bytes` counts as one record, at its base offset. Raises StorageError.
        """
        start_offset = self.start_offset
        for segment in self.segments:
            if segment.max_timestamp < timestamp:
                continue
            for number, place in enumerate(segment.places(position_before(segment, timestamp)), 1):
                if place.last_offset >= start_offset and place.max_timestamp >= timestamp:
                    found = yield from _first_record(segment, place, timestamp, start_offset, max_opened_bytes)
                    if found is not None:
                        return found
                    yield None
                elif not number % PLACES_OF_A_STEP:
                    yield None
        return None


def require_gap(segment: Segment, offset: Offset, following: BatchPlace | None, *, waits: bool) -> None:
    """Raise DamagedSegmentError if the segment has batches from `offset` on, before the one that the lengths led to.

    A wrong length skips batches, which looks like a gap that compaction left. The index tells the two apart, but not
    within one interval of the index.
    """
    relative = offset - segment.base_offset
    if following is None:
        end = segment.find_end(waits=waits)
        is_gap = relative < 0 or (end is not None and end <= offset)
    else:
        entry = segment.offset_index.floor(following.base_offset - 1 - segment.base_offset, waits=waits)
        is_gap = entry is None or entry[0] < relative
    if not is_gap:
        position = segment.size_bytes if following is None else following.position
        raise damage(segment.path, f"the batch of offset {offset} cannot be found before it", position)


def _skip(
    segment: Segment, first: BatchPlace, end_offset: Offset, skips: SkipBudget, *, waits: bool
) -> tuple[BatchPlace, BatchPlace | None]:
    """Skip batches without records from `first` on; returns the last one skipped and the next batch, which has records.

    None instead of the latter if there is none before `end_offset`, or if `skips` were used up before.
    """
    last = first
    for place in segment.places(first.position, waits=waits):
        if place.last_offset >= end_offset:
            break
        if place.size_bytes > HEADER_SIZE:
            return last, place
        if skips.left <= 0 and place is not first:
            break
        skips.left -= 1
        last = place
    return last, None


def segment_number(segments: Sequence[Segment], offset: int) -> int:
    """The number of the segment that may hold `offset`; 0 for an offset before all of them."""
    return max(0, bisect_right(segments, offset, key=_BASE_OFFSET) - 1)


class _FirstSince:
    """The first record that is not older than a time, and not before an offset."""

    def __init__(self, timestamp: int, least_delta: int) -> None:
        self._timestamp = timestamp
        self._least_delta = least_delta
        self.found: tuple[int, int] | None = None

    def __call__(self, timestamp: int, offset_delta: int, _: bool, /) -> bool:
        """Visit the next record; True ends the search."""
        if timestamp < self._timestamp or offset_delta < self._least_delta:
            return False
        self.found = timestamp, offset_delta
        return True


def _first_record(
    segment: Segment, place: BatchPlace, timestamp: int, log_start_offset: Offset, max_opened_bytes: int
) -> Steps[tuple[int, Offset] | None]:
    """Within a batch whose newest record is not older; None if that lies before the log start offset."""
    start = segment.file.read_at(min(START_BYTES, place.size_bytes), place.position)
    header = read_header(start)
    if header.size_bytes > HEADER_SIZE and not header.is_control:
        with suppress(CorruptBatchError):
            memory_bytes = scan_memory(start, header, max_opened_bytes)
            first, _ = yield from scan_in_turns(
                header,
                memory_bytes + (0 if header.codec is Codec.NONE else place.size_bytes),
                partial(_pieces, segment, place, header, max_opened_bytes),
                partial(_FirstSince, timestamp, log_start_offset - header.base_offset),
            )
            if first.found is None:
                return None
            time_ms, offset_delta = first.found
            return time_ms, Offset(header.base_offset + offset_delta)
    return place.max_timestamp, max(Offset(place.base_offset), log_start_offset)


def _pieces(
    segment: Segment, place: BatchPlace, header: BatchHeader, max_opened_bytes: int
) -> Iterator[ReadableBuffer]:
    """The uncompressed records of a batch; a batch without compression is read piece by piece."""
    if header.codec is not Codec.NONE:
        batch = segment.file.read_at(place.size_bytes, place.position)
        yield from payload_pieces(batch, header, max_opened_bytes)
        return
    for start in range(HEADER_SIZE, place.size_bytes, PIECE_BYTES):
        yield segment.file.read_at(min(PIECE_BYTES, place.size_bytes - start), place.position + start)
