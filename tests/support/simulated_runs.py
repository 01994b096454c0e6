"""Whole simulated runs of any scenario: seeds that must pass, runs that must be equal, broken rules."""

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

from pipeline.testing.simulation.broken_variant import BrokenVariant
from pipeline.testing.simulation.runner import run_plan


def assert_pass(scenario: str, first: int, last: int) -> None:
    count = last - first + 1
    command = [sys.executable, "-m", "pipeline.testing.simulation", "--scenario", scenario]
    command += ["--seeds", str(count), "--first-seed", str(first)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines()[-1:] == [f"{count} passed, 0 failed"], ended.stdout[-20_000:] + ended.stderr
    assert ended.returncode == 0


def assert_repeats(scenario: str, seed: int) -> None:
    """Two processes whose hashes of strings differ have the same trace."""
    program = (
        "from pipeline.testing.simulation.runner import SCENARIOS\n"
        f"verdict = SCENARIOS[{scenario!r}]({seed})\n"
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


def assert_noticed(variant: BrokenVariant, last_seed: int, *, passing: int = sys.maxsize) -> None:
    """A seed fails with the rule broken, and passes with the rule kept: so it fails for the rule.

    `passing`: seeds up to this one pass with the rule kept, as other tests show.
    """
    for seed in variant.seeds(last_seed):
        plan = variant.plan(seed)
        if not run_plan(plan).has_passed and (
            seed <= passing or run_plan(replace(plan, variant=nullcontext)).has_passed
        ):
            return
    pytest.fail(f"not noticed: {variant.rule}")
