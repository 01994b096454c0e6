"""Chooses the segment, offsets and leader epoch of appended batches. The producer's checksum covers none of them."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from pipeline.errors import InvalidRecordError, OffsetOverlapError
from pipeline.log.config import MAX_RELATIVE_OFFSET, LogConfig
from pipeline.log.segment import Segment
from pipeline.model import MAX_INT64, LeaderEpoch, Offset
from pipeline.records.batch import LOG_OVERHEAD, BatchHeader, place_batch


class AppendInfo(NamedTuple):
    """The result of an append. `headers`: the batches as they lie in the log now, none of a duplicate."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_ms: int
    log_start_offset: Offset
    headers: Sequence[BatchHeader]
    duplicate: bool = False


class Target(Enum):
    """The segment that batches go to: the last one, a new one at the end, or a new one behind a gap."""

    LAST = "last"
    NEXT = "next"
    BEHIND_GAP = "behind gap"


def choose_segment(
    last: Segment, size_bytes: int, headers: Sequence[BatchHeader], *, end_offset: int, config: LogConfig, now_ms: int
) -> Target:
    """Return the segment for batches that come after `end_offset`."""
    last_offset = headers[-1].last_offset
    is_open = not last.was_truncated and last_offset - last.base_offset <= MAX_RELATIVE_OFFSET
    if is_open and (
        last.size_bytes == 0
        or (
            last.size_bytes + size_bytes <= config.segment_bytes
            and not last.would_span_more(config.segment_ms, headers, now_ms)
        )
    ):
        return Target.LAST
    if last.size_bytes and last_offset - end_offset <= MAX_RELATIVE_OFFSET:
        return Target.NEXT
    return Target.BEHIND_GAP


def place_next(
    batches: bytearray | memoryview, headers: Sequence[BatchHeader], next_offset: int, leader_epoch: LeaderEpoch
) -> list[BatchHeader]:
    """Assign offsets from `next_offset` on. Raises ValueError if headers and bytes differ in length, InvalidRecordError
    if the log has too few offsets left.
    """
    position = 0
    placed = []
    for header in headers:
        if next_offset + header.last_offset_delta >= MAX_INT64:
            raise InvalidRecordError(f"the log ends at offset {next_offset}, and at {MAX_INT64} at most")
        placed.append(place_batch(batches, position, next_offset, leader_epoch))
        position += header.batch_length + LOG_OVERHEAD
        next_offset += header.last_offset_delta + 1
    _check_length(batches, position)
    return placed


def is_within_reach(headers: Sequence[BatchHeader]) -> bool:
    """Return True if one segment can hold these batches, whose offsets rise."""
    return headers[-1].next_offset - headers[0].base_offset <= MAX_RELATIVE_OFFSET


def within_reach(
    batches: bytearray | memoryview, headers: Sequence[BatchHeader]
) -> Iterator[tuple[memoryview, Sequence[BatchHeader]]]:
    """Split batches whose offsets rise into runs that one segment can hold: nearly always a single run."""
    view, begun, position = memoryview(batches), 0, 0
    if not is_within_reach(headers):
        first = 0
        for number, header in enumerate(headers):
            if number > first and not is_within_reach((headers[first], header)):
                yield view[begun:position], headers[first:number]
                first, begun = number, position
            position += header.size_bytes
        headers = headers[first:]
    yield view[begun:], headers


def set_epoch(
    batches: bytearray | memoryview, headers: Sequence[BatchHeader], leader_epoch: LeaderEpoch
) -> list[BatchHeader]:
    """Set the leader epoch of batches that keep their offsets. Raises ValueError if headers and bytes differ."""
    position = 0
    placed = []
    for header in headers:
        placed.append(place_batch(batches, position, header.base_offset, leader_epoch))
        position += header.batch_length + LOG_OVERHEAD
    _check_length(batches, position)
    return placed


def check_rising(batches: bytearray | memoryview, headers: Sequence[BatchHeader], next_offset: int) -> None:
    """Raise OffsetOverlapError for a batch before `next_offset` or before the end of another one, ValueError if headers
    and bytes differ in length.
    """
    size_bytes = 0
    for header in headers:
        if header.base_offset < next_offset:
            raise OffsetOverlapError(header.base_offset, next_offset)
        size_bytes += header.batch_length + LOG_OVERHEAD
        next_offset = header.base_offset + header.last_offset_delta + 1
    _check_length(batches, size_bytes)


def _check_length(batches: bytearray | memoryview, size_bytes: int) -> None:
    if size_bytes != len(batches):
        raise ValueError(f"{len(batches)} bytes with headers of {size_bytes}")
