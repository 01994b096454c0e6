"""Decides how many of the first segments of a log have expired, as Kafka does. Pure.

Invariants:

- Nothing at or behind the high watermark is expired, whatever the settings say.
- What lies wholly before the log start offset is expired under every policy; age and size count only where the topic's
  records may be deleted (`cleanup.policy` contains `delete`).
- A segment is as old as its newest record. It goes for size only if the rest still reaches `retention_bytes`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.log.config import LogConfig
from pipeline.log.segment import Segment
from pipeline.model import Offset


class SegmentFacts(NamedTuple):
    """The facts of one segment. `end_offset`: base offset of the next segment, or the log end offset."""

    end_offset: int
    size_bytes: int
    newest_ms: int


def facts_of(segments: Sequence[Segment], log_end_offset: Offset) -> list[SegmentFacts]:
    """Return the facts of segments in order. A segment without timestamps is as old as its creation or load."""
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    return [
        SegmentFacts(
            end, segment.size_bytes, segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
        )
        for segment, end in zip(segments, ends, strict=True)
    ]


def count_expired(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    log_start_offset: Offset,
    high_watermark: Offset,
    now_ms: int,
) -> int:
    """Return how many of the first segments have expired. If all have, the caller closes the last one first."""
    retention_ms, retention_bytes = config.retention_ms, config.retention_bytes
    excess_bytes = 0
    if retention_bytes is not None:
        excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    for number, segment in enumerate(segments):
        is_last = number + 1 == len(segments)
        if segment.end_offset > high_watermark or (is_last and segment.size_bytes == 0):
            return number
        is_before_start = not is_last and segment.end_offset <= log_start_offset
        is_old = retention_ms is not None and now_ms - segment.newest_ms > retention_ms
        is_excess = retention_bytes is not None and excess_bytes >= segment.size_bytes
        if not (is_before_start or (config.deletes and (is_old or is_excess))):
            return number
        excess_bytes -= segment.size_bytes
    return len(segments)
