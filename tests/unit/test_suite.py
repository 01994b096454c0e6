"""The suite itself: which tests run when."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.suite import PARTS, ROOT

TESTS = """\
import pytest

def test_ordinary(): pass

@pytest.mark.long
def test_soak(): pass
"""


@pytest.mark.parametrize(("options", "selected"), [([], "test_ordinary"), (["-m", "long"], "test_soak")])
def test_long_tests_run_only_when_they_are_asked_for(tmp_path: Path, options: Any, selected: Any) -> None:
    (tmp_path / "test_sample.py").write_text(TESTS, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        ROOT / "pyproject.toml",
        "--collect-only",
        "-q",
        *options,
        tmp_path,
    ]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert [line.rpartition("::")[2] for line in listed.splitlines() if "::" in line] == [selected]


def test_each_file_of_tests_is_in_one_part_of_the_suite() -> None:
    files = {path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    found: Counter[Path] = Counter()
    for part in PARTS:
        assert all((ROOT / "tests" / path).exists() for path in (*part.paths, *part.without))
        found.update(
            path
            for path in files
            if any(path.is_relative_to(own) for own in part.paths)
            and not any(path.is_relative_to(other) for other in part.without)
        )
    assert found == dict.fromkeys(files, 1)
