"""Linear models of measured costs: fitted to small runs, checked at a run that they have not seen, then extrapolated.

Errors count relative to the measured values, so that small runs matter as much as large ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.report import Row, Target

Size = Mapping[str, float]
"""Amount of each thing that costs something. A constant part is an amount of 1."""

MAX_ERROR_PERCENT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run: its name, its size, and the cost."""

    name: str
    size: Size
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Cost of one unit of each amount."""

    coefficients: Mapping[str, float]

    def predict(self, size: Size) -> float:
        """Return the cost of a size."""
        return sum(cost * size[name] for name, cost in self.coefficients.items())

    def error_percent(self, run: MeasuredRun) -> float:
        """Return by how much the prediction differs from the run, in percent of the run."""
        return 100 * abs(self.predict(run.size) - run.value) / run.value


def fit(runs: Sequence[MeasuredRun], terms: Sequence[str]) -> Fitted:
    """Return the costs that fit best. A cost that would be negative is 0. Raises ValueError for too few runs."""
    if len(runs) < len(terms):
        raise ValueError(f"{len(terms)} costs cannot be told from {len(runs)} runs")
    values = np.array([run.value for run in runs])
    left = list(terms)
    while left:
        amounts = np.array([[run.size[name] for name in left] for run in runs])
        costs = np.linalg.lstsq(amounts / values[:, None], np.ones(len(runs)), rcond=None)[0]
        lowest = int(costs.argmin())
        if costs[lowest] >= 0:
            return Fitted(coefficients=dict.fromkeys(terms, 0.0) | dict(zip(left, costs.tolist(), strict=True)))
        left.pop(lowest)
    raise ValueError("no cost is positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """One cost: the runs to fit, the run that checks the fit, and the size to predict. `factor`: of shown units."""

    name: str
    unit: str
    terms: Sequence[str]
    runs: Sequence[MeasuredRun]
    check: MeasuredRun
    predicted: tuple[str, Size]
    max_error_percent: float | None = MAX_ERROR_PERCENT

    def rows(self) -> list[Row]:
        """Return a row for each run beside the model, for its error at the check, and for the prediction."""
        model = fit(self.runs, self.terms)
        rows = [
            Row(
                name=f"{self.name}, {run.name}{', not fitted' if run is self.check else ''}",
                unit=self.unit,
                ours=run.value,
                peer="model",
                theirs=model.predict(run.size),
            )
            for run in (*self.runs, self.check)
        ]
        bound = self.max_error_percent
        target = None if bound is None else Target(bound=bound, at_least=False, absolute=True)
        error = model.error_percent(self.check)
        rows.append(
            Row(name=f"{self.name}: error of the model at {self.check.name}", unit="%", ours=error, target=target)
        )
        name, size = self.predicted
        return [*rows, Row(name=f"{self.name}, {name}: predicted", unit=self.unit, ours=model.predict(size))]
