"""Commands as a stranger types them: what goes wrong is one line, and stdout holds results alone."""

import json
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.processes import free_port
from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for

DEADLINE_S = 240
SCHEMA = '{"type": "record", "name": "Visit", "fields": [{"name": "page", "type": "string"}]}'


def pipeline(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        input=given,
        check=False,
    )


def complaint(*arguments: str, code: int = 1) -> str:
    """The one line on stderr of a command that fails."""
    done = pipeline(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0].removeprefix("pipeline: ")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(registry=True, audit=True, settings={"audit.interval.ms": 200}) as running:
        assert pipeline("topic", "create", "clicks", "-b", running.bootstrap).returncode == 0
        done = pipeline("produce", "clicks", "-b", running.bootstrap, given="a\nb\nc\n")
        assert (done.returncode, done.stdout, done.stderr) == (0, "Published 3 records to clicks.\n", "")
        yield running


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    return f"127.0.0.1:{free_port()}"


@pytest.mark.long
@pytest.mark.parametrize("command", [["produce"], ["consume"], ["topic", "describe"], ["topic", "delete"]])
def test_an_unknown_topic_is_said_with_what_to_do(cluster: LocalCluster, command: list[str]) -> None:
    line = complaint(*command, "nope", "-b", cluster.bootstrap)
    assert line.startswith("topic nope does not exist: `pipeline topic create nope` creates it")


@pytest.mark.long
def test_offsets_past_the_end(cluster: LocalCluster) -> None:
    line = complaint("consume", "clicks", "--offset", "100", "-b", cluster.bootstrap)
    assert line == "--offset 100 is past the end of topic clicks: partition 0 at 3"
    at_end = pipeline("consume", "clicks", "--offset", "3", "-b", cluster.bootstrap)
    assert (at_end.returncode, at_end.stdout, at_end.stderr) == (0, "", "")
    last = pipeline("consume", "clicks", "--offset", "2", "-b", cluster.bootstrap)
    assert (last.returncode, last.stdout, last.stderr) == (0, "c\n", "")


def test_a_partition_that_is_not_there(cluster: LocalCluster) -> None:
    line = complaint("produce", "clicks", "--partition", "9", "-b", cluster.bootstrap, code=2)
    assert line == "topic clicks has no partition 9"


def test_a_topic_is_configured(cluster: LocalCluster) -> None:
    at = ("-b", cluster.bootstrap)
    assert pipeline("topic", "create", "configured", "--config", "flush.ms=9", *at).returncode == 0
    done = pipeline("topic", "configure", "configured", "--set", "retention.ms=5000", "--unset", "flush.ms", *at)
    assert (done.returncode, done.stdout) == (0, "Configured topic configured.\n"), done.stderr
    shown = pipeline("topic", "describe", "configured", *at).stdout.split("\n\n")[1].splitlines()
    assert [line.split() for line in shown] == [["SETTING", "VALUE", "SET-BY"], ["retention.ms", "5000", "topic"]]
    long = "east," * 200
    assert pipeline("topic", "configure", "configured", "--set", f"mirror.source={long}", *at).returncode == 0
    shown = pipeline("topic", "describe", "configured", *at).stdout.split("\n\n")[1].splitlines()
    assert shown[1].split() == ["mirror.source", f"{long[:100]}...", "topic"]
    told = json.loads(pipeline("topic", "describe", "configured", "--json", *at).stdout)["configs"]
    assert told["mirror.source"]["value"] == long
    assert told["retention.ms"] == {"value": "5000", "source": "topic"}
    assert told["flush.ms"]["source"] == "default"
    line = complaint("topic", "configure", "configured", "--set", "retention.m=1", *at)
    assert "Unknown topic config name: retention.m; did you mean retention.ms?" in line
    assert complaint("topic", "configure", "configured", *at, code=2).startswith("--set: is missing")


@pytest.mark.long
def test_records_are_deleted(cluster: LocalCluster) -> None:
    at = ("-b", cluster.bootstrap)
    assert pipeline("topic", "create", "shrinking", "--partitions", "2", *at).returncode == 0
    assert pipeline("produce", "shrinking", "--partition", "1", *at, given="a\nb\nc\n").returncode == 0
    done = pipeline("topic", "delete-records", "shrinking", "--before", "2", "--partition", "1", *at)
    assert [line.split() for line in done.stdout.splitlines()] == [["PARTITION", "LOG-START-OFFSET"], ["1", "2"]]
    assert pipeline("consume", "shrinking", *at).stdout == "c\n"
    assert "OFFSET_OUT_OF_RANGE" in complaint("topic", "delete-records", "shrinking", "--before", "9", *at)
    assert pipeline("topic", "delete-records", "shrinking", *at).stdout.split()[2:] == ["0", "0", "1", "3"]
    assert "has no partition 7" in complaint("topic", "delete-records", "shrinking", "--partition", "7", *at, code=2)


@pytest.mark.long
def test_a_broker_is_described(cluster: LocalCluster) -> None:
    at = ("-b", cluster.bootstrap)
    told = json.loads(pipeline("broker", "describe", "--json", *at).stdout)
    (broker,) = told["brokers"]
    assert (told["controller"], broker["id"], broker["error"]) == (1, 1, None)
    (log_dir,) = broker["log_dirs"]
    assert log_dir["partitions"] > 0
    assert 0 < log_dir["bytes"] < log_dir["disk_usable_bytes"] < log_dir["disk_bytes"]
    assert broker["versions"]["PRODUCE"] == [0, 13]
    assert broker["settings"]["broker.id"] == {"value": "1", "source": "static"}
    shown = pipeline("broker", "describe", "1", *at).stdout
    assert f"Broker 1 at 127.0.0.1:{broker['port']}" in shown
    assert log_dir["path"] in shown
    assert "broker 9 is not alive" in complaint("broker", "describe", "9", *at)


def test_a_broker_without_rack(cluster: LocalCluster) -> None:
    done = pipeline("broker", "list", "--zookeeper", cluster.zookeeper)
    assert done.stdout.splitlines()[1].split() == ["1", "127.0.0.1", cluster.bootstrap.partition(":")[2], "-"]


@pytest.mark.long
def test_files_that_cannot_be_read(cluster: LocalCluster, tmp_path: Path) -> None:
    none, broken = tmp_path / "none", tmp_path / "broken"
    broken.write_text("{")
    to_clicks = ("produce", "clicks", "-b", cluster.bootstrap)
    with_schema = (*to_clicks, "--registry", cluster.registry, "--schema")
    for command in (
        (*with_schema, str(none)),
        (*to_clicks, str(none)),
        ("schema", "register", "clicks-value", str(none), "--registry", cluster.registry),
    ):
        assert complaint(*command, code=2) == f"{none}: cannot be read: No such file or directory"
    done = pipeline(*with_schema, str(broken), given='{"page": "/"}\n')
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pipeline: not an Avro schema")
    assert complaint("local", "up", "--dir", str(broken), code=2) == f"--dir: {broken} cannot be used: File exists"


@pytest.mark.long
def test_services_are_found_by_host_and_port_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    schema = tmp_path / "visit.avsc"
    schema.write_text(SCHEMA)
    registry = cluster.registry.removeprefix("http://")
    assert pipeline("topic", "create", "visits", "-b", cluster.bootstrap).returncode == 0
    done = pipeline(
        "produce", "visits", "--schema", str(schema), "--registry", registry, "-b", cluster.bootstrap,
        given='{"page": "/home"}\n',
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    done = pipeline("consume", "visits", "--registry", registry, "-b", cluster.bootstrap)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"page": "/home"})
    listed = pipeline("schema", "list", "--registry", registry).stdout.splitlines()
    assert listed[1].split() == ["visits-value", "1", "BACKWARD"]
    audit = cluster.audit.removeprefix("http://")
    wait_for("brokers' counts", lambda: "clicks" in pipeline("audit", "report", "--audit", audit).stdout)


@pytest.mark.long
def test_a_value_without_its_schema_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    schema = tmp_path / "visit.avsc"
    schema.write_text(SCHEMA)
    at = ("-b", cluster.bootstrap, "--registry", cluster.registry)
    assert pipeline("topic", "create", "odd", "-b", cluster.bootstrap).returncode == 0
    done = pipeline("produce", "odd", "--schema", str(schema), *at, given='{"page": "/"}\n{"page": 7}\n')
    assert done.returncode == 1
    assert done.stderr.startswith("pipeline: line 2: the object does not match the schema of odd: "), done.stderr
    assert pipeline("produce", "odd", "-b", cluster.bootstrap, given="abc\n").returncode == 0
    done = pipeline("consume", "odd", *at)
    assert (done.returncode, done.stdout) == (1, '{"page": "/"}\n')
    assert done.stderr.startswith("pipeline: odd-0, offset 1: not Avro with a schema id: 3 bytes are too short")


def test_a_topic_that_was_not_counted(cluster: LocalCluster) -> None:
    done = pipeline("audit", "report", "--audit", cluster.audit, "--topic", "typo")
    assert done.returncode == 5
    assert "No counts yet for topic typo." in done.stdout.splitlines()


def test_a_missing_broker_is_reported_soon(nobody: str) -> None:
    assert complaint("topic", "list", "-b", nobody) == f"no broker answers at {nobody} within 5 s: Connection refused"


@pytest.mark.long
def test_no_zookeeper_and_one_without_brokers(nobody: str, zookeeper: str) -> None:
    assert complaint("topic", "list", "--zookeeper", nobody).startswith(f"no ZooKeeper answers at {nobody} within 5 s")
    assert (
        complaint("topic", "list", "--zookeeper", zookeeper)
        == f"no broker is registered in the ZooKeeper at {zookeeper}"
    )


def test_no_address_is_named_twice(nobody: str) -> None:
    line = complaint("mirror", "status", "--mirror", nobody)
    assert line == f"http://{nobody}/v1/status cannot be reached: Connection refused"


def run_on_terminal(*arguments: str, given: bytes) -> bytes:
    """What a command writes to a terminal that is its stdout and stderr."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments], stdin=subprocess.PIPE, stdout=end, stderr=end
    ) as process:
        os.close(end)
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()
        shown = bytearray()
        try:
            while chunk := os.read(terminal, 4096):
                shown += chunk
        except OSError:  # how a terminal says that its other end is closed
            pass
    os.close(terminal)
    assert process.returncode == 0, shown
    return bytes(shown)


def test_progress_is_drawn_on_a_terminal(cluster: LocalCluster) -> None:
    shown = run_on_terminal("produce", "clicks", "-b", cluster.bootstrap, given=b"d\n")
    assert b"Publishing to clicks" in shown
    assert b"Published 1 record to clicks." in shown


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = complaint("local", "up", "--port", str(port), "--dir", str(tmp_path))
    assert line == f"port {port} is in use: choose another --port, or 0 for free ports"
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
