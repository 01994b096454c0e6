"""Lag of each flow over time, in bounded memory. Pure: times are passed in.

Invariants:
A. A step in which a lag was unknown, or in which no sample was taken, has no lag: NaN here, null in documents, a break
   in a line. It is never 0, and never taken from its neighbours.
B. A step has the largest lag of its samples.
C. A flow has `POINTS` steps for each period, of single-precision numbers: 20 KB. Flows that no longer exist have none.
"""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isnan, nan
from typing import Any

from pipeline.mirror.totals import FlowTotals

POINTS = 360
MAX_SHOWN_FLOWS = 50
"""Number of flows in a document: 360 points take some 10 KB."""


class Period(Enum):
    """Periods that are kept. The value is the length of a step in seconds."""

    HOUR = 10
    DAY = 240

    @classmethod
    def parse(cls, name: str) -> "Period | None":
        """Return the period of a name, `hour` or `day`; None if there is none."""
        return next((period for period in cls if period.name.lower() == name), None)


MEASURES = ("offsets", "bytes", "seconds", "least_offsets", "least_bytes", "least_seconds", "bytes_per_second")
"""Values of a step. The `least` ones are of the partitions whose lag is known."""


@dataclass(slots=True)
class _Steps:
    """The latest steps of one flow and period, in a ring: step number n is at n % POINTS. NaN stands for unknown."""

    last: int | None = None
    """Number of the latest step: time divided by the period's length of a step."""
    values: "dict[str, array[float]]" = field(
        default_factory=lambda: {measure: array("f", [nan]) * POINTS for measure in MEASURES}
    )

    def note(self, step: int, sample: Mapping[str, float]) -> None:
        if self.last is not None and step > self.last:
            for skipped in range(max(self.last + 1, step - POINTS + 1), step):
                for values in self.values.values():
                    values[skipped % POINTS] = nan  # invariant A
        is_new = step != self.last
        for measure, values in self.values.items():
            before, value = values[step % POINTS], sample[measure]
            # A comparison with NaN is false: what is unknown once stays so in this step.
            values[step % POINTS] = value if is_new or isnan(value) or value > before else before
        self.last = step

    def read(self, measure: str, step: int) -> list[float | None]:
        """Return the values of the last `POINTS` steps up to `step`."""
        values, last = self.values[measure], self.last
        if last is None:
            return [None] * POINTS
        return [
            None if not last - POINTS < number <= last or isnan(values[number % POINTS]) else values[number % POINTS]
            for number in range(step - POINTS + 1, step + 1)
        ]


class LagHistory:
    """Samples of all flows. Times are those of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._flows: dict[str, dict[Period, _Steps]] = {}

    def note(self, now: float, totals: Mapping[str, FlowTotals]) -> None:
        """Take a sample of the totals of all present flows, by name."""
        self._flows = {name: self._flows.get(name) or {period: _Steps() for period in Period} for name in totals}
        for name, flow in totals.items():
            lag, least = flow.lag(), flow.least_lag()
            lags = (lag.offsets, lag.bytes, lag.seconds, least.offsets, least.bytes, least.seconds)
            values = [nan if value is None else float(value) for value in lags]
            sample = dict(zip(MEASURES, [*values, flow.bytes_per_s], strict=True))
            for period, steps in self._flows[name].items():
                steps.note(int(now // period.value), sample)

    def document(self, now: float, now_ms: int, period: Period, names: Iterable[str] = ()) -> dict[str, Any]:
        """Return the document of `/v1/lag`, of the named flows or else all: `MAX_SHOWN_FLOWS` at most.

        A step that has just begun is left out until its first sample.
        """
        step = int(now // period.value)
        latest = max((flow[period].last or 0 for flow in self._flows.values()), default=0)
        if latest == step - 1:
            step = latest
        wanted = list(dict.fromkeys(names)) or list(self._flows)
        shown = [name for name in wanted if name in self._flows][:MAX_SHOWN_FLOWS]
        return {
            "period": period.name.lower(),
            "step_seconds": period.value,
            "end_ms": now_ms - int((now - step * period.value) * 1000),
            "flow_count": len(self._flows),
            "flows": [
                {"name": name}
                | {measure: _rounded(self._flows[name][period].read(measure, step)) for measure in MEASURES}
                for name in shown
            ],
        }


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 1) for value in values]
