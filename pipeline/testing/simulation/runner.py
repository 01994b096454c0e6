"""Runs a seed in a process of its own or not, and says what came of it as a value that can be sent."""

from dataclasses import dataclass

from pipeline.testing.simulation.plan import RunPlan
from pipeline.testing.simulation.plans import plan_for
from pipeline.testing.simulation.scenario import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a seed. The trace is kept if the seed failed, or if it was asked for."""

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
        """True if nothing is wrong."""
        return not self.problems


def run_seed(seed: int) -> Verdict:
    """Simulate one seed."""
    return run_plan(plan_for(seed))


def run_plan(plan: RunPlan) -> Verdict:
    """Simulate."""
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
