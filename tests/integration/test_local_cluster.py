"""`pipeline local up` as its users meet it, and the LocalCluster that wraps it for tests."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.processes import ProcessEndedError, free_port
from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import wait_for

QUIET = {"log_level": 0}
DEADLINE_S = 180


def pipeline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
        check=False,
    )


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def create_topic(bootstrap: str, name: str, *, partitions: int = 1, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(DEADLINE_S)


def write(bootstrap: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    failures: list[object] = []
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(DEADLINE_S) == 0
    assert not failures


def read(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **QUIET})
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes] = []

    def enough() -> bool:
        values.extend(message.value() or b"" for message in consumer.consume(count, timeout=1))
        return len(values) >= count

    wait_for("records", enough)
    consumer.close()
    return values


@pytest.fixture
def up(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """The command itself with its first line, ended by the test."""
    command = [sys.executable, "-m", "pipeline", "local", "up", "--port", "0", "--dir", str(tmp_path / "data")]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_local_up_prints_a_line_of_json_and_a_signal_stops_every_process(
    up: tuple[subprocess.Popen[str], dict[str, object]], signal_number: signal.Signals
) -> None:
    process, ready = up
    assert set(ready) == {"bootstrap", "zookeeper", "http", "pids"}
    pids = ready["pids"]
    assert isinstance(pids, dict)
    assert set(pids) == {"zookeeper", "broker-1"}
    assert all(map(is_running, pids.values()))
    assert re.fullmatch(r"127\.0\.0\.1:\d+", str(ready["bootstrap"]))
    assert re.fullmatch(r"127\.0\.0\.1:\d+", str(ready["zookeeper"]))
    process.send_signal(signal_number)
    rest, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, rest) == (0, "")
    assert not any(map(is_running, pids.values()))


def test_a_signal_while_starting_stops_what_was_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "local", "up", "--port", "0", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        wait_for("ZooKeeper's log", (tmp_path / "zookeeper" / "zookeeper.log").exists)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, "")
    found = re.search(r"^clientPort=(\d+)$", (tmp_path / "zookeeper" / "zoo.cfg").read_text(), re.MULTILINE)
    assert found is not None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(found[1]))) != 0


@pytest.mark.long
def test_data_are_kept_and_taken_up_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "kept", partitions=2)
        write(cluster.bootstrap, "kept", [b"one", b"two"], partition=1)
        assert cluster.stop() == 0
    with LocalCluster(tmp_path) as cluster:
        write(cluster.bootstrap, "kept", [b"three"], partition=1)
        assert read(cluster.bootstrap, "kept", 3, partition=1) == [b"one", b"two", b"three"]


@pytest.mark.long
def test_two_brokers_with_services_on_chosen_ports() -> None:
    port = free_pair_of_ports()
    with LocalCluster(brokers=2, port=port, settings={"num.partitions": 4}, registry=True, audit=True) as cluster:
        assert cluster.bootstrap == f"127.0.0.1:{port},127.0.0.1:{port + 1}"
        assert set(cluster.pids) == {"zookeeper", "broker-1", "broker-2", "registry", "audit"}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        wait_for("both brokers", lambda: ports_of(admin) == {port, port + 1})  # each hears of the other in its own time
        create_topic(cluster.bootstrap, "spread", partitions=-1)
        # The other broker hears of a topic a moment after the one that made it.
        wait_for("leaders", lambda: leaders_of(admin, "spread") == [1, 1, 2, 2])
        for partition in range(4):
            write(cluster.bootstrap, "spread", [b"%d" % partition], partition)
        assert [read(cluster.bootstrap, "spread", 1, partition) for partition in range(4)] == [
            [b"0"],
            [b"1"],
            [b"2"],
            [b"3"],
        ]
        with urllib.request.urlopen(f"{cluster.registry}/subjects", timeout=30) as answer:
            assert json.load(answer) == []
        with urllib.request.urlopen(f"{cluster.audit}/healthz", timeout=30) as answer:
            assert answer.status == 200
        old_pid = cluster.kill("registry")
        assert cluster.wait_restarted("registry") != old_pid
        with urllib.request.urlopen(f"{cluster.registry}/subjects", timeout=30) as answer:
            assert json.load(answer) == []
        directory = cluster.directory
    assert not directory.exists()


def ports_of(admin: AdminClient) -> set[int]:
    return {broker.port for broker in admin.list_topics(timeout=DEADLINE_S).brokers.values()}


def leaders_of(admin: AdminClient, topic: str) -> list[int]:
    return sorted(p.leader for p in admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions.values())


def free_pair_of_ports() -> int:
    """The first of two that nobody else gets while this process lives, as `free_port` does it."""
    while True:
        port = free_port()
        reservation = socket.socket()
        try:
            reservation.bind(("127.0.0.1", port + 1))  # refused if anybody else has reserved it
        except (OSError, OverflowError):
            reservation.close()
            continue
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for the server that is to listen there
        reservation.detach()
        return port


@pytest.mark.long
def test_a_process_that_dies_is_restarted_on_its_old_port(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "topic")
        write(cluster.bootstrap, "topic", [b"before"])
        for name in ("broker-1", "zookeeper"):
            old_pid = cluster.kill(name)
            new_pid = cluster.wait_restarted(name)
            assert new_pid != old_pid
            assert cluster.pids[name] == new_pid
            assert is_running(new_pid)
        write(cluster.bootstrap, "topic", [b"after"])
        assert read(cluster.bootstrap, "topic", 2) == [b"before", b"after"]


@pytest.mark.long
def test_a_process_that_dies_stays_dead_with_restart_after_0() -> None:
    with LocalCluster(restart_after_s=0) as cluster:
        cluster.kill("broker-1")
        with pytest.raises(DeadlineExceededError, match="broker-1 was not started again"):
            cluster.wait_restarted("broker-1", timeout_s=1)
        with pytest.raises(PipelineError, match="no broker-1 runs; there are zookeeper"):
            cluster.kill("broker-1")
        assert is_running(cluster.pids["zookeeper"])
        with pytest.raises(PipelineError, match="no registry"):
            _ = cluster.registry
        assert cluster.stop() == 0


def test_a_cluster_that_did_not_start_says_why() -> None:
    cluster = LocalCluster(settings={"num.partition": 2})
    with pytest.raises(ProcessEndedError, match=r"num\.partition: is not a setting .* did you mean num\.partitions"):
        cluster.start()
    assert cluster.pids == {}
    assert not cluster.directory.exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "num.partitions"], "key=value"),
        (["--set", "no.such.key=1"], "no.such.key"),
        (["--set", "message.max.bytes=many"], "message.max.bytes"),
        (["--brokers", "0"], "--brokers"),
        (["--restart-after", "-1"], "--restart-after"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage_ends_with_2_names_what_is_wrong_and_leaves_nothing(
    tmp_path: Path, options: list[str], message: str
) -> None:
    done = pipeline("local", "up", *options, TMPDIR=str(tmp_path))
    assert not list(tmp_path.glob("pipeline-*"))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = pipeline("local", "up", "--port", str(port))
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_java_is_one_line(tmp_path: Path) -> None:
    done = pipeline("local", "up", "--port", "0", JAVA_HOME="", PATH=str(tmp_path))
    assert done.returncode == 2
    assert re.fullmatch(r"pipeline: .*install Java 17.*\n", done.stderr)


@pytest.mark.long
def test_a_topic_made_while_brokers_are_dead_but_registered_is_led_once_they_are_back(tmp_path: Path) -> None:
    """Kills alone: nobody lost anything, so nothing may stay offline."""
    with LocalCluster(tmp_path / "data", brokers=3, restart_after_s=3) as cluster:
        survivor = cluster.bootstrap.split(",")[0]
        cluster.kill("broker-2")
        cluster.kill("broker-3")
        create_topic(survivor, "made", partitions=6, replicas=2)
        for broker in ("broker-2", "broker-3"):
            cluster.wait_restarted(broker)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})

        def are_whole() -> bool:
            partitions = admin.list_topics("made", timeout=DEADLINE_S).topics["made"].partitions.values()
            return len(partitions) == 6 and all(found.leader > 0 and len(found.isrs) == 2 for found in partitions)

        wait_for("leaders and full ISRs", are_whole)
        for partition in range(6):
            write(cluster.bootstrap, "made", [b"value"], partition)
