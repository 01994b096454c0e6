"""A broker as a process of its own, started the way a user starts it, for tests that are not written in trio."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_DEADLINE_S = 240.0
STOP_DEADLINE_S = 90.0


@dataclass(slots=True)
class BrokerProcess:
    """`pipeline broker start`."""

    broker_id: int
    port: int
    config: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def resident_mb(self) -> float:
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def launch(self) -> None:
        """Start it without waiting."""
        command = [sys.executable, "-m", "pipeline", "broker", "start", "--config", str(self.config)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> float:
        """Start it and wait until it is ready; returns how many seconds that took."""
        started = time.monotonic()
        self.launch()
        self.wait_for("broker_ready")
        return time.monotonic() - started

    def wait_for(self, event: str) -> None:
        """Wait until it has logged this."""
        assert self.process is not None
        deadline = time.monotonic() + START_DEADLINE_S
        while event not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no {event} (exit code {self.process.poll()}):\n{self.log.read_text()[-4000:]}")
            time.sleep(0.01)

    def stop(self) -> int:
        """Stop it as an operator does; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_DEADLINE_S)

    def kill(self) -> None:
        """End it without warning."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def configured_broker(
    directory: Path, zookeeper: str, *, broker_id: int, port: int, **settings: object
) -> Iterator[BrokerProcess]:
    """A broker that is not running yet, killed at the end. Dots of settings are written as underscores."""
    directory.mkdir(parents=True, exist_ok=True)
    given = {
        "broker.id": broker_id,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(directory / "data"),
        "zookeeper.connect": zookeeper,
        "offsets.topic.replication.factor": 1,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    config = directory / "broker.toml"
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n" for key, value in given.items()
    ]
    config.write_text("".join(lines))
    broker = BrokerProcess(broker_id, port, config, directory / "broker.log")
    try:
        yield broker
    finally:
        broker.kill()
