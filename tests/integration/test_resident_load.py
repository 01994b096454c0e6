"""`pipeline load run --interval`: rounds by one Spark, which survive failures, metrics, and a clean stop."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic
from tests.support.marked_processes import MARK, marked

DEADLINE_S = 150
STOP_S = 10


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Any]:
    with LocalCluster(tmp_path / "local") as running:
        yield running


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Resident:
    """A resident process, its log, and its metrics."""

    def __init__(self, folder: Path, topic: Any, pattern: Any) -> None:
        self.log = folder / "resident.log"
        self.mark = f"resident-{folder}"
        options = ["--topics", pattern, "--root", topic.root, "-b", topic.bootstrap, "--set", "value.format=binary"]
        served = ["--interval", "1s", "--http-listen", "127.0.0.1:0"]
        command = [sys.executable, "-m", "pipeline", "load", "run", *options, *served]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["env", f"{MARK}={self.mark}", *command], stdout=log, stderr=log, start_new_session=True
            )
        wait_until(lambda: self.event("http_served"))
        self.url = f"http://{self.event('http_served')[0]['address']}"

    def event(self, name: Any) -> Any:
        assert self.process.poll() is None, self.log.read_text()
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def metric(self, name: Any, topic: Any = None) -> Any:
        label = f'{{topic="{topic}"}}' if topic else ""
        text = httpx.get(f"{self.url}/metrics", timeout=60).raise_for_status().text
        found = re.search(rf"^pipeline_load_{name}{re.escape(label)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def health(self) -> Any:
        return httpx.get(f"{self.url}/healthz", timeout=60).raise_for_status().json()

    def jvms(self) -> Any:
        return [pid for pid, line in marked(self.mark).items() if "org.apache.spark.deploy.SparkSubmit" in line]


@contextlib.contextmanager
def resident(folder: Path, topic: Any, pattern: Any) -> Iterator[Resident]:
    running = Resident(folder, topic, pattern)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.mark.long
def test_rounds_that_survive_the_death_of_spark(local: Any, tmp_path: Path) -> None:
    topic = LoadedTopic(local.bootstrap, (tmp_path / "lake").as_uri())
    name = topic.name
    topic.produce(100)
    with resident(tmp_path, topic, f"{name}|none-yet") as running:
        wait_until(lambda: running.metric("records_total", name) == 100)
        assert running.metric("lag_records", name) == 0
        assert running.metric("commits_total", name) == 1
        assert running.metric("last_success_timestamp_seconds", name) > 1.7e9
        assert running.health() == {"status": "ok"}
        (first,) = running.jvms()
        topic.produce(50)
        wait_until(lambda: running.metric("records_total", name) == 150)
        assert running.jvms() == [first]  # one Spark for all rounds
        subprocess.run(["kill", "-9", str(first)], check=True)
        topic.produce(25)
        wait_until(lambda: running.metric("records_total", name) == 175)
        (second,) = running.jvms()
        assert second != first
        sent = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(DEADLINE_S) == 0
        assert time.monotonic() - sent < STOP_S
        wait_until(lambda: not marked(running.mark))
    assert topic.check_exact() == 175
    log = running.log.read_text()
    assert '"stopped"' in log
    assert "Traceback" not in log.split('"stopping"')[1]


@pytest.mark.long
def test_rounds_without_brokers_are_failures_that_pass(local: Any, tmp_path: Path) -> None:
    topic = LoadedTopic(local.bootstrap, (tmp_path / "lake").as_uri())
    absent = LoadedTopic(local.bootstrap, (tmp_path / "lake").as_uri())
    absent.bootstrap = "127.0.0.1:1"
    with resident(tmp_path, absent, topic.name) as running:
        wait_until(lambda: running.metric("failed_rounds_total") >= 1)
        assert "no broker" in running.health()["warnings"][0]
        assert running.jvms() == []
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(DEADLINE_S) == 0


def runs_of(topic: Any) -> list[Path]:
    """Marks of the runs that have begun and not ended."""
    return list(Path(topic.root.removeprefix("file://"), topic.name, "_runs").glob("[!.]*"))


@pytest.mark.long
def test_a_broker_is_killed_during_a_job_and_a_signal_comes_in_the_midst_of_another(local: Any, tmp_path: Path) -> None:
    topic = LoadedTopic(local.bootstrap, (tmp_path / "lake").as_uri())
    with resident(tmp_path, topic, topic.name) as running:
        topic.produce(60_000)
        wait_until(lambda: runs_of(topic))
        local.kill("broker-1")
        local.wait_restarted("broker-1")
        wait_until(lambda: running.metric("records_total", topic.name) == 60_000)
        assert topic.check_exact() == 60_000
        wait_until(lambda: not runs_of(topic))
        topic.produce(60_000)
        wait_until(lambda: runs_of(topic))
        sent = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(DEADLINE_S) == 0
        assert time.monotonic() - sent < STOP_S
        wait_until(lambda: not marked(running.mark))
        assert '"stopped"' in running.log.read_text()
    assert topic.check_exact() in {60_000, 120_000}
    options = ["--topic", topic.name, "--root", topic.root, "-b", topic.bootstrap, "--set", "value.format=binary"]
    subprocess.run([sys.executable, "-m", "pipeline", "load", "run", *options], check=True, timeout=DEADLINE_S)
    assert topic.check_exact() == 120_000
