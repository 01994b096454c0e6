"""Child processes: started, watched, and stopped by their own id, never by name.

Owns each child until it has been reaped. A child's standard input is closed and its standard error goes to a file, so
that no child shares the terminal with its parent; it runs in a session of its own, so that Ctrl-C reaches the parent
alone, which then stops its children in order.
"""

import itertools
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from pipeline.errors import DeadlineExceededError, PipelineError

STOP_GRACE_S = 10.0
POLL_INTERVAL_S = 0.05
MAX_LINE_BYTES = 64 * 1024
LOG_TAIL_BYTES = 2000
FIRST_PORT = 20_000
PORT_COUNT = 12_000

_port_numbers = itertools.count(os.getpid() * 37)


class ProcessEndedError(PipelineError):
    """A child ended before it was ready. The message holds the end of what it wrote."""


@dataclass(slots=True)
class ChildProcess:
    """One running child."""

    name: str
    process: trio.Process
    log: Path

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """False once it has ended."""
        return self.process.poll() is None

    async def wait(self) -> int:
        """Its exit code, once it has ended (negative: the signal)."""
        return await self.process.wait()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> int:
        """SIGTERM, and SIGKILL when `grace_s` is over. Completes even when cancelled."""
        with trio.CancelScope(shield=True):
            if self.running:
                self.process.send_signal(signal.SIGTERM)
                with trio.move_on_after(grace_s):
                    await self.process.wait()
            if self.running:
                self.process.kill()
            await self.process.wait()
        return self.process.returncode or 0

    def kill(self) -> None:
        """SIGKILL, at once."""
        self.process.kill()

    async def read_line(self, timeout_s: float) -> bytes:
        """The next line of its standard output (started with `stdout=True`), without the line end.

        Raises ProcessEndedError when it ends first, DeadlineExceededError after `timeout_s`.
        """
        assert self.process.stdout is not None
        line = bytearray()
        with trio.move_on_after(timeout_s):
            while not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                byte = await self.process.stdout.receive_some(1)
                if not byte:
                    raise ProcessEndedError(await self._how_it_ended())
                line += byte
            return bytes(line[:-1])
        raise DeadlineExceededError(f"{self.name} said nothing within {timeout_s:.0f} s; see {self.log}")

    async def wait_until(self, ready: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Poll `ready` until it holds.

        Raises ProcessEndedError when the child ends first, DeadlineExceededError after `timeout_s`.
        """
        with trio.move_on_after(timeout_s):
            while not await ready():
                if not self.running:
                    raise ProcessEndedError(await self._how_it_ended())
                await trio.sleep(POLL_INTERVAL_S)
            return
        raise DeadlineExceededError(f"{self.name} was not ready within {timeout_s:.0f} s; see {self.log}")

    async def _how_it_ended(self) -> str:
        code = await self.process.wait()
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"{self.name} ended with exit code {code}; see {self.log}, which ends:\n{tail}"


async def start_process(
    name: str, command: Sequence[str], *, log: Path, stdout: bool = False, environment: Mapping[str, str] | None = None
) -> ChildProcess:
    """Start `command`; its output is appended to `log`, or, with `stdout`, its standard output is kept for `read_line`.

    Raises OSError when the command cannot be started.
    """
    with log.open("ab") as log_file:
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout else log_file,
            stderr=log_file,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    return ChildProcess(name, process, log)


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on, for a server that starts later or comes back to it.

    It lies below the range that systems hand out by themselves, and no two processes begin to look at the same place,
    so that nobody else is likely to take it meanwhile. Raises PipelineError if there is none.
    """
    for number in itertools.islice(_port_numbers, PORT_COUNT):
        port = FIRST_PORT + number % PORT_COUNT
        with socket.socket() as probe, suppress(OSError):
            probe.bind((host, port))
            return port
    raise PipelineError(f"no free port from {FIRST_PORT} to {FIRST_PORT + PORT_COUNT - 1}")
