"""A driver of loads that stops at their steps: one load for each line of settings on stdin, until it is killed.

python -m tests.support.stepped_driver '{"spark.master": "local[2,3]", ...}'
"""

import json
import os
import queue
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.load_steps import END, NAME, PORT, Arrival, StepServer, at_step, stop_at_steps

DEADLINE_S = 240.0


class Driver:
    """A driver as a process of its own, as the test sees it."""

    def __init__(self, server: StepServer, name: str, process: Any, log: Any) -> None:
        self.name = name
        self._server = server
        self._process = process
        self._log = log

    def load(self, settings: Any, *, stop_at: str | None = None) -> None:
        """Begin a load. Its first process at the step `stop_at` is held."""
        if stop_at is not None:
            self._server.expect(self.name, stop_at)
        self._process.stdin.write(json.dumps(settings).encode() + b"\n")
        self._process.stdin.flush()

    def next(self) -> Arrival:
        """Wait for the process that is held, or for the end of the load."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return self._server.arrivals[self.name].get(timeout=1)
            except queue.Empty:
                assert self._process.poll() is None, self.said()
                assert time.monotonic() < deadline, self.said()

    def end(self) -> str:
        """Wait for the end of the load, and return its outcome."""
        arrival = self.next()
        assert arrival.step == END, arrival
        arrival.go_on()
        return arrival.outcome

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def said(self) -> Any:
        return self._log.read_text()[-6000:]


@contextmanager
def stepped_driver(server: StepServer, name: str, folder: Any, **spark: str) -> Iterator[Driver]:
    """A driver that starts its Spark at once, and loads when it is told to."""
    server.arrivals[name] = queue.Queue()
    root = str(Path(__file__).parents[2])
    environment = os.environ | {PORT: str(server.port), NAME: name, "PYTHONPATH": root}
    command = [sys.executable, "-m", "tests.support.stepped_driver", json.dumps(spark)]
    log = folder / f"{name}.log"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment, cwd=root
        ) as process,
    ):
        try:
            yield Driver(server, name, process, log)
        finally:
            process.kill()


def main() -> None:
    stop_at_steps()

    from pipeline.errors import PipelineError
    from pipeline.hadoop.load.config import LoadConfig
    from pipeline.hadoop.load.job import run_load
    from pipeline.hadoop.load.spark_session import SparkApplication, SparkSettings

    own = {"spark.python.daemon.module": "tests.support.stepped_daemon"} | json.loads(sys.argv[1])
    spark = SparkApplication(SparkSettings(memory="512m", is_short=True, settings=own))
    started = spark.without_sql()
    for line in sys.stdin:
        try:
            result = run_load(
                started, LoadConfig.from_settings(json.loads(line)), clock=lambda: time.time_ns() // 1_000_000
            )
            outcome = "committed" if result.manifest else "nothing new"
        except PipelineError as error:
            traceback.print_exc()
            outcome = type(error).__name__
        at_step(END, outcome)
    spark.stop()


if __name__ == "__main__":
    main()
