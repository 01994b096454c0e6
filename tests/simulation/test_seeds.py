"""Whole runs: seeds that must pass, runs that must be equal, broken code that must be noticed."""

import pytest

from pipeline.broker.replication.in_sync_replicas import LeaderState
from pipeline.testing.simulation.variants import VARIANTS
from tests.support.simulated_runs import assert_noticed, assert_pass, assert_repeats
from tests.support.sizes import size

SEEDS = 3
LAST_SEED = size(120, 600)
"""The last one of the long run."""
LAST_SEED_TO_NOTICE = 200
SOON_NOTICED = frozenset(
    {
        "elects a replica that is not in sync",
        "forgets its producers",
        "shows what is not flushed",
        "takes a missing znode for a deletion",
    }
)
"""Broken rules that the first seeds notice, in seconds. `make test-long` breaks all."""


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
        pytest.param(6, marks=pytest.mark.long, id="cleaner"),
        pytest.param(8, marks=pytest.mark.long, id="zookeeper goes back"),
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
    [name if name in SOON_NOTICED else pytest.param(name, marks=pytest.mark.long) for name in VARIANTS],
)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert_noticed(VARIANTS[name], LAST_SEED_TO_NOTICE)
