"""A standalone Spark cluster of this machine: a master and workers as processes of their own, which a test may kill."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from pipeline.processes import free_port

READY_S = 120
HOME = Path(pyspark.__file__).parent


@dataclass
class SparkCluster:
    """The master's URL, and the processes of the workers: each leads a session that holds its executors, too."""

    master: str
    folder: Path
    workers: list[Any] = field(default_factory=list)

    def kill_worker(self, number: Any) -> None:
        """Kill a worker and its executors."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)


def _start(folder: Any, name: Any, *arguments: Any) -> Any:
    java = f"{os.environ['JAVA_HOME']}/bin/java" if "JAVA_HOME" in os.environ else "java"
    command = [java, "-Xmx256m", "-cp", f"{HOME}/jars/*", *map(str, arguments)]
    own = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SCALA_VERSION": "2.13"}
    environment = os.environ | own
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


@contextmanager
def spark_cluster(folder: Path, *, workers: int) -> Iterator[SparkCluster]:
    """A cluster whose workers, of one core each, have registered."""
    port, page = free_port(), free_port()
    address = ("--host", "127.0.0.1", "--port", port, "--webui-port", page)
    started = [_start(folder, "master", "org.apache.spark.deploy.master.Master", *address)]
    cluster = SparkCluster(f"spark://127.0.0.1:{port}", folder)
    try:
        for number in range(workers):
            own = ("--host", "127.0.0.1", "--port", 0, "--webui-port", 0, "-c", 1, "-m", "1g")
            place = ("-d", folder / f"worker-{number}")
            worker = "org.apache.spark.deploy.worker.Worker"
            cluster.workers.append(_start(folder, f"worker-{number}", worker, *own, *place, cluster.master))
        started += cluster.workers
        deadline = time.monotonic() + READY_S
        while _registered(page) < workers:
            assert time.monotonic() < deadline, (folder / "master.log").read_text()[-4000:]
            time.sleep(0.1)
        yield cluster
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _registered(page: Any) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=READY_S) as answer:
            return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])
    except (OSError, json.JSONDecodeError):  # not listening yet; or a page, as long as the handler of JSON is not added
        return 0
