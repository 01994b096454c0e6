"""Whole runs: seeds that must pass, runs that must be equal, broken code that must be noticed."""

import os
import subprocess
import sys

import pytest

from pipeline.testing.simulation.runner import run
from pipeline.testing.simulation.variants import VARIANTS

SEEDS = 200
MAX_SEEDS_TO_NOTICE = 40


@pytest.mark.timeout(900)
def test_seeds_pass() -> None:
    command = [sys.executable, "-m", "pipeline.testing.simulation", "--seeds", str(SEEDS), "--first-seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines()[-1:] == [f"{SEEDS} passed, 0 failed"], ended.stdout[-20_000:] + ended.stderr
    assert ended.returncode == 0


def test_a_seed_repeats_a_run_exactly() -> None:
    program = "from pipeline.testing.simulation.runner import run_seed; v = run_seed(3); print(v.digest, len(v.trace))"
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


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    variant = VARIANTS[name]
    for seed in range(variant.first_seed, variant.first_seed + MAX_SEEDS_TO_NOTICE):
        if not run(variant.plan(seed)).has_passed:
            return
    pytest.fail(f"not noticed: {variant.rule}")
