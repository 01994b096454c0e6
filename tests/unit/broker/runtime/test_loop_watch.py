"""The watchdog of the event loop: what a held loop looks like in the metrics and in the log."""

import time
from collections.abc import Callable

import pytest
import trio
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from pipeline.broker.runtime.loop_watch import (
    INTERVAL_S,
    MAX_KEPT_S,
    WARNED_DELAY_S,
    WARNING_INTERVAL_S,
    LoopDelays,
    watch_loop,
)
from tests.support.broker_in_process import TIMEOUT_S, Start

NAME = "pipeline_event_loop_delay"


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(TIMEOUT_S):
        while not is_so():
            await trio.sleep(0.01)


async def test_a_loop_that_was_held_is_seen_in_the_metrics_and_warned_of() -> None:
    metrics = CollectorRegistry()

    def late_ones() -> float:
        total = metrics.get_sample_value(f"{NAME}_seconds_count") or 0
        return total - (metrics.get_sample_value(f"{NAME}_seconds_bucket", {"le": "0.5"}) or 0)

    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_loop, metrics)
            await wait_all_tasks_blocked()
            time.sleep(WARNED_DELAY_S + INTERVAL_S + 0.05)  # noqa: ASYNC251 - the loop is held
            await until(lambda: late_ones() >= 1)  # the machine may hold it, too
            assert (metrics.get_sample_value(f"{NAME}_max_seconds") or 0) >= WARNED_DELAY_S
            nursery.cancel_scope.cancel()
    assert [entry["event"] for entry in logs] == ["event_loop_late"]
    assert metrics.get_sample_value(f"{NAME}_seconds_count") is None


async def test_on_simulated_time_the_loop_is_never_late(autojump_clock: MockClock) -> None:
    metrics = CollectorRegistry()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_loop, metrics)
        await trio.sleep(100 * INTERVAL_S)
        assert (metrics.get_sample_value(f"{NAME}_seconds_count") or 0) >= 90
        assert metrics.get_sample_value(f"{NAME}_max_seconds") == pytest.approx(0, abs=1e-6)
        nursery.cancel_scope.cancel()


def test_the_log_warns_of_long_delays_alone_and_not_of_each() -> None:
    delays = LoopDelays()
    assert not delays.note(WARNED_DELAY_S / 2, 1.0)
    assert delays.note(WARNED_DELAY_S, 2.0)
    assert not delays.note(WARNED_DELAY_S, 2.0 + WARNING_INTERVAL_S / 2)
    assert delays.note(WARNED_DELAY_S, 2.0 + WARNING_INTERVAL_S)


def test_the_largest_delay_is_forgotten_after_a_while() -> None:
    delays = LoopDelays()
    delays.note(3.0, MAX_KEPT_S)
    delays.note(1.0, 2 * MAX_KEPT_S)
    assert delays.max_s(2 * MAX_KEPT_S) == 3.0
    assert delays.max_s(3 * MAX_KEPT_S) == 1.0
    assert delays.max_s(9 * MAX_KEPT_S) == 0.0


async def test_a_broker_tells_how_late_its_loop_is(start: Start) -> None:
    async with start() as broker:
        await until(lambda: (broker.metrics.get_sample_value(f"{NAME}_seconds_count") or 0) > 0)
