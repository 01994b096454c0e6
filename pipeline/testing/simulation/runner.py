"""Runs a seed in a process of its own or not, and says what came of it as a value that can be sent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.testing.simulation.mirrors.plan import SitePlan, audited_plan_for, site_plan_for
from pipeline.testing.simulation.mirrors.scenario import simulate_site
from pipeline.testing.simulation.plan import Result, RunPlan
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
    """Simulate the cluster of a seed."""
    return run_plan(plan_for(seed))


def run_site_seed(seed: int) -> Verdict:
    """Simulate the site of a seed."""
    return run_plan(site_plan_for(seed))


def run_audited_seed(seed: int) -> Verdict:
    """Simulate the site of a seed with the audit beside it."""
    return run_plan(audited_plan_for(seed))


SCENARIOS: Mapping[str, Callable[[int], Verdict]] = {
    "cluster": run_seed,
    "mirror": run_site_seed,
    "audit": run_audited_seed,
}


def run_plan(plan: RunPlan | SitePlan) -> Verdict:
    """Simulate."""
    result: Result = simulate_site(plan) if isinstance(plan, SitePlan) else simulate(plan)
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
