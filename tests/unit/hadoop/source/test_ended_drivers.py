"""A planning process of Spark whose JVM has died while brokers do not answer."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

DEADLINE_S = 40.0
"""A request to silent brokers takes a minute."""
PLANNER = """
import sys
from pipeline.hadoop.source import PipelineDataSource
source = PipelineDataSource({"kafka.bootstrap.servers": sys.argv[1], "subscribe": "t"})
source.streamReader(source.schema()).initialOffset()
"""
DRIVER = """
import subprocess, sys
planner = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print(planner.pid, flush=True)
planner.wait()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_planning_process_ends_with_spark() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S * 2)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, PLANNER, address], stdout=subprocess.PIPE, text=True)
        assert driver.stdout is not None
        planner = int(driver.stdout.readline())
        try:
            connection, _ = silent.accept()  # the planner asks, and gets no answer
            with connection:
                driver.kill()
                driver.wait()
                deadline = time.monotonic() + DEADLINE_S
                while is_running(planner):
                    assert time.monotonic() < deadline, "the planner outlives Spark"
                    time.sleep(0.1)
        finally:
            driver.stdout.close()
            if is_running(planner):
                os.kill(planner, signal.SIGKILL)
