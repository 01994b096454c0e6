"""`produce` and `consume` that are interrupted at any moment: quiet, with the signal's exit code, and gone."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pipeline.testing.local_cluster import LocalCluster

pytestmark = pytest.mark.long

DEADLINE_S = 120
MANY = 12
LATEST_S = 1.5
"""Long after the modules are loaded, and before anybody waits for the test."""
PROGRAM = """
from pipeline.cli.console import main
import sys
print("begun", file=sys.stderr, flush=True)
main()
"""
"""The console script, which tells when it begins: an interpreter that starts shows a traceback by itself."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(settings={"num.partitions": 2}) as running:
        pipeline("topic", "create", "interrupted", "-b", running.bootstrap)
        pipeline("produce", "interrupted", "-b", running.bootstrap, given=b"a\nb\nc\n")
        yield running


def pipeline(*arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments], input=given, stdout=-1, timeout=DEADLINE_S, check=True
    ).stdout


@pytest.mark.parametrize("command", [["produce"], ["consume", "-f"], ["consume", "-f", "--group", "interrupted"]])
@pytest.mark.parametrize("moments", [1, MANY])
def test_a_signal_at_any_moment_ends_a_command_quietly(cluster: LocalCluster, command: list[str], moments: int) -> None:
    rng = random.Random(f"{command}")
    for number in (signal.SIGINT, signal.SIGTERM) * moments:
        delay_s = rng.random() * LATEST_S
        verb, *options = command
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, verb, "interrupted", "-b", cluster.bootstrap, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                assert process.stderr is not None
                assert process.stderr.readline() == b"begun\n"
                time.sleep(delay_s)  # the moment is the point
                os.kill(process.pid, number)
                process.wait(DEADLINE_S)  # stdin stays open: its end would be the end of the command
                told = process.stderr.read()  # ends once no child of it is left either, as each inherits stderr
            finally:
                process.kill()
        # SIGTERM before the command has begun ends the process as it ends any other.
        assert process.returncode in {128 + number, -number} - {-signal.SIGINT}, (delay_s, told)
        assert told == b"", delay_s
