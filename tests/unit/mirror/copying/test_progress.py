"""How far a copy is behind, in offsets, bytes and seconds, from what a mirror saw."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.mirror.copying.progress import MAX_SAMPLES, UNKNOWN_LAG, CopyProgress, Lag

BOUND_S = 5.0
WALL_MS = 1_700_000_000_000


def lag_of(progress: CopyProgress, now: float, *, is_certain: bool = True) -> Lag:
    return progress.lag(now=now, now_ms=WALL_MS, bound_s=BOUND_S, is_certain=is_certain)


def copied(progress: CopyProgress, position: int, now: float, *, size: int = 100, timestamp_ms: int = WALL_MS) -> None:
    offsets = position - (progress.position or 0)
    progress.note_copied(position, size=size, offsets=offsets, timestamp_ms=timestamp_ms, now=now)


def caught_up(position: int, now: float) -> CopyProgress:
    progress = CopyProgress()
    progress.note_position(position)
    progress.note_answer(position, now)
    return progress


def test_nothing_is_known_before_position_and_answer() -> None:
    progress = CopyProgress()
    assert lag_of(progress, 0) == UNKNOWN_LAG
    progress.note_answer(10, 0)
    assert lag_of(progress, 0) == UNKNOWN_LAG
    progress.note_position(10)
    assert lag_of(progress, 0) == Lag(offsets=0, bytes=0, seconds=0.0)


def test_an_old_answer_says_nothing() -> None:
    progress = caught_up(10, now=100)
    assert lag_of(progress, 105).offsets == 0
    assert lag_of(progress, 105.1) == UNKNOWN_LAG
    progress.note_answer(12, 200)
    assert lag_of(progress, 200).offsets == 2


def test_an_uncertain_position_is_never_caught_up() -> None:
    progress = caught_up(10, now=100)
    assert lag_of(progress, 101, is_certain=False) == UNKNOWN_LAG
    progress.note_answer(11, 101)
    assert lag_of(progress, 101, is_certain=False).offsets == 1


def test_a_replica_ahead_of_its_source_has_no_lag() -> None:
    progress = caught_up(10, now=100)
    progress.note_answer(3, 101)
    assert lag_of(progress, 101) == UNKNOWN_LAG


def test_seconds_begin_with_the_last_answer_without_the_oldest_missing_record() -> None:
    progress = caught_up(10, now=100)
    progress.note_answer(12, 103)
    progress.note_answer(12, 104)
    progress.note_answer(15, 105)
    assert lag_of(progress, 106).seconds == 6
    copied(progress, 12, 107)
    assert lag_of(progress, 107).seconds == 3
    copied(progress, 15, 108)
    assert lag_of(progress, 108).seconds == 0


def test_seconds_of_a_backlog_go_by_the_newest_copied_batch() -> None:
    progress = CopyProgress()
    progress.note_position(0)
    progress.note_answer(100, 10)
    assert lag_of(progress, 10) == Lag(offsets=100, bytes=None, seconds=None)
    copied(progress, 50, 11, size=500, timestamp_ms=WALL_MS - 90_000)
    assert lag_of(progress, 11) == Lag(offsets=50, bytes=500, seconds=90.0)
    copied(progress, 60, 11, timestamp_ms=WALL_MS + 90_000)
    assert lag_of(progress, 11).seconds is None


def test_records_that_the_replica_lost_are_missing_for_an_unknown_time() -> None:
    progress = caught_up(0, now=100)
    copied(progress, 10, 100)
    progress.note_answer(10, 100)
    progress.note_answer(11, 101)
    progress.note_position(4)
    assert (lag_of(progress, 102).offsets, lag_of(progress, 102).seconds) == (7, None)
    copied(progress, 10, 103)
    assert lag_of(progress, 103).seconds == 3


def test_rates_are_averages_of_the_last_ten_whole_seconds() -> None:
    progress = caught_up(0, now=100)
    for second in range(30):
        copied(progress, second + 1, 100 + second, size=50)
    assert progress.rates(130.5) == (50, 1)
    assert progress.rates(135) == (25, 0.5)
    assert progress.rates(200) == (0, 0)


answers = st.lists(
    st.tuples(st.integers(0, 20), st.booleans(), st.floats(0.125, 4, width=16)), min_size=1, max_size=3 * MAX_SAMPLES
)


@given(answers)
def test_no_wait_is_understated(steps: Any) -> None:
    """Each offset remembers the first answer that named it: the seconds are never fewer than since then."""
    progress, now, end, position = caught_up(0, now=0.0), 0.0, 0, 0
    named_at: list[float] = []
    for growth, is_copied, pause_s in steps:
        now += pause_s
        end += growth
        named_at += [now] * growth
        progress.note_answer(end, now)
        if is_copied:
            position = (position + end + 1) // 2
            copied(progress, position, now)
        lag = lag_of(progress, now)
        assert lag.offsets == end - position
        assert len(progress._samples) <= MAX_SAMPLES
        assert lag.seconds is not None
        assert lag.seconds >= (now - named_at[position] if position < end else 0)


def test_an_answer_that_a_later_one_overtook_tells_only_of_more_records() -> None:
    progress = caught_up(10, now=100)
    progress.note_answer(9, 97)
    assert progress.high_watermark == 10
    progress.note_answer(12, 98)
    assert (progress.high_watermark, progress.answered_at) == (12, 100)
    assert lag_of(progress, 105).offsets == 2
    assert lag_of(progress, 105.1) == UNKNOWN_LAG
