"""The history of lags: unknown lags stay unknown, and memory is bounded."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipeline.mirror.copying.copies import CopyState
from pipeline.mirror.copying.progress import UNKNOWN_LAG, Lag
from pipeline.mirror.page.lag_history import MAX_SHOWN_FLOWS, POINTS, LagHistory, Period
from pipeline.mirror.totals import FlowTotals
from pipeline.model import TopicPartition

BEGIN_S = 1_000_000.0


def totals(*lags: Lag) -> FlowTotals:
    flow = FlowTotals()
    for number, lag in enumerate(lags):
        flow.add(TopicPartition("clicks", number), CopyState.COPYING, lag, (10.0, 1.0), None)
    return flow


def lag(seconds: float) -> Lag:
    return Lag(offsets=int(seconds * 10), bytes=int(seconds * 1000), seconds=seconds)


def steps(history: LagHistory, now: float, period: Period = Period.HOUR, name: str = "pages") -> dict[str, Any]:
    (found,) = history.document(now, int(now * 1000), period, [name])["flows"]
    return dict(found)


def test_an_unknown_lag_is_a_break_and_never_0() -> None:
    history = LagHistory()
    for step, sample in enumerate([lag(1), UNKNOWN_LAG, lag(0), lag(3)]):
        history.note(BEGIN_S + 10 * step, {"pages": totals(sample)})
    found = steps(history, BEGIN_S + 30)
    assert found["seconds"][-5:] == [None, 1.0, None, 0.0, 3.0]
    assert found["offsets"][-5:] == [None, 10, None, 0, 30]
    assert found["bytes"][-5:] == [None, 1000, None, 0, 3000]
    assert found["least_seconds"][-5:] == [None, 1.0, None, 0.0, 3.0]
    assert found["bytes_per_second"][-5:] == [None, 10.0, 10.0, 10.0, 10.0]


def test_one_unknown_partition_makes_the_lag_of_the_flow_unknown_but_not_the_least() -> None:
    history = LagHistory()
    history.note(BEGIN_S, {"pages": totals(lag(2), UNKNOWN_LAG, lag(5))})
    found = steps(history, BEGIN_S)
    assert (found["seconds"][-1], found["offsets"][-1]) == (None, None)
    assert (found["least_seconds"][-1], found["least_offsets"][-1]) == (5.0, 70)


def test_a_flow_without_partitions_has_no_lag() -> None:
    assert totals().lag() == totals().least_lag() == UNKNOWN_LAG


def test_a_step_has_the_largest_of_its_samples_and_is_unknown_if_one_is() -> None:
    history = LagHistory()
    for second, sample in enumerate([lag(1), lag(7), lag(2)]):
        history.note(
            BEGIN_S + second, {"pages": totals(sample), "others": totals(UNKNOWN_LAG if second == 1 else sample)}
        )
    assert steps(history, BEGIN_S)["seconds"][-1] == 7.0
    assert steps(history, BEGIN_S, name="others")["seconds"][-1] is None


def test_time_in_which_no_sample_was_taken_is_a_break() -> None:
    history = LagHistory()
    history.note(BEGIN_S, {"pages": totals(lag(1))})
    history.note(BEGIN_S + 40, {"pages": totals(lag(2))})
    assert steps(history, BEGIN_S + 40)["seconds"][-6:] == [None, 1.0, None, None, None, 2.0]
    assert steps(history, BEGIN_S + 60)["seconds"][-3:] == [2.0, None, None]
    history.note(BEGIN_S + 10 * POINTS * 3, {"pages": totals(lag(3))})
    assert steps(history, BEGIN_S + 10 * POINTS * 3)["seconds"] == [None] * (POINTS - 1) + [3.0]


@given(st.lists(st.tuples(st.integers(1, 400), st.one_of(st.none(), st.integers(0, 1000))), max_size=30))
def test_the_ring_holds_what_a_list_would_hold(samples: list[tuple[int, int | None]]) -> None:
    history, step = LagHistory(), 0
    expected: dict[int, float | None] = {0: 0.0}
    history.note(BEGIN_S, {"pages": totals(lag(0))})
    for later, seconds in samples:
        step += later
        history.note(BEGIN_S + 10 * step, {"pages": totals(UNKNOWN_LAG if seconds is None else lag(seconds))})
        expected[step] = seconds
    shown = [expected.get(number) for number in range(step - POINTS + 1, step + 1)]
    assert steps(history, BEGIN_S + 10 * step)["seconds"] == shown


def test_a_step_that_has_just_begun_is_no_break_before_its_first_sample() -> None:
    history = LagHistory()
    history.note(BEGIN_S, {"pages": totals(lag(1))})
    assert steps(history, BEGIN_S + 19.9)["seconds"][-1] == 1.0
    assert history.document(BEGIN_S + 15, 1_000_000, Period.HOUR)["end_ms"] == 1_000_000 - 15_000
    history.note(BEGIN_S + 15, {"pages": totals(UNKNOWN_LAG)})
    assert steps(history, BEGIN_S + 19.9)["seconds"][-2:] == [1.0, None]
    assert steps(history, BEGIN_S + 39.9)["seconds"][-3:] == [None, None, None]


def test_a_document_is_bounded_and_flows_that_are_gone_are_forgotten() -> None:
    history = LagHistory()
    history.note(BEGIN_S, {str(number): totals(lag(1)) for number in range(200)})
    document = history.document(BEGIN_S, 0, Period.DAY)
    assert (len(document["flows"]), document["flow_count"]) == (MAX_SHOWN_FLOWS, 200)
    asked = history.document(BEGIN_S, 0, Period.DAY, ["199", "nowhere", "7"])
    assert [flow["name"] for flow in asked["flows"]] == ["199", "7"]
    history.note(BEGIN_S + 1, {"7": totals(lag(1))})
    assert history.document(BEGIN_S + 1, 0, Period.HOUR)["flow_count"] == 1
