"""`make test-long`: the tests marked `long`. Each file is a part of its own; four run at a time.

A last part tries the properties that `make test` tries, with more examples.

Files whose tests have bounds of time run at the end, alone.

With `--resume FILE`, parts that passed with this code are not run again; the file keeps how long each took. What a part
rests on is all code, but of the tests only what they share and its own file.

    python -m tests.support.long_suite [--jobs N] [--resume FILE] [PATH ...]
"""

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.sizes import SIZE
from tests.support.suite import ROOT, Part, PartResult, Suite, say

LONG = ("-m", "long")
PROPERTIES: Final = Part("properties", ["."], options=("-m", "hypothesis and not long"))
CODE = ("bench", "deploy", "examples", "pipeline", "tests")
TIMED: Final = frozenset(
    {
        "faults/test_mirror_fairness.py",
        "faults/test_mirror_wan.py",
        "faults/test_x10_fenced_copiers.py",
        "integration/deploy/test_ansible.py",
        "integration/test_deletion_and_leaders.py",
        "integration/test_loop_delays.py",
    }
)
"""Files whose bounds of time hold on a machine that does nothing else."""


class PassedParts:
    """Lines of JSON in a file, one for each part that passed: its name, the state of the code, and its seconds."""

    def __init__(self, path: Path | None, codes: Mapping[str, str]) -> None:
        """Read the file. Without a path nothing is kept. `codes`: the state of the code by part."""
        self._path, self._codes = path, codes
        lines = path.read_text().splitlines() if path and path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.durations_s = {row["part"]: row["seconds"] for row in rows}
        """By part, of any state of the code."""
        self.names = {row["part"] for row in rows if row["code"] == codes.get(row["part"])}
        """Those that passed with this code."""

    def add(self, result: PartResult) -> None:
        """A part has ended; it is kept if it passed and is none of tests that ran once more."""
        if self._path is not None and result.exit_code == 0 and result.name in self._codes:
            row = {"part": result.name, "code": self._codes[result.name], "seconds": round(result.duration_s)}
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def files_with_long_tests(paths: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return their paths below `tests`. Raises CalledProcessError if a file cannot be read."""
    command = [sys.executable, "-m", "pytest", *LONG, "--collect-only", "-q", *paths]
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    ids = [line for line in done.stdout.splitlines() if "::" in line]
    return list(dict.fromkeys(each.partition("::")[0].removeprefix("tests/") for each in ids))


def states_of_code(files: Sequence[str], root: Path = ROOT, size: str = SIZE) -> dict[str, str]:
    """Return for each part, a file below `tests` or `PROPERTIES`, a digest of what it rests on; not this program."""
    shared = hashlib.sha256(size.encode())
    paths = (path for folder in CODE for path in sorted((root / folder).rglob("*")))
    for path in paths:
        is_code = path.is_file() and "__pycache__" not in path.parts and path.name != Path(__file__).name
        if is_code and not path.name.startswith("test_"):
            shared.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    states = {}
    for file in files:
        digest = shared.copy()
        own = sorted((root / "tests").rglob("test_*.py")) if file == PROPERTIES.name else [root / "tests" / file]
        for path in own:
            digest.update(path.read_bytes())
        states[file] = digest.hexdigest()
    return states


def parts_left(files: Sequence[str], passed: PassedParts) -> Iterator[Part]:
    """Yield those that have not passed, of unknown duration first, then the longest first."""
    for file in sorted(files, key=lambda file: -passed.durations_s.get(file, float("inf"))):
        if file not in passed.names:
            yield PROPERTIES if file == PROPERTIES.name else Part(file, [file], options=LONG)


def run_parts(
    parts: Sequence[Part],
    jobs: int,
    on_end: Callable[[PartResult], None],
    *,
    timed: Collection[str] = TIMED,
    root: Path = ROOT,
) -> str:
    """Run parts, those of `timed` names one by one after the others. Return what failed, "" if nothing did."""
    groups = (([part for part in parts if part.name not in timed], jobs), ([p for p in parts if p.name in timed], 1))
    failed = [Suite(root, processes, on_end).run(group) for group, processes in groups if group]
    return ", ".join(filter(None, failed))


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.long_suite", description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="of files or folders of tests; all, if none is named")
    parser.add_argument("--jobs", type=int, default=4, help="how many parts at a time")
    parser.add_argument("--resume", type=Path, help="file of the parts that have passed; these are not run again")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began_s = time.monotonic()
    files = [*files_with_long_tests(options.paths), *([] if options.paths else [PROPERTIES.name])]
    passed = PassedParts(options.resume, states_of_code(files))
    left = list(parts_left(files, passed))
    failed = run_parts(left, options.jobs, passed.add)
    say(f"=== {f'FAILED: {failed}' if failed else 'all passed'} in {time.monotonic() - began_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
