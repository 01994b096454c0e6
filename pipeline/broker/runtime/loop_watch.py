"""The watchdog of the event loop: measures how late tasks run because something else held the loop.

A task wakes up each INTERVAL_S and compares the time with its due time. Code that holds the loop for a time T makes a
wake-up late by T less the rest of the interval; so does a thread that holds the interpreter, or a machine without a
free core. Time is trio's: in simulated time the loop is never late.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.diagnostics import get_logger

INTERVAL_S = 0.25  # four wake-ups a second take 0.1 % of a processor
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10)
"""Upper bounds of the buckets of delays, except the last one, which has none."""
WARNED_DELAY_S = 0.5
WARNING_INTERVAL_S = 10.0
MAX_KEPT_S = 60.0
"""The reported maximum covers the last one to two of these spans."""

logger = get_logger(__name__)


@dataclass(slots=True)
class LoopDelays:
    """The measured delays. Pure; `now_s` never goes back."""

    total_s: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    _span: int = 0
    _max_s: float = 0.0
    _max_before_s: float = 0.0
    _warned_s: float = float("-inf")

    def note(self, delay_s: float, now_s: float) -> bool:
        """Count a delay. True if the caller should log a warning."""
        self.total_s += delay_s
        self.buckets[bisect_left(BOUNDS_S, delay_s)] += 1
        self._turn_to(now_s)
        self._max_s = max(self._max_s, delay_s)
        if delay_s < WARNED_DELAY_S or now_s - self._warned_s < WARNING_INTERVAL_S:
            return False
        self._warned_s = now_s
        return True

    def max_s(self, now_s: float) -> float:
        """Return the largest delay of the last one to two minutes."""
        self._turn_to(now_s)
        return max(self._max_s, self._max_before_s)

    def _turn_to(self, now_s: float) -> None:
        span = int(now_s // MAX_KEPT_S)
        if span != self._span:
            self._max_before_s = self._max_s if span == self._span + 1 else 0.0
            self._max_s, self._span = 0.0, span


class _DelayCollector(Collector):
    def __init__(self, delays: LoopDelays) -> None:
        self._delays = delays

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: registration needs no names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the delays."""
        histogram = HistogramMetricFamily(
            "pipeline_event_loop_delay_seconds", "Seconds by which a task that was due ran late."
        )
        bounds = (*map(str, BOUNDS_S), "+Inf")
        histogram.add_metric((), list(zip(bounds, accumulate(self._delays.buckets), strict=True)), self._delays.total_s)
        yield histogram
        yield GaugeMetricFamily(
            "pipeline_event_loop_delay_max_seconds",
            "Seconds of the largest delay in the last minute or two.",
            value=self._delays.max_s(trio.current_time()),
        )


async def watch_loop(metrics: CollectorRegistry) -> None:
    """Measure the delays of the event loop until cancelled, publish them as metrics, warn of long ones in the log."""
    delays = LoopDelays()
    collector = _DelayCollector(delays)
    metrics.register(collector)
    try:
        while True:
            due_s = trio.current_time() + INTERVAL_S
            await trio.sleep_until(due_s)
            now_s = trio.current_time()
            if delays.note(now_s - due_s, now_s):
                logger.warning("event_loop_late", delay_s=round(now_s - due_s, 3), bound_s=WARNED_DELAY_S)
    finally:
        metrics.unregister(collector)
