"""What `deploy/drill/lose-a-datacenter.sh` makes of the answers of the program; `test_drill.py` runs the real parts."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.previous_release import ROOT

SCRIPT = ROOT / "deploy" / "drill" / "lose-a-datacenter.sh"
DEADLINE_S = 30
PROGRAM = """#!/bin/sh
case "$1 $2" in
    "mirror verify") cat {answers}/verified ;;
    "topic describe") cat {answers}/described ;;
    "mirror start") exec sleep 600 ;;
    *) mkdir -p {directory}/only-east {directory}/only-hub ;;
esac
"""


def started(tmp_path: Path, copies: Sequence[int], *, deadline_s: int = 0) -> "subprocess.Popen[str]":
    """A drill with a topic of two partitions, of which these are compared and equal."""
    rows = [
        {"partition": n, "replica_topic": "t", "replica_partition": n, "verdict": "equal", "lag": 0, "reason": None}
        for n in copies
    ]
    (tmp_path / "verified").write_text(json.dumps({"partitions": rows}))
    (tmp_path / "described").write_text(json.dumps({"partitions": [{"partition": n} for n in range(2)]}))
    program, directory = tmp_path / "program", tmp_path / "drill"
    program.write_text(PROGRAM.format(answers=tmp_path, directory=directory))
    program.chmod(0o755)
    options = {"name": "east", "topic": "t", "source": "e:1", "hub": "h:1", "mirror": "http://h", "mirror-config": "m"}
    options |= {"stop": "true", "start": "true", "directory": str(directory), "deadline": str(deadline_s)}
    command = [str(SCRIPT), *(word for name, value in options.items() for word in (f"--{name}", value))]
    environment = {**os.environ, "PIPELINE": str(program)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(drill: "subprocess.Popen[str]") -> tuple[int, str, str]:
    said, complaint = drill.communicate(timeout=DEADLINE_S)
    return drill.returncode, said, complaint


def test_a_partition_without_a_copy_is_never_equal(tmp_path: Path) -> None:
    code, _, complaint = ended(started(tmp_path, [0]))
    assert (code, "partition 1 has no copy" in complaint) == (1, True)


def test_a_directory_has_one_drill(tmp_path: Path) -> None:
    code, said, complaint = ended(started(tmp_path, [0, 1]))
    assert (code, "is equal" in said, complaint) == (0, True, "")
    process = (tmp_path / "drill" / "mirror-hub.pid").read_text().strip()
    code, said, complaint = ended(started(tmp_path, [0, 1]))
    assert (code, said, f"process {process}" in complaint) == (1, "", True)


def test_records_of_the_lost_datacenter_alone_are_named_at_the_end(tmp_path: Path) -> None:
    saved = tmp_path / "drill" / "only-east" / "t-0"
    saved.mkdir(parents=True)
    (saved / "00000000000000000007.log").touch()
    code, said, _ = ended(started(tmp_path, [0, 1]))
    assert (code, "only-east alone" in said.splitlines()[-1]) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_drill_that_is_interrupted_stops_the_mirror_that_it_started(tmp_path: Path, number: int) -> None:
    drill = started(tmp_path, [0], deadline_s=600)
    pid_file = tmp_path / "drill" / "mirror-hub.pid"
    deadline = time.monotonic() + DEADLINE_S
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    drill.send_signal(number)
    assert ended(drill)[0] == 1
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()
