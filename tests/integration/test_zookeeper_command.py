"""`pipeline zookeeper start`, as units and containers run it."""

import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.processes import free_port

pytestmark = pytest.mark.long

DEADLINE_S = 60.0


def command(config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "pipeline", "zookeeper", "start", "--config", str(config), *arguments]


def settings(directory: Path) -> tuple[Path, int]:
    port, path = free_port(), directory / "zookeeper-3.properties"
    path.write_text(
        f"# a comment\ndataDir = {directory / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\n4lw.commands.whitelist=ruok\n"
    )
    return path, port


def ask(port: int) -> bytes:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"ruok")
        return connection.recv(10)
    return b""


def test_a_server_answers_under_its_id_with_the_process_id_of_the_command_and_logs_json(tmp_path: Path) -> None:
    config, port = settings(tmp_path)
    with subprocess.Popen(command(config, "--id", "3"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            deadline_s = time.monotonic() + DEADLINE_S
            while ask(port) != b"imok":
                assert process.poll() is None
                assert time.monotonic() < deadline_s
            assert "QuorumPeerMain" in Path(f"/proc/{process.pid}/cmdline").read_text()
        finally:
            process.terminate()
        output, _ = process.communicate()
    documents = [json.loads(line) for line in output.splitlines()]
    assert all({"event", "level", "timestamp"} <= set(document) for document in documents)
    assert (tmp_path / "data/myid").read_text() == "3\n"


def test_the_directory_of_another_server_is_refused(tmp_path: Path) -> None:
    config, _ = settings(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/myid").write_text("1\n")
    refused = subprocess.run(command(config, "--id", "3"), capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "says 1, not 3" in refused.stderr


def test_an_id_that_is_none_of_the_ensemble_is_refused_and_not_written(tmp_path: Path) -> None:
    config, _ = settings(tmp_path)
    with config.open("a") as file:
        file.write("server.1=127.0.0.1:1:2\nserver.2=127.0.0.1:3:4\n")
    refused = subprocess.run(command(config, "--id", "3"), capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert f"--id: 3 is none of the servers in {config}: 1, 2" in refused.stderr
    assert not (tmp_path / "data").exists()
