"""The drivers, each in a process of its own: our load job, and a job of Spark 4.0 with its own Kafka source.

A driver starts its Spark session, runs a first job, and prints `ready`; it loads when it reads a line, and prints its
figures as JSON. Invariant: a run gives figures only if as many records are in files as the topic has.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.broker.servers import Server
from bench.processes import ServerProcess, peak_resident_bytes, tree
from pipeline.cli.demo.access_log import sample_schema
from pipeline.processes import free_port
from tests.support.jars import REPOSITORY, Artifact, fetch_jars

if TYPE_CHECKING:
    from bench.load.rows import Topic

START_S = 120
LOAD_S = 900
LOOK_S = 0.05
SPARK_PYTHON = REPOSITORY / ".cache" / "spark-4.0" / "bin" / "python"
SPARK_REVISION = "4.0.0"
CONNECTORS = ("spark-sql-kafka-0-10_2.13", "spark-avro_2.13")
NEEDED_JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2", "spark-avro")
"""Of all that the connectors depend on, what PySpark does not carry itself."""


class RunError(Exception):
    """A load failed or is not complete; says how."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Time from the plan to the commit in s; the largest resident memory of a Python worker in bytes, 0 without."""

    seconds: float
    worker_bytes: int


def registry_of(server: Server, directory: Path) -> ServerProcess:
    """A schema registry over the broker, not running yet."""
    port = free_port()
    config = directory / "registry.toml"
    given = {"bootstrap.servers": server.bootstrap, "http.listen": f"127.0.0.1:{port}"}
    config.write_text("".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in given.items()))
    command = [sys.executable, "-m", "pipeline", "registry", "start", "--config", str(config)]
    return ServerProcess(command, port, directory / "registry.log")


def run_driver(
    program: str, topic: "Topic", file_format: str, places: tuple[str, str, str], directory: Path
) -> LoadRun:
    """Load a topic once. `places`: bootstrap, topic and registry. Raises RunError."""
    bootstrap, name, registry = places
    directory.mkdir(parents=True)
    asked = {
        "bootstrap": bootstrap,
        "topic": name,
        "registry": registry,
        "directory": str(directory / "files"),
        "format": file_format,
        "schema": sample_schema() if topic.values.startswith("Avro") else "",
        "jars": "" if program == "ours" else ",".join(_connectors()),
    }
    if program == "ours":
        command = [sys.executable, "-m", "bench.load.ours", json.dumps(asked)]
    else:
        command = [str(SPARK_PYTHON), str(Path(__file__).with_name("peer.py")), json.dumps(asked)]
    with (directory / "driver.log").open("wb") as log, _driver(command, log) as driver:
        _expect(driver, b"ready", directory, START_S)
        with _watched_workers(driver.pid) as peaks:
            assert driver.stdin is not None
            driver.stdin.write(b"\n")
            driver.stdin.flush()
            figures: dict[str, Any] = json.loads(_expect(driver, b"{", directory, LOAD_S))
    if figures["records"] != topic.records:
        raise RunError(f"{program}: {figures['records']} of {topic.records} records are in files")
    return LoadRun(figures["seconds"], max(peaks.values(), default=0))


@contextmanager
def _driver(command: list[str], log: Any) -> "Iterator[subprocess.Popen[bytes]]":
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
    ) as process:
        try:
            yield process
            process.communicate(timeout=60)
        finally:
            process.kill()


def _expect(driver: "subprocess.Popen[bytes]", begin: bytes, directory: Path, seconds: float) -> bytes:
    """The driver's next line with this begin. Ends a driver that says nothing for too long."""
    assert driver.stdout is not None
    timer = threading.Timer(seconds, driver.kill)
    timer.start()
    try:
        line = driver.stdout.readline()
        while line and not line.startswith(begin):  # Spark's own lines
            line = driver.stdout.readline()
    finally:
        timer.cancel()
    if not line:
        tail = (directory / "driver.log").read_bytes()[-1500:].decode(errors="replace")
        raise RunError(f"the driver ended: {tail.strip().splitlines()[-1:] or 'no word'}")
    return line


@contextmanager
def _watched_workers(driver: int) -> Iterator[dict[int, int]]:
    """Peak resident memory by process id of the Python processes below the driver."""
    peaks: dict[int, int] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            for pid in tree(driver)[1:]:
                with suppress(OSError, KeyError, ValueError):
                    if "python" in Path(f"/proc/{pid}/comm").read_text():
                        peaks[pid] = max(peaks.get(pid, 0), peak_resident_bytes(pid))

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield peaks
    finally:
        ended.set()
        watch.join()


def _connectors() -> list[str]:
    jars = fetch_jars(*(Artifact("org.apache.spark", name, SPARK_REVISION) for name in CONNECTORS))
    return [str(path) for path in sorted(jars.iterdir()) if path.name.startswith(NEEDED_JARS)]
