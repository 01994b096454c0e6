"""The suite itself: which tests run when."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """\
import pytest

def test_ordinary(): pass

@pytest.mark.long
def test_soak(): pass
"""


@pytest.mark.parametrize(("options", "selected"), [([], "test_ordinary"), (["-m", "long"], "test_soak")])
def test_long_tests_run_only_when_they_are_asked_for(tmp_path, options, selected):
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
