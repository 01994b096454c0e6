"""Whole runs: seeds that must pass, runs that must be equal, broken code that must be noticed."""

import pytest

from pipeline.broker.replication.in_sync_replicas import LeaderState
from pipeline.testing.simulation.variants import VARIANTS
from tests.support.simulated_runs import assert_noticed, assert_pass, assert_repeats

SEEDS = 12
LAST_SEED = 600
"""The last one of the long run."""
LAST_SEED_TO_NOTICE = 200
SELDOM_NOTICED = frozenset(
    {
        "a stale timer removes a living group",
        "adds partitions during a move",
        "answers its end too early",
        "deletes what is not committed",
        "does not look for lost states",
        "counts fetches of a former life",
        "epoch not checked",
        "ignores failed syncs",
        "ignores older states",
        "leads on without a claim",
        "leads on without its tail",
        "removes a log that an ISR counts on",
        "retention takes too much",
        "takes a replica that was never here for a lost one",
        "takes the log of a deleted topic for its successor's",
        "truncates to the high watermark",
        "uses spent leader epochs again",
    }
)
"""Broken rules that few seeds notice, as what a seed meets changes with the code. `make test-long` tries them."""


@pytest.mark.timeout(900)
def test_seeds_pass() -> None:
    assert_pass("cluster", 1, SEEDS)


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_many_seeds_pass() -> None:
    assert_pass("cluster", SEEDS + 1, LAST_SEED)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(5, marks=pytest.mark.long, id="administrator"),
        pytest.param(6, id="cleaner"),
        pytest.param(8, id="zookeeper goes back"),
    ],
)
def test_a_seed_repeats_a_run_exactly(seed: int) -> None:
    assert_repeats("cluster", seed)


def test_variants_replace_what_is_there_and_leave_it_as_it_was() -> None:
    kept = LeaderState.counts
    for variant in VARIANTS.values():
        with variant.breaks():
            pass
    assert LeaderState.counts is kept


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in SELDOM_NOTICED else name for name in VARIANTS],
)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert_noticed(VARIANTS[name], LAST_SEED_TO_NOTICE)
