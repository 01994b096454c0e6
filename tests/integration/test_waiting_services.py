"""Services that are started before what they need: each waits, says so, and serves once it is there."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.cli.terminal.settings import write_settings
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.processes import free_port
from tests.support.broker import START_DEADLINE_S, configured_broker

pytestmark = pytest.mark.long

NOBODY = f"127.0.0.1:{free_port()}"


class Service:
    """`pipeline NOUN start`."""

    def __init__(self, noun: str, directory: Path, settings: dict[str, Any]) -> None:
        file, self.log = directory / f"{noun}.toml", directory / f"{noun}.log"
        self.url = f"http://127.0.0.1:{free_port()}"
        write_settings(file, {**settings, "http.listen": self.url.removeprefix("http://")})
        command = [sys.executable, "-m", "pipeline", noun, "start", "--config", str(file)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(self, path: str = "/readyz") -> tuple[int, str]:
        try:
            answer = httpx.get(f"{self.url}{path}", trust_env=False)
        except httpx.TransportError:
            return 0, ""
        return answer.status_code, answer.text

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.log.read_text().splitlines())
        return [line for line in lines if line["event"] == name]

    def wait_for(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def waits_for(self, *names: str) -> None:
        """Wait until log and `/readyz` name who is missing."""
        self.wait_for(lambda: self.events("waiting"))
        (first, *_) = self.events("waiting")
        code, text = self.ask()
        assert (first["level"], code) == ("warning", 503)
        for name in names:
            assert name in first["party"]
            assert name in text
        assert self.ask("/healthz")[0] == 200  # a restart would not help
        assert self.ask("/metrics")[0] == 200

    def is_ready(self) -> bool:
        return self.ask()[0] == 200

    def stop(self) -> None:
        """Stop cleanly."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(START_DEADLINE_S) == 0
        (stopped,) = self.events("stopped")
        assert stopped["reason"] == "SIGTERM"


@contextmanager
def started(noun: str, directory: Path, **settings: Any) -> Iterator[Service]:
    """A service, killed at the end unless it was stopped. Dots of settings are written as double underscores."""
    service = Service(noun, directory, {key.replace("__", "."): value for key, value in settings.items()})
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.process.kill()
            service.process.wait()


def test_broker_and_registry_wait_for_what_they_need(tmp_path: Path) -> None:
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper", port=free_port())
    port, address = free_port(), f"127.0.0.1:{zookeeper.address.port}"
    settings = {"broker__id": 1, "listeners": f"PLAINTEXT://127.0.0.1:{port}", "log__dirs": str(tmp_path / "logs")}
    settings |= {"offsets__topic__replication__factor": 1, "zookeeper__connect": address}
    bootstrap = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        registry = stack.enter_context(started("registry", tmp_path, bootstrap__servers=bootstrap))
        broker = stack.enter_context(started("broker", tmp_path, **settings))
        broker.waits_for(f"ZooKeeper at {address}")
        registry.waits_for(bootstrap)
        code, text = registry.ask("/subjects")
        refusal = json.loads(text)  # registry clients read these two fields
        assert (code, refusal["error_code"], bootstrap in refusal["message"]) == (503, 503, True)
        assert not (broker.events("broker_ready") or registry.events("registry_ready"))

        stack.enter_context(zookeeper)
        broker.wait_for(broker.is_ready)
        registry.wait_for(registry.is_ready)
        assert registry.ask("/subjects") == (200, "[]")
        for service, name in ((broker, "broker_ready"), (registry, "registry_ready")):
            assert service.events("waited")
            assert service.events(name)[0]["http"] == service.url.removeprefix("http://")
        registry.stop()
        broker.stop()


@pytest.mark.parametrize(
    ("noun", "settings"),
    [
        (
            "mirror",
            {"destination__bootstrap__servers": NOBODY, "sources": [{"name": "e", "bootstrap.servers": NOBODY}]},
        ),
        ("audit", {"live": [{"name": "e", "bootstrap.servers": NOBODY}]}),
        ("audit", {"live": [{"name": n, "bootstrap.servers": NOBODY} for n in "ew"]}),
    ],
)
def test_mirror_and_audit_wait_for_clusters(tmp_path: Path, noun: str, settings: dict[str, Any]) -> None:
    topics = {"topics": [".*"]} if noun == "mirror" else {}
    with started(noun, tmp_path, **settings, **topics) as service:
        service.waits_for(NOBODY)
        assert not service.events(f"{noun}_ready")
        service.stop()


def test_a_change_that_waits_for_zookeeper_says_so(tmp_path: Path) -> None:
    port = free_port()
    with (
        ZooKeeperProcess(tmp_path / "zookeeper") as zookeeper,
        configured_broker(tmp_path, zookeeper.connect, broker_id=1, port=port) as broker,
    ):
        broker.start()
        assert zookeeper.pid is not None
        subprocess.run(["kill", "-STOP", str(zookeeper.pid)], check=True)
        try:
            command = [sys.executable, "-m", "pipeline", "topic", "create", "late", "-b", f"127.0.0.1:{port}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            subprocess.run(["kill", "-CONT", str(zookeeper.pid)], check=True)
        assert done.returncode == 1
        assert "ZooKeeper did not answer in time" in done.stderr
        assert broker.stop() == 0
