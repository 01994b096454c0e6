"""Schema registries in processes of their own over one cluster, for tests that are not written in trio."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from pipeline.cli.terminal.settings import write_settings
from pipeline.processes import free_port

DEADLINE_S = 120
POLL_S = 0.02
STOP_S = 30


class RegistryProcess:
    """A registry at one port, which may be killed and started again."""

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{port}"
        self.log = directory / "registry.log"
        self._config = directory / "registry.toml"
        write_settings(self._config, {**settings, "http.listen": f"127.0.0.1:{port}"})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start the process, and do not wait."""
        command = [sys.executable, "-m", "pipeline", "registry", "start", "--config", str(self._config)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> None:
        """Start the process, and wait until it is ready."""
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the registry answers."""
        assert self._process is not None
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            try:
                if httpx.get(f"{self.url}/readyz", timeout=DEADLINE_S).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(POLL_S)
        raise TimeoutError(f"{self.url} is not ready; its log ends: {self.log.read_text()[-3000:]}")

    def wait_ended(self) -> str:
        """Wait until the process ends by itself, and return its log."""
        assert self._process is not None
        self._process.wait(DEADLINE_S)
        return self.log.read_text()

    def kill(self) -> None:
        """End the process as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the process cleanly, also one that is paused."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def metric(self, name: str) -> float:
        """Return a sample without labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=DEADLINE_S).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    def is_writer(self) -> bool:
        """True if the registry says that it is the writer."""
        return self.metric("registry_is_writer") == 1

    def journal(self) -> dict[str, Any]:
        """Return what the registry says of its log, once it can."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            answer = httpx.get(f"{self.url}/journal", timeout=DEADLINE_S)
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
            time.sleep(POLL_S)
        raise TimeoutError(f"{self.url} does not reach its log: {answer.text}")

    def wait_applied(self) -> None:
        """Wait until the registry has applied what its log has now."""
        end = self.journal()["offset"]
        deadline = time.monotonic() + DEADLINE_S
        while self.journal()["applied"] < end:
            assert time.monotonic() < deadline, f"{self.url} does not reach offset {end}"
            time.sleep(POLL_S)


@contextmanager
def running_registries(
    directory: Path, bootstrap: str, count: int, settings: Mapping[str, Any]
) -> Iterator[list[RegistryProcess]]:
    """Run registries over a cluster until the block ends."""
    given = {"bootstrap.servers": bootstrap, **settings}
    registries = [RegistryProcess(directory / f"registry-{number}", given) for number in range(1, count + 1)]
    try:
        for registry in registries:
            registry.launch()
        for registry in registries:
            registry.wait_ready()
        yield registries
    finally:
        for registry in registries:
            registry.stop()
