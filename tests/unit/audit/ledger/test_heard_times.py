"""Times at which an audit topic was written: runs of life signs without a break."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.audit.ledger.heard_times import MAX_BREAK_MS, MAX_RUNS, HeardTimes

evens = st.integers(0, 200).map(lambda number: 2 * number)
signs_of_brokers = st.lists(st.tuples(evens, st.integers(0, 20).map(lambda number: 2 * number)), max_size=40)
"""Even times: so the odd ones show what lies between two signs."""


def heard(signs: Iterable[tuple[int, int]]) -> HeardTimes:
    """Return the times of signs, each with the time within which the next one is without a break."""
    times = HeardTimes()
    for sign_ms, within_ms in signs:
        times.add(sign_ms, sign_ms + within_ms)
    return times


@pytest.mark.parametrize(
    ("signs_ms", "from_ms", "expected"),
    [
        ([0, 10, 20, 30, 40], 5, 35),
        ([0, 10, 20, 30], 5, None),
        ([0, 10, 100, 110, 120, 130], 5, 130),
        ([100, 110, 120, 130], 5, 130),
        ([0, 10, 20, 30, 90], 31, None),
        ([], 5, None),
    ],
    ids=["no break", "not long enough yet", "after a break", "none at first", "one sign", "no sign"],
)
def test_a_silence_counts_only_while_others_are_heard(signs_ms: list[int], from_ms: int, expected: int | None) -> None:
    assert heard((sign_ms, 15) for sign_ms in signs_ms).heard_for(from_ms, 30) == expected


@given(signs_of_brokers, st.randoms(use_true_random=False), st.integers(0, 400), st.integers(1, 60))
def test_order_and_number_of_signs_do_not_matter(
    signs: list[tuple[int, int]], rng: Any, from_ms: int, length_ms: int
) -> None:
    shuffled = [*signs, *signs[:3]]
    rng.shuffle(shuffled)
    assert heard(signs).heard_for(from_ms, length_ms) == heard(shuffled).heard_for(from_ms, length_ms)


@given(signs_of_brokers, evens, st.integers(1, 60))
def test_a_time_without_a_break_is_one_in_which_each_sign_came_in_time(
    signs: list[tuple[int, int]], from_ms: int, length_ms: int
) -> None:
    """Compared with every moment in turn: in a run a moment is covered by a sign before it, and a sign follows."""

    def is_covered(moment_ms: int) -> bool:
        return any(sign_ms <= moment_ms <= sign_ms + within_ms for sign_ms, within_ms in signs)

    ends = (
        start_ms + length_ms
        for start_ms in range(from_ms, 460)
        if all(map(is_covered, range(start_ms, start_ms + length_ms + 1)))
        and any(start_ms + length_ms <= sign_ms and _are_covered(signs, start_ms, sign_ms) for sign_ms, _ in signs)
    )
    assert heard(signs).heard_for(from_ms, length_ms) == next(ends, None)


def _are_covered(signs: list[tuple[int, int]], from_ms: int, to_ms: int) -> bool:
    return all(any(at <= moment <= at + within for at, within in signs) for moment in range(from_ms, to_ms + 1))


def test_memory_is_bounded_and_no_sign_promises_more_than_a_minute_and_a_half() -> None:
    times = heard((number * 1_000_000, 1 << 60) for number in range(2 * MAX_RUNS))
    assert len(times._runs) == MAX_RUNS
    assert heard([(0, 1 << 60), (MAX_BREAK_MS + 1, 0)]).heard_for(0, MAX_BREAK_MS) is None
    assert heard([(0, 1 << 60), (MAX_BREAK_MS, 0)]).heard_for(0, MAX_BREAK_MS) == MAX_BREAK_MS
