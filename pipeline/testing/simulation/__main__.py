"""`python -m pipeline.testing.simulation`: many seeds on two processes. The last line is `N passed, M failed`."""

import argparse
import multiprocessing
import sys
from collections.abc import Sequence

from pipeline.testing.simulation.runner import Verdict, run_seed

PROCESSES = 2
MAX_LINES = 3000
"""Of a trace that is printed, its last ones."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 only if all seeds pass."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print the trace of seeds that pass, too")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    passed = failed = 0
    with multiprocessing.get_context("spawn").Pool(min(PROCESSES, len(seeds))) as pool:
        for verdict in pool.imap_unordered(run_seed, seeds):
            passed, failed = passed + verdict.has_passed, failed + (not verdict.has_passed)
            if not verdict.has_passed or options.trace:
                _report(verdict)
            if sys.stderr.isatty():
                print(f"\r{passed + failed} of {len(seeds)}, {failed} failed ", end="", file=sys.stderr)  # noqa: T201
    if sys.stderr.isatty():
        print(file=sys.stderr)  # noqa: T201
    print(f"{passed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


def _report(verdict: Verdict) -> None:
    lines = [*verdict.trace[-MAX_LINES:], "", f"seed {verdict.seed}: {'passed' if verdict.has_passed else 'FAILED'}"]
    lines += [f"  {problem}" for problem in verdict.problems]
    lines.append(f"  to repeat it: make simulate SEEDS=1 FIRST_SEED={verdict.seed}")
    print("\n".join(lines), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
