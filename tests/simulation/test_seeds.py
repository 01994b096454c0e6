"""Whole runs: seeds that must pass, runs that must be equal, broken code that must be noticed."""

import os
import subprocess
import sys

import pytest

from pipeline.broker.replication.in_sync_replicas import LeaderState
from pipeline.testing.simulation.runner import run_plan
from pipeline.testing.simulation.variants import VARIANTS

SEEDS = 12
LAST_SEED = 600
"""The last one of the long run."""
LAST_SEED_TO_NOTICE = 200
SELDOM_NOTICED = frozenset(
    {
        "a stale timer removes a living group",
        "adds partitions during a move",
        "answers its end too early",
        "counts fetches of a former life",
        "epoch not checked",
        "ignores failed syncs",
        "ignores older states",
        "leads on without a claim",
        "leads on without its tail",
        "retention takes too much",
        "takes a replica that was never here for a lost one",
        "truncates to the high watermark",
    }
)
"""Broken rules that few seeds notice, as what a seed meets changes with the code. `make test-long` tries them."""


def assert_pass(first: int, last: int) -> None:
    count = last - first + 1
    command = [sys.executable, "-m", "pipeline.testing.simulation", "--seeds", str(count), "--first-seed", str(first)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines()[-1:] == [f"{count} passed, 0 failed"], ended.stdout[-20_000:] + ended.stderr
    assert ended.returncode == 0


@pytest.mark.timeout(900)
def test_seeds_pass() -> None:
    assert_pass(1, SEEDS)


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_many_seeds_pass() -> None:
    assert_pass(SEEDS + 1, LAST_SEED)


@pytest.mark.parametrize("seed", [5, 6, 8], ids=["administrator", "cleaner", "zookeeper goes back"])
def test_a_seed_repeats_a_run_exactly(seed: int) -> None:
    program = (
        "from pipeline.testing.simulation.runner import run_seed\n"
        f"verdict = run_seed({seed})\n"
        "print(verdict.digest, len(verdict.trace))"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert digests[0] == digests[1] != ""


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
    variant = VARIANTS[name]
    for seed in variant.seeds(LAST_SEED_TO_NOTICE):
        if not run_plan(variant.plan(seed)).has_passed:
            return
    pytest.fail(f"not noticed: {variant.rule}")
