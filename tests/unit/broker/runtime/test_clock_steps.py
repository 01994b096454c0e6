"""Steps of the wall clock."""

from pipeline.broker.runtime.clock_steps import MAX_STEP_MS, ClockSteps
from tests.support.broker_in_process import NOW_MS

YEAR_MS = 365 * 24 * 3600 * 1000


def test_a_clock_that_runs_on_or_was_set_back_did_not_go_forward() -> None:
    steps = ClockSteps(NOW_MS, 100.0)
    assert not steps.went_forward(NOW_MS + 300_000, 400.0)
    assert not steps.went_forward(NOW_MS + 600_000 + MAX_STEP_MS, 700.0)
    assert not steps.went_forward(NOW_MS - YEAR_MS, 1000.0)
    assert steps.went_forward(NOW_MS - YEAR_MS + MAX_STEP_MS + 1, 1000.0)
    assert not steps.went_forward(NOW_MS - YEAR_MS + MAX_STEP_MS + 1, 1000.0)
