"""Compaction decided: which log is cleaned next, how far, and which of its segments become one. Pure.

Invariants (Kafka's design chapter, *Log compaction*; KIP-58 for the least lag, KIP-354 for the largest):

- The active segment is never cleaned, nor one with anything at or behind the end of what consumers see, nor one with
  a record younger than `min.compaction.lag.ms`.
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
    """What a topic says of its compaction."""

    min_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable:
    """What of a log can be cleaned: `segments`, whose records from `first_dirty_offset` on never were.

    A segment with that offset in the middle counts on both sides, as in Kafka: so it does not stay as it is for ever.
    """

    first_dirty_offset: int
    segments: tuple[SegmentRange, ...]
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes of all that can be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty_offset(checkpoint: int | None, *, log_start_offset: int, log_end_offset: int) -> int:
    """Where the part begins that was never cleaned. A checkpoint outside of the log is another log's: start again."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def find_cleanable(
    closed: Sequence[SegmentAge], settings: CompactionSettings, *, first_dirty: int, visible_end: int, now_ms: int
) -> Cleanable:
    """What can be cleaned of a log with these closed segments. `visible_end`: the end of what consumers see."""
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
    """Whether it is time to clean it."""
    return found.is_overdue or (found.dirty_bytes > 0 and found.dirty_ratio > settings.min_dirty_ratio)


def choose(
    logs: Mapping[TopicPartition, tuple[Cleanable, CompactionSettings]], failed: Set[TopicPartition] = frozenset()
) -> TopicPartition | None:
    """The log to clean next: of those that are due the dirtiest, None if none is due.

    `failed`: those that failed since one was last cleaned; any other goes before them.
    """
    due = [name for name, (found, settings) in logs.items() if is_due(found, settings)]
    return max(due, key=lambda name: (name not in failed, logs[name][0].dirty_ratio, name), default=None)


def group_segments(
    segments: Sequence[SegmentRange], *, end_offset: int, segment_bytes: int, heads: Set[int] = frozenset()
) -> list[tuple[SegmentRange, ...]]:
    """The segments that begin before `end_offset`, in groups of which each becomes one segment.

    `heads`: base offsets that must stay those of segments, since further files bear them.
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
