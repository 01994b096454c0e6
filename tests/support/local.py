"""`pipeline local up` as a child process: the way a user starts brokers, for tests that are not written in trio."""

import json
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Local:
    """What the command said when it was ready."""

    bootstrap: str
    zookeeper: str
    pids: dict[str, int]
    process: subprocess.Popen[bytes]
    registry: str | None = None
    """Its URL, with `--registry`."""


@contextmanager
def running_local(directory: Path, *options: str) -> Iterator[Local]:
    """`pipeline local up --dir DIRECTORY OPTIONS...`, stopped by SIGTERM at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pipeline", "local", "up", "--port", "0", "--dir", str(directory), *options]
    with (directory / "local.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
    try:
        ready = json.loads(_first_line(process, directory / "local.log"))
        yield Local(ready["bootstrap"], ready["zookeeper"], ready["pids"], process, ready.get("registry"))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _first_line(process: subprocess.Popen[bytes], log: Path) -> bytes:
    assert process.stdout is not None
    deadline = time.monotonic() + START_DEADLINE_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if selector.select(deadline - time.monotonic()):
            line = process.stdout.readline()
            if line:
                return line
    raise RuntimeError(
        f"`pipeline local up` was not ready (exit code {process.poll()}); log:\n{log.read_text()[-4000:]}"
    )
