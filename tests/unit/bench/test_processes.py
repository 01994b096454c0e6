"""Figures of a process and its children, and servers that are started and ended."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import ServerProcess, cpu_s, ended, peak_resident_bytes, resident_bytes, tree
from pipeline.processes import free_port

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); input()"], stdin=sys.stdin)
child.wait()
"""


def test_memory_and_cpu_time_of_child_processes_count() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdout.readline()
        pids = tree(parent.pid)
        assert pids[0] == parent.pid
        assert len(pids) == 2
        assert resident_bytes(parent.pid) > resident_bytes(pids[1]) > 1_000_000
        assert cpu_s(parent.pid) >= cpu_s(pids[1])
        parent.stdin.write(b"\n")


def test_a_server_is_started_waited_for_and_ended(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with ended(ServerProcess(command, port, tmp_path / "log")) as server:
        server.launch()
        server.wait_for_port()
        pid = server.pid
        assert tree(pid) == [pid]
    with pytest.raises(RuntimeError, match="ended"):
        server.check()


def test_a_server_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    server = ServerProcess([sys.executable, "-c", "raise SystemExit('no good')"], free_port(), tmp_path / "log")
    server.launch()
    with pytest.raises(RuntimeError, match="no good"):
        server.wait_for_port()


def test_the_peak_of_a_process_is_what_it_once_had() -> None:
    program = "x = b'x' * 50_000_000; del x; print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert peak_resident_bytes(process.pid) > max(50_000_000, resident_bytes(process.pid))
        process.stdin.write(b"\n")
