"""`pipeline local up` and a directory: one at a time, nothing left by a crash; ports that a README can name."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from pipeline.cli import local
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.processes import free_port
from tests.support.clients import wait_for

DEADLINE_S = 240


@contextmanager
def local_up(
    *options: str, stderr: int | IO[str] = subprocess.DEVNULL
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The command and its first line, stopped at the end."""
    command = [sys.executable, "-m", "pipeline", "local", "up", *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)


def is_alive(pid: int) -> bool:
    """False too for one that has ended and that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.long
def test_a_directory_serves_one_cluster_at_a_time_and_survives_a_kill(tmp_path: Path) -> None:
    options = ["--port", "0", "--dir", str(tmp_path)]
    with local_up(*options) as (process, ready):
        second = subprocess.run(
            [sys.executable, "-m", "pipeline", "local", "up", *options],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr == f"pipeline: --dir: {tmp_path} is in use by process {process.pid}\n"
        pids = ready["pids"].values()
        assert httpx.get(f"{ready['http']['broker-1']}/readyz").status_code == 200
        assert all(map(is_alive, pids))
        process.kill()
        process.wait()
    wait_for("the end of its processes", lambda: not any(map(is_alive, pids)))
    with local_up(*options) as (_, again):
        assert set(again["pids"]) == {"zookeeper", "broker-1"}


@pytest.mark.long
def test_a_damaged_partition_is_named_and_keeps_nothing_down(tmp_path: Path) -> None:
    options = ["--port", "0", "--dir", str(tmp_path / "cluster")]

    def pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline", *arguments, "--bootstrap", ready["bootstrap"]]
        return subprocess.run(command, input="a\n", capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    with local_up(*options) as (_, ready):
        for topic in ("good", "bad"):
            assert pipeline("topic", "create", topic).returncode == 0
            assert pipeline("produce", topic).returncode == 0
    metadata = tmp_path / "cluster/broker-1/logs/bad-0/partition.metadata"
    content = bytearray(metadata.read_bytes())
    content[25] ^= 1
    metadata.write_bytes(content)
    told = tmp_path / "stderr"
    with told.open("w") as stderr, local_up(*options, stderr=stderr) as (_, ready):
        assert pipeline("consume", "good").stdout == "a\n"
        wait_for("the broker to name it", lambda: "its disk cannot be read" in pipeline("cluster", "describe").stdout)
        assert pipeline("cluster", "describe").returncode == 1
    assert "not_healthy" in told.read_text()
    assert "bad-0" in told.read_text()


@pytest.mark.long
def test_a_cluster_goes_on_when_nobody_reads_its_output_any_more(tmp_path: Path) -> None:
    told = tmp_path / "stderr"
    options = ["--port", "0", "--dir", str(tmp_path / "cluster"), "--restart-after", "0.1"]
    with told.open("w") as stderr, local_up(*options, stderr=stderr) as (process, ready):
        assert process.stdout is not None
        process.stdout.close()
        os.kill(ready["pids"]["broker-1"], signal.SIGKILL)
        wait_for("the warning", lambda: "stdout_lost" in told.read_text() or process.poll() is not None)
        assert process.poll() is None
        command = [sys.executable, "-m", "pipeline", "topic", "list", "--bootstrap", ready["bootstrap"]]
        assert subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False).returncode == 0
    assert "restarted" in told.read_text()


@pytest.mark.long
@pytest.mark.parametrize("options", [["--set", "num.partition=1"], ["--port", "taken"]])
def test_an_early_failure_leaves_no_temporary_directory(tmp_path: Path, options: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", "local", "up"]
            + [option.replace("taken", str(taken.getsockname()[1])) for option in options],
            env={"TMPDIR": str(tmp_path)},
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode != 0
    assert list(tmp_path.iterdir()) == []


def plan(options: local.LocalOptions) -> local.ClusterPlan:
    return local.plan_cluster(Path(tempfile.gettempdir()) / "unused", options)


def settings_of(made: local.ClusterPlan, name: str) -> dict[str, Any]:
    return next(dict(unit.settings) for unit in made.units if unit.name == name)  # type: ignore[attr-defined]


def test_services_have_their_usual_ports_unless_these_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ZOOKEEPER_PORT", "REGISTRY_PORT", "AUDIT_PORT"):
        monkeypatch.setattr(local, name, free_port())
    with socket.create_server(("127.0.0.1", local.AUDIT_PORT)):
        made = plan(local.LocalOptions(brokers=2, port=19092, registry=True, audit=True))
    assert made.addresses["bootstrap"] == "127.0.0.1:19092,127.0.0.1:19093"
    assert made.addresses["zookeeper"] == f"127.0.0.1:{local.ZOOKEEPER_PORT}"
    assert made.addresses["registry"] == f"http://127.0.0.1:{local.REGISTRY_PORT}"
    assert made.addresses["audit"] != f"http://127.0.0.1:{local.AUDIT_PORT}"
    usual = {str(port) for port in (9092, local.ZOOKEEPER_PORT, local.REGISTRY_PORT, local.AUDIT_PORT)}
    free = plan(local.LocalOptions(brokers=1, port=0, registry=True, audit=True))
    assert usual.isdisjoint(address.rpartition(":")[2] for address in free.addresses.values())
    with pytest.raises(ConfigurationError, match=r"^--port: 65535 leaves too few ports for 2 brokers$"):
        plan(local.LocalOptions(brokers=2, port=65535))


def test_brokers_of_a_local_cluster_with_an_audit_count_by_themselves() -> None:
    alone = plan(local.LocalOptions(brokers=1, port=0))
    assert "datacenter" not in settings_of(alone, "broker-1")
    audited = plan(local.LocalOptions(brokers=1, port=0, audit=True))
    assert settings_of(audited, "broker-1")["datacenter"] == "local"
    named = plan(local.LocalOptions(brokers=1, port=0, audit=True, settings={"datacenter": "east"}))
    assert settings_of(named, "broker-1")["datacenter"] == "east"
    assert settings_of(named, "audit")["live"][0]["name"] == "east"


def test_internal_topics_of_a_local_cluster_are_replicated() -> None:
    def factors(brokers: int, **settings: str) -> tuple[Any, Any]:
        made = plan(local.LocalOptions(brokers=brokers, port=0, registry=True, settings=settings))
        of_broker, of_registry = settings_of(made, "broker-1"), settings_of(made, "registry")
        assert "default.replication.factor" not in of_broker
        return of_broker["offsets.topic.replication.factor"], of_registry["kafkastore.topic.replication.factor"]

    assert [factors(brokers) for brokers in (1, 2, 3, 5)] == [(1, 1), (2, 2), (3, 3), (3, 3)]
    assert factors(3, **{"offsets.topic.replication.factor": "1"}) == ("1", 3)


@pytest.mark.parametrize("written", [[], ["broker.toml"], ["broker.toml", "broker.log"]])
def test_a_temporary_directory_is_kept_while_its_logs_explain_a_failure(written: list[str]) -> None:
    with pytest.raises(PipelineError), local._temporary_directory() as directory:
        for name in written:
            (directory / name).touch()
        raise PipelineError("it ended; see broker.log")
    assert directory.exists() == ("broker.log" in written)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.long
@pytest.mark.parametrize("setting", ["broker.id=3", "http.listen=127.0.0.1:0"])
def test_settings_that_are_chosen_for_each_broker_are_refused(tmp_path: Path, setting: str) -> None:
    command = [sys.executable, "-m", "pipeline", "local", "up", "--dir", str(tmp_path), "--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--set {setting.partition('=')[0]}: cannot be set" in done.stderr
