"""Services as child processes of a command: each has its own settings file, and is ready when `/readyz` says so."""

import ssl
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import trio

from pipeline.cli.terminal.settings import write_settings
from pipeline.coordination.embedded import ZooKeeperProcess
from pipeline.diagnostics import get_logger
from pipeline.processes import BROKER_STOP_GRACE_S, STOP_GRACE_S, ChildProcess, free_port, start_process

READY_TIMEOUT_S = 60.0
PROBE_TIMEOUT_S = 2.0

logger = get_logger(__name__)


class Unit(Protocol):
    """A process beside the command, which can be started again after it ended."""

    @property
    def name(self) -> str:
        """Name for users, such as `broker-1`."""

    async def start(self) -> int:
        """Start the process, wait until it is ready, and return its id."""

    async def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""

    async def stop(self) -> None:
        """Stop the process cleanly."""


@dataclass(slots=True)
class ZooKeeperUnit:
    """A ZooKeeper in a directory, on the same port in every life."""

    server: ZooKeeperProcess
    name: str = "zookeeper"

    async def start(self) -> int:
        """Start the process, wait until it answers, and return its id."""
        return await self.server.start()

    async def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""
        return await self.server.wait()

    async def stop(self) -> None:
        """Stop the process cleanly."""
        await self.server.stop()


@dataclass(slots=True)
class ServiceUnit:
    """`pipeline <noun> start --config FILE` in a directory that holds its settings and its log."""

    name: str
    noun: str
    directory: Path
    settings: Mapping[str, Any]
    http_port: int = field(default_factory=free_port)
    authority: Path | None = None
    """File with the authority that has signed the server's certificate, if the HTTP side speaks TLS."""
    program: Sequence[str] = (sys.executable, "-m", "pipeline")
    _child: ChildProcess | None = None

    @property
    def url(self) -> str:
        """URL of the service's HTTP side."""
        return f"{'http' if self.authority is None else 'https'}://127.0.0.1:{self.http_port}"

    async def start(self) -> int:
        """Write the settings, start the process, wait until it is ready, and return its id. Logs if it is unhealthy.

        Raises ProcessEndedError with the end of the service's log, DeadlineExceededError.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.noun}.toml"
        write_settings(path, {**self.settings, "http.listen": f"127.0.0.1:{self.http_port}"})
        command = [*self.program, self.noun, "start", "--config", str(path)]
        self._child = start_process(self.name, command, log=self.directory / f"{self.noun}.log")
        try:
            await self._child.wait_until(self._is_ready, READY_TIMEOUT_S)
            answer = await self._ask("healthz")
        except BaseException:
            await self._child.stop()
            raise
        told = {} if answer is None else answer.json()
        for reason in (*told.get("warnings", ()), *([told["reason"]] if "reason" in told else ())):
            logger.warning("not_healthy", name=self.name, reason=reason)
        return self._child.pid

    async def wait(self) -> int:
        """Wait until the process ends, and return its exit code."""
        assert self._child is not None
        return await self._child.wait()

    async def stop(self) -> None:
        """Stop the process cleanly, if it was ever started."""
        if self._child is not None:
            await self._child.stop(BROKER_STOP_GRACE_S if self.noun == "broker" else STOP_GRACE_S)

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        assert self._child is not None
        self._child.kill()

    async def _is_ready(self) -> bool:
        """Return True if the service is ready, or only lacks what no restart brings, such as room on a disk."""
        answer = await self._ask("readyz")
        if answer is None or answer.status_code == 200:
            return answer is not None
        health = await self._ask("healthz")
        return health is not None and answer.json().get("reason") in health.json().get("warnings", ())

    async def _ask(self, path: str) -> httpx.Response | None:
        """Ask the service over HTTP; None if it does not answer."""
        try:
            trust = True if self.authority is None else ssl.create_default_context(cafile=self.authority)
            async with httpx.AsyncClient(timeout=PROBE_TIMEOUT_S, trust_env=False, verify=trust) as client:
                return await client.get(f"{self.url}/{path}")
        except httpx.TransportError:
            return None


async def stop_in_reverse(stages: Sequence[Sequence[Unit]]) -> None:
    """Stop units, the last stage first and those of a stage together, even when cancelled."""
    with trio.CancelScope(shield=True):
        for stage in reversed(stages):
            async with trio.open_nursery() as nursery:
                for unit in stage:
                    nursery.start_soon(unit.stop)
