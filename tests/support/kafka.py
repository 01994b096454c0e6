"""A real Apache Kafka on this machine (KRaft, every node broker and controller), the peer of tests and benchmarks."""

import base64
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.processes import free_port
from tests.support.jars import Artifact, fetch_jars, java, pyspark_jars

KAFKA_REVISION = "4.1.1"
START_DEADLINE_S = 240.0
STOP_DEADLINE_S = 60.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Kafka:
    """A running node."""

    bootstrap: str
    pid: int


def kafka_jars() -> Path:
    """Server and tools of Apache Kafka."""
    return fetch_jars(
        Artifact("org.apache.kafka", "kafka_2.13", KAFKA_REVISION),
        Artifact("org.apache.kafka", "kafka-tools", KAFKA_REVISION),
    )


SHORT_LIVED = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For programs that end before optimizing them would pay."""


def run_kafka_class(main_class: str, *arguments: str) -> str:
    """Run a class of Kafka's tools to its end and return what it printed."""
    command = [java(), *SHORT_LIVED, "-cp", f"{kafka_jars()}/*", main_class, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def java_with_compiler() -> list[str]:
    """The command that runs a source file with Kafka's jars, to be followed by the file and its class.

    A compiler that lies among pyspark's jars takes it, so that no JDK is needed.
    """
    found = shutil.which(java())
    assert found is not None
    compiler = [str(jar) for jar in pyspark_jars().glob("*.jar") if jar.name.startswith(("janino", "commons-compiler"))]
    path = ":".join([f"{kafka_jars()}/*", *compiler])
    return [found, *SHORT_LIVED, "-cp", path, "org.codehaus.janino.SimpleCompiler"]


HEAP = ("-Xmx1G", "-Xms1G")
"""What kafka-server-start.sh gives the server."""
COLLECTOR = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
"""What all scripts of Apache Kafka give Java."""
MEASURED = (*HEAP, *COLLECTOR)
UNMEASURED = ("-Xmx1G", *SHORT_LIVED[1:])
"""For a server that only a few tests ask."""


PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
"""Protocols of listeners by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaNode:
    """One of the nodes of a cluster, which listens on two ports of `host`."""

    number: int
    host: str
    port: int
    controller_port: int


def prepare_kafka(
    directory: Path,
    port: int,
    settings: Mapping[str, object] | None = None,
    *,
    options: Sequence[str] = MEASURED,
    listeners: Mapping[str, int] | None = None,
) -> list[str]:
    """Formats a node below `directory` and gives the command that runs it, with `options` of Java.

    `listeners`: further ports of the host by their protocol.
    """
    node = KafkaNode(number=1, host="127.0.0.1", port=port, controller_port=free_port())
    replicas = {
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    more = "".join(f",{protocol}://{node.host}:{at}" for protocol, at in (listeners or {}).items())
    given: dict[str, object] = {
        "listeners": f"PLAINTEXT://{node.host}:{port}{more},CONTROLLER://{node.host}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{node.host}:{port}{more}",
        "listener.security.protocol.map": PROTOCOLS,
    }
    given |= {**replicas, **(settings or {})}
    return prepare_kafka_nodes({node: directory}, given, options)[node]


def prepare_kafka_nodes(
    directories: Mapping[KafkaNode, Path], settings: Mapping[str, object], options: Sequence[str] = MEASURED
) -> dict[KafkaNode, list[str]]:
    """Formats the nodes of a cluster below their directories and gives the commands that run them."""
    cluster_id = base64.urlsafe_b64encode(b"k" + uuid.uuid4().bytes[1:]).decode().rstrip("=")  # none begins with "-"
    voters = ",".join(f"{node.number}@{node.host}:{node.controller_port}" for node in directories)
    commands = {}
    for node, directory in directories.items():
        properties = _write_properties(node, directory, voters, settings)
        run_kafka_class("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties))
        commands[node] = [java(), *options, "-cp", f"{kafka_jars()}/*", "kafka.Kafka", str(properties)]
    return commands


def _write_properties(node: KafkaNode, directory: Path, voters: str, settings: Mapping[str, object]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    given = {
        "process.roles": "broker,controller",
        "node.id": node.number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{node.host}:{node.port},CONTROLLER://{node.host}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{node.host}:{node.port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": directory / "logs",
        "auto.create.topics.enable": "false",
        **settings,
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()), encoding="utf-8")
    return properties


@contextmanager
def running_kafka(
    directory: Path,
    settings: Mapping[str, object] | None = None,
    *,
    port: int | None = None,
    listeners: Mapping[str, int] | None = None,
) -> Iterator[Kafka]:
    """Formats and starts a node below `directory`, waits until it accepts connections, and stops it at the end.

    `listeners`: further ports by their protocol.
    """
    port = port or free_port()
    command = prepare_kafka(directory, port, settings, options=UNMEASURED, listeners=listeners)
    with (directory / "kafka.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        _wait_for_port(process, port, directory / "kafka.log")
        yield Kafka(bootstrap=f"127.0.0.1:{port}", pid=process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"Apache Kafka ended with {process.returncode}; see {log}\n{log.read_text()[-2000:]}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(POLL_S)
        else:
            return
    raise TimeoutError(f"Apache Kafka was not ready within {START_DEADLINE_S:.0f} s; see {log}")


if __name__ == "__main__":
    print(kafka_jars(), file=sys.stderr)
