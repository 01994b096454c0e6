"""Runs a seed in a process of its own or not, and says what came of it as a value that can be sent."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from pipeline.testing.simulation.scenario import Plan, simulate

MAX_CPU_S = 90.0
"""More than this is a run that goes round in circles without any time passing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a seed. The trace is kept for one that failed, or if it was asked for."""

    seed: int
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    digest: str
    acknowledged: int
    records_read: int
    commits: int
    faults: int

    @property
    def has_passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


class _EndlessError(Exception):
    """A run took too much of the processor."""


def run_seed(seed: int) -> Verdict:
    """Simulate one seed."""
    return run(Plan(seed=seed))


def run(plan: Plan) -> Verdict:
    """Simulate."""
    with _bounded():
        result = simulate(plan)
    return Verdict(
        seed=plan.seed,
        problems=tuple(result.problems),
        trace=tuple(result.trace.lines),
        digest=result.trace.digest(),
        acknowledged=len(result.history.acknowledged),
        records_read=result.history.records_read,
        commits=result.history.commits,
        faults=sum(result.faults.values()),
    )


@contextmanager
def _bounded() -> Generator[None]:
    """End a run that goes round in circles."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise _EndlessError(f"more than {MAX_CPU_S:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
