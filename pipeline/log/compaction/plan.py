"""Decides which log is cleaned next, how far, and which of its segments become one. Pure.

Invariants (Kafka's design chapter, *Log compaction*; KIP-58 for the least lag, KIP-354 for the largest):

- The active segment is never cleaned, nor a segment that consumers cannot read to its end, nor one with a record
  younger than `min.compaction.lag.ms`.
- A log is cleaned when more than `min.cleanable.dirty.ratio` of its cleanable bytes are dirty, or when a dirty segment
  is older than `max.compaction.lag.ms`. Of several the dirtiest is first.
- The cleaned segment of a group is at most as long as `segment.bytes`, unless one segment alone is longer, and all of
  its offsets are within reach of its index. Of a group all files are open when the cleaned segment takes their place,
  so a group has a bounded number of segments.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.log.config import MAX_RELATIVE_OFFSET
from pipeline.model import TopicPartition

MAX_GROUP_SEGMENTS = 64
"""With three files each that is well below the descriptors that a process usually has, 1,024."""


class SegmentRange(NamedTuple):
    """A closed segment: its offsets (`end_offset` is that of the next segment) and its length."""

    base_offset: int
    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """A closed segment and the times of its records, in ms."""

    range: SegmentRange
    first_ms: int
    newest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """The settings of a topic for its compaction."""

    min_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable:
    """The `segments` of a log that can be cleaned; records from `first_dirty_offset` on never were.

    A segment with that offset in the middle counts as clean and as dirty, as in Kafka: else it might never be cleaned.
    """

    first_dirty_offset: int
    segments: tuple[SegmentRange, ...]
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """The share of dirty bytes in all bytes that can be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty_offset(checkpoint: int | None, *, log_start_offset: int, log_end_offset: int) -> int:
    """The offset from which nothing was ever cleaned. A checkpoint outside of the log (another log's) is ignored."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def find_cleanable(
    closed: Sequence[SegmentAge], settings: CompactionSettings, *, first_dirty: int, visible_end: int, now_ms: int
) -> Cleanable:
    """Find the closed segments that can be cleaned. `visible_end`: the offset up to which consumers read."""
    ranges = []
    clean_bytes = dirty_bytes = 0
    is_overdue = False
    for segment in closed:
        is_dirty = segment.range.end_offset > first_dirty
        is_young = settings.min_lag_ms > 0 and segment.newest_ms > now_ms - settings.min_lag_ms
        if segment.range.end_offset > visible_end or (is_dirty and is_young):
            break
        ranges.append(segment.range)
        if segment.range.base_offset < first_dirty:
            clean_bytes += segment.range.size_bytes
        if is_dirty:
            dirty_bytes += segment.range.size_bytes
        if is_dirty and 0 < segment.first_ms < now_ms - settings.max_lag_ms:
            is_overdue = True
    if not ranges or ranges[-1].end_offset <= first_dirty:
        is_overdue = False
    return Cleanable(
        first_dirty_offset=first_dirty,
        segments=tuple(ranges),
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        is_overdue=is_overdue,
    )


def is_due(found: Cleanable, settings: CompactionSettings) -> bool:
    """Return True if it is time to clean the log."""
    return found.is_overdue or (found.dirty_bytes > 0 and found.dirty_ratio > settings.min_dirty_ratio)


def choose(
    logs: Mapping[TopicPartition, tuple[Cleanable, CompactionSettings]], failed: Set[TopicPartition] = frozenset()
) -> TopicPartition | None:
    """Choose the dirtiest log that is due, None if none is. Logs that `failed` since the last success come last."""
    due = [partition for partition, (found, settings) in logs.items() if is_due(found, settings)]
    return max(due, key=lambda each: (each not in failed, logs[each][0].dirty_ratio, each), default=None)


def group_segments(
    segments: Sequence[SegmentRange], *, end_offset: int, segment_bytes: int, heads: Set[int] = frozenset()
) -> list[tuple[SegmentRange, ...]]:
    """Group the segments that begin before `end_offset`: each group becomes one segment.

    `heads`: base offsets at which a group must begin, since further files have them in their names.
    """
    groups: list[tuple[SegmentRange, ...]] = []
    group: tuple[SegmentRange, ...] = ()
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        size_bytes = sum(member.size_bytes for member in group) + segment.size_bytes
        if group and (
            segment.base_offset in heads
            or len(group) == MAX_GROUP_SEGMENTS
            or size_bytes > segment_bytes
            or segment.end_offset - 1 - group[0].base_offset > MAX_RELATIVE_OFFSET
        ):
            groups.append(group)
            group = ()
        group = (*group, segment)
    if group:
        groups.append(group)
    return groups
