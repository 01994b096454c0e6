"""The driver of a load killed at seeded moments of its run: what is committed stays exact, and all of it arrives."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic

DRIVER = Path(__file__).parents[1] / "support" / "load_driver.py"
KILLS = 1
MANY_KILLS = 10
LATEST_KILL_S = 4.0
SEED = 117


@contextmanager
def driver_in_waiting(topic: Any, log: Any) -> Iterator[Any]:
    """A driver that starts its Spark and then waits until it is told to load."""
    order = json.dumps({"settings": topic.settings(), "kill": None})
    command = [sys.executable, str(DRIVER), order]
    with (
        log.open("ab") as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said) as driver,
    ):
        try:
            yield driver
        finally:
            driver.kill()


@pytest.mark.parametrize(
    "kills", [KILLS, pytest.param(MANY_KILLS, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_x16_a_load_killed_at_any_moment_and_run_again(tmp_path: Path, kills: Any) -> None:
    moments = random.Random(SEED)
    with LocalCluster(tmp_path / "local") as local, ExitStack() as stack:
        topic = LoadedTopic(local.bootstrap, (tmp_path / "root").as_uri())
        log = tmp_path / "drivers.log"
        waiting = stack.enter_context(driver_in_waiting(topic, log))
        outcomes = []
        for number in range(kills):
            topic.produce(700)
            driver, waiting = waiting, stack.enter_context(driver_in_waiting(topic, log))
            driver.stdin.write(b"\n")
            driver.stdin.flush()
            assert driver.stdout.readline() == b"planned\n", log.read_text()[-4000:]
            try:
                driver.wait(moments.uniform(0, LATEST_KILL_S) if number else 0)
            except subprocess.TimeoutExpired:
                driver.kill()
            outcomes.append(driver.wait())
            topic.check_exact()
        assert -9 in outcomes
        printed, _ = waiting.communicate(b"\n")
        assert printed.splitlines()[-1:], log.read_text()[-4000:]
        assert printed.splitlines()[-1].startswith((b"committed", b"nothing new"))
        assert topic.check_exact() == kills * 700
