"""Sites with the audit beside them: seeds that must pass, runs that must be equal, broken counters and judges."""

import pytest

from pipeline.audit.counting.broker_counter import BrokerCounter
from pipeline.testing.simulation.audits.variants import VARIANTS
from tests.support.simulated_runs import assert_noticed, assert_pass, assert_repeats
from tests.support.sizes import size

SEEDS = 1
LAST_SEED = size(60, 240)
"""The last one of the long run."""
LAST_SEED_TO_NOTICE = 300


def test_seeds_pass() -> None:
    assert_pass("audit", 1, SEEDS)


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_many_seeds_pass() -> None:
    assert_pass("audit", SEEDS + 1, LAST_SEED)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, pytest.param(2, id="two sources and mirrors"), pytest.param(33, id="a group")])
def test_a_seed_repeats_a_run_exactly(seed: int) -> None:
    assert_repeats("audit", seed)


def test_variants_replace_what_is_there_and_leave_it_as_it_was() -> None:
    kept = BrokerCounter.appended
    for variant in VARIANTS.values():
        with variant.breaks():
            pass
    assert BrokerCounter.appended is kept


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert_noticed(VARIANTS[name], LAST_SEED_TO_NOTICE, passing=SEEDS)
