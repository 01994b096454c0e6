"""The driver of a load killed at each named step: what is committed stays exact, and all of it arrives."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_driver import STEPS
from tests.support.load_topic import LoadedTopic

DRIVER = Path(__file__).parents[1] / "support" / "load_driver.py"
KILLS = 3
MANY_KILLS = 20
RECORDS = 60
DEADLINE_S = 240


@contextmanager
def driver_in_waiting(topic: Any, step: Any, log: Any) -> Iterator[Any]:
    order = json.dumps({"settings": topic.settings(), "kill": None, "pause": step})
    with (
        log.open("ab") as said,
        subprocess.Popen(
            [sys.executable, str(DRIVER), order], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
        ) as driver,
    ):
        try:
            yield driver
        finally:
            driver.kill()


def say(driver: Any) -> None:
    driver.stdin.write(b"\n")
    driver.stdin.flush()


def run_until(driver: Any, line: Any, log: Any) -> None:
    while (said := driver.stdout.readline()) != line:
        assert said, log.read_text()[-4000:]


@pytest.mark.parametrize(
    "kills", [KILLS, pytest.param(MANY_KILLS, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
def test_killed_at_any_step_and_run_again(tmp_path: Path, kills: Any) -> None:
    with LocalCluster(tmp_path / "local") as local, ExitStack() as stack:
        topic = LoadedTopic(local.bootstrap, (tmp_path / "root").as_uri())
        log = tmp_path / "drivers.log"
        # From the last step on, so that a few kills are those around the commit.
        steps = [STEPS[-1 - number % len(STEPS)] for number in range(kills)]
        waiting = stack.enter_context(driver_in_waiting(topic, steps[0], log))
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            driver, waiting = waiting, stack.enter_context(driver_in_waiting(topic, following, log))
            topic.produce(RECORDS)
            say(driver)
            run_until(driver, b"at %s\n" % step.encode(), log)
            commits = len(topic.manifests())
            driver.kill()
            driver.communicate(timeout=DEADLINE_S)
            assert len(topic.manifests()) == commits
            if step == "publish":
                assert topic.check_exact() == topic.produced
            else:
                topic.check_exact()
        printed, _ = waiting.communicate(b"\n", timeout=DEADLINE_S)
        assert printed.splitlines()[-1:], log.read_text()[-4000:]
        assert printed.splitlines()[-1].startswith((b"committed", b"nothing new")), log.read_text()[-4000:]
        assert topic.check_exact() == kills * RECORDS
