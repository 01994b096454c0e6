"""The script by which runs of playbooks restart servers of a datacenter one after the other."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy/ansible/roles/pipeline/files/turn.py"
LONG = "600"


def started(path: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(path), *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def turn(path: Path, *arguments: str) -> tuple[int, str]:
    process = started(path, *arguments)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    assert turn(path, "take", "ann (run 1)", LONG) == (0, "")
    code, said = turn(path, "take", "bob (run 2)", LONG)
    assert code == 1
    assert said.startswith("ann (run 1) restarts servers of this datacenter, for at most ")
    assert f"remove {path} of " in said
    assert turn(path, "give", "bob (run 2)")[0] == 1
    assert turn(path, "take", "ann (run 1)", LONG) == (0, "")
    assert turn(path, "give", "ann (run 1)") == (0, "")
    assert turn(path, "take", "bob (run 2)", LONG) == (0, "")


def test_a_run_that_was_killed_has_the_turn_for_a_time(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    assert turn(path, "take", "ann (run 1)", "0") == (0, "")
    assert turn(path, "take", "bob (run 2)", LONG) == (0, "")
    code, said = turn(path, "take", "ann (run 1)", LONG)
    assert code == 1
    assert said.startswith("bob (run 2) ")


def test_a_file_that_was_cut_off_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    for text in ("", '["ann (run 1)", 12', "[]", "null", '{"a": 1}', "\0\0"):
        path.write_text(text)
        assert turn(path, "take", "bob (run 2)", LONG) == (0, ""), text


@pytest.mark.long
def test_of_many_in_the_same_instant_one_gets_it(tmp_path: Path) -> None:
    takers = [started(tmp_path / "turn", "take", f"run {number}", LONG) for number in range(20)]
    for taker in takers:
        taker.communicate(timeout=60)
    assert sorted(taker.returncode for taker in takers) == [0] + [1] * 19
