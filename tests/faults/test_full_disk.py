"""A broker whose disk is full: everybody who looks sees it, and it goes on by itself once there is room."""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.broker import START_DEADLINE_S

DISK_BYTES = 48 << 20
LEFT_BYTES = 3 << 20

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system at the place of the log dir of broker 1 of `tmp_path`."""
    mount = tmp_path / "broker-1" / "logs"
    mount.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def pipeline(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + START_DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@pytest.mark.long
def test_a_full_disk_is_seen_everywhere_until_there_is_room(disk: Path, tmp_path: Path) -> None:
    ballast = disk / "ballast"
    with LocalCluster(directory=tmp_path) as cluster:
        at = ("-b", cluster.bootstrap)
        address = tomllib.loads((tmp_path / "broker-1" / "broker.toml").read_text())["http.listen"]

        def ready() -> tuple[int, str]:
            answer = httpx.get(f"http://{address}/readyz")
            return answer.status_code, answer.json().get("reason", "")

        def metric(name: str) -> float:
            line = next(line for line in httpx.get(f"http://{address}/metrics").text.splitlines() if name in line)
            assert f'{{log_dir="{disk}"}}' in line
            return float(line.split()[-1])

        assert pipeline("topic", "create", "full", *at).returncode == 0
        assert ready() == (200, "")
        assert metric("pipeline_log_dir_full{") == 0
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        ballast.write_bytes(bytes(free - LEFT_BYTES))
        line = "x" * 500_000
        done = pipeline(
            "produce",
            "full",
            *at,
            "-X",
            "delivery.timeout.ms=4000",
            "-X",
            "request.timeout.ms=2000",
            given=f"{line}\n" * 20,
        )
        assert done.returncode == 1
        assert " records published" in done.stderr

        wait_for(lambda: ready()[0] == 503)
        assert f"log dir {disk} is full" in ready()[1]
        health = httpx.get(f"http://{address}/healthz")
        assert (health.status_code, health.json()["warnings"]) == (200, [ready()[1]])  # a restart makes no room
        assert metric("pipeline_log_dir_full{") == 1
        assert metric("pipeline_log_dir_free_bytes{") < 1 << 20 < metric("pipeline_log_dir_size_bytes{") == DISK_BYTES
        described = pipeline("cluster", "describe", *at)
        assert described.returncode == 1
        assert "disk full" in described.stdout
        assert f"Broker 1: log dir {disk} is full" in described.stdout
        of_broker = pipeline("broker", "describe", *at)
        assert (of_broker.returncode, of_broker.stderr.startswith("pipeline: broker 1: log dir")) == (1, True)

        cluster.kill("broker-1")
        cluster.wait_restarted("broker-1")  # though it is not ready, for want of room
        wait_for(lambda: ready()[0] == 503)
        assert pipeline("topic", "list", *at).returncode == 0

        ballast.unlink()
        wait_for(lambda: ready() == (200, ""))
        assert pipeline("produce", "full", *at, given="more\n").returncode == 0
        assert pipeline("cluster", "describe", *at).returncode == 0
    log = [json.loads(each) for each in (tmp_path / "broker-1" / "broker.log").read_text().splitlines()]
    events = [each["event"] for each in log if each["event"].startswith("disk_")]
    assert events == ["disk_full", "disk_full", "disk_has_room"]
