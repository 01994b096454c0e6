"""Which log is cleaned next, how far, and which of its segments become one."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.log.compaction.plan import (
    Cleanable,
    CompactionSettings,
    SegmentAge,
    SegmentRange,
    choose,
    find_cleanable,
    first_dirty_offset,
    group_segments,
    is_due,
)
from pipeline.log.config import MAX_RELATIVE_OFFSET
from pipeline.model import TopicPartition

NOW_MS = 1_000_000
NEVER = 2**63 - 1
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def closed(*newest_ms: int, size: int = 100) -> list[SegmentAge]:
    """Segments of ten offsets each."""
    return [
        SegmentAge(range=SegmentRange(10 * n, 10 * n + 10, size), first_ms=time - 5, newest_ms=time)
        for n, time in enumerate(newest_ms)
    ]


def rules(ratio: float = 0.5, min_lag_ms: int = 0, max_lag_ms: int = NEVER) -> CompactionSettings:
    return CompactionSettings(min_dirty_ratio=ratio, min_lag_ms=min_lag_ms, max_lag_ms=max_lag_ms)


def find(
    segments: list[SegmentAge], settings: CompactionSettings | None = None, *, dirty: int = 0, end: int = 1000
) -> Cleanable:
    return find_cleanable(segments, settings or rules(), first_dirty=dirty, visible_end=end, now_ms=NOW_MS)


@pytest.mark.parametrize(("checkpoint", "expected"), [(None, 5), (4, 5), (5, 5), (7, 7), (20, 20), (21, 5)])
def test_a_checkpoint_outside_of_the_log_starts_again(checkpoint: int | None, expected: int) -> None:
    assert first_dirty_offset(checkpoint, log_start_offset=5, log_end_offset=20) == expected


def test_all_closed_segments_are_cleaned_when_no_lag_is_set() -> None:
    found = find(closed(NOW_MS, NOW_MS), dirty=10)
    assert [segment.base_offset for segment in found.segments] == [0, 10]
    assert (found.clean_bytes, found.dirty_bytes, found.dirty_ratio) == (100, 100, 0.5)


def test_segments_past_the_high_watermark_are_not_cleaned() -> None:
    assert [segment.base_offset for segment in find(closed(1, 1, 1), end=20).segments] == [0, 10]
    assert [segment.base_offset for segment in find(closed(1, 1, 1), end=19).segments] == [0]


def test_records_younger_than_min_compaction_lag_are_left() -> None:
    segments = closed(NOW_MS - 200, NOW_MS - 100, NOW_MS - 99, NOW_MS - 500)
    assert [segment.base_offset for segment in find(segments, rules(min_lag_ms=100)).segments] == [0, 10]


def test_the_compaction_lag_applies_to_dirty_segments_alone() -> None:
    assert len(find(closed(NOW_MS, 1, 1), rules(min_lag_ms=100), dirty=10).segments) == 3


def test_a_log_is_due_above_its_dirty_ratio() -> None:
    assert not is_due(find(closed(1, 1), dirty=10), rules(0.5))
    assert is_due(find(closed(1, 1, 1), dirty=10), rules(0.5))
    assert is_due(find(closed(1, 1)), rules(0.99))
    assert not is_due(find(closed(1, 1), dirty=20), rules(0.0))
    assert not is_due(find([]), rules(0.0))


def test_a_log_is_due_when_max_compaction_lag_is_over_however_little_is_dirty() -> None:
    segments = closed(1, 1, 1, 1, NOW_MS - 100)
    for lag_ms, expected in ((105, False), (104, True)):
        settings = rules(max_lag_ms=lag_ms)
        assert is_due(find(segments, settings, dirty=40), settings) is expected


def test_a_segment_that_is_clean_in_part_is_cleaned_again() -> None:
    found = find(closed(1, 1), dirty=15)
    assert (found.clean_bytes, found.dirty_bytes) == (200, 100)
    assert is_due(found, rules(0.3))


def test_max_compaction_lag_cannot_clean_what_is_not_to_be_seen() -> None:
    settings = rules(ratio=1.0, max_lag_ms=1)
    assert not is_due(find(closed(1, 5), settings, dirty=10, end=15), settings)


def test_the_dirtiest_log_is_next() -> None:
    some, all_ = find(closed(1, 1, 1), dirty=10), find(closed(1, 1, 1))
    assert choose({A: (some, rules()), B: (all_, rules())}) == B
    assert choose({A: (some, rules()), B: (all_, rules(1.0))}) == A
    assert choose({}) is None


def test_logs_whose_cleaning_failed_come_after_the_others() -> None:
    some, all_ = find(closed(1, 1, 1), dirty=10), find(closed(1, 1, 1))
    logs = {A: (some, rules()), B: (all_, rules())}
    assert choose(logs, {B}) == A
    assert choose(logs, {A, B}) == B
    assert choose({B: logs[B]}, {B}) == B
    assert choose({A: (some, rules(1.0)), B: logs[B]}, {B}) == B


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20), st.integers(50, 150), st.integers(0, 210))
def test_groups_are_a_row_of_all_segments_within_bounds(sizes: list[int], segment_bytes: int, end: int) -> None:
    segments = [SegmentRange(10 * n, 10 * n + 10, size) for n, size in enumerate(sizes)]
    groups = group_segments(segments, end_offset=end, segment_bytes=segment_bytes)
    assert [segment for group in groups for segment in group] == [s for s in segments if s.base_offset < end]
    for group in groups:
        assert len(group) == 1 or sum(segment.size_bytes for segment in group) <= segment_bytes
    for first, second in pairwise(groups):
        assert sum(segment.size_bytes for segment in (*first, second[0])) > segment_bytes


def test_a_group_has_no_more_segments_than_may_be_open() -> None:
    segments = [SegmentRange(10 * n, 10 * n + 10, 1) for n in range(1000)]
    groups = group_segments(segments, end_offset=10_000, segment_bytes=1 << 20)
    assert [segment for group in groups for segment in group] == segments
    assert max(map(len, groups)) <= 100


def test_a_group_stays_within_reach_of_its_index() -> None:
    wide = MAX_RELATIVE_OFFSET
    segments = [SegmentRange(0, 10, 1), SegmentRange(10, wide + 1, 1), SegmentRange(wide + 1, wide + 2, 1)]
    groups = group_segments(segments, end_offset=wide + 2, segment_bytes=100)
    assert [len(group) for group in groups] == [2, 1]
