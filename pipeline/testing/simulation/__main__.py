"""`python -m pipeline.testing.simulation`: many seeds, several at a time. The last line is `N passed, M failed`."""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.testing.simulation.done_seeds import DoneSeeds, code_state
from pipeline.testing.simulation.runner import SCENARIOS, Verdict

MAX_LINES = 3000
"""Of a trace that is printed, its last ones."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all seeds pass."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="how many at a time")
    parser.add_argument("--resume", type=Path, help="file of the seeds that have passed; these are not run again")
    parser.add_argument("--scenario", choices=SCENARIOS, default="cluster", help="what each seed simulates")
    parser.add_argument("--trace", action="store_true", help="print the trace of seeds that pass, too")
    options = parser.parse_args(arguments)
    done = DoneSeeds(options.resume, f"{options.scenario} {code_state()}")
    if done.is_of_other_code:
        _tell(f"{options.resume} is of other code: all seeds are run again\n")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    left = [seed for seed in seeds if seed not in done.seeds]
    passed, failed = len(seeds) - len(left), 0
    with multiprocessing.get_context("spawn").Pool(max(1, min(options.jobs, len(left)))) as pool:
        for verdict in pool.imap_unordered(SCENARIOS[options.scenario], left):
            if verdict.has_passed:
                passed += 1
                done.add(verdict.seed)
            else:
                failed += 1
            if not verdict.has_passed or options.trace:
                _report(verdict, options.scenario)
            if sys.stderr.isatty():
                _tell(f"\r{passed + failed} of {len(seeds)}, {failed} failed ")
    if sys.stderr.isatty():
        _tell("\n")
    print(f"{passed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


def _tell(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)  # noqa: T201


def _report(verdict: Verdict, scenario: str) -> None:
    lines = [*verdict.trace[-MAX_LINES:], "", f"seed {verdict.seed}: {'passed' if verdict.has_passed else 'FAILED'}"]
    lines += [f"  {problem}" for problem in verdict.problems]
    lines.append(f"  to repeat it: make simulate SCENARIO={scenario} SEEDS=1 FIRST_SEED={verdict.seed}")
    print("\n".join(lines), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
