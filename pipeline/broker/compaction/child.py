"""Starts cleaner processes, and exchanges jobs and reports with them through a socket pair.

Invariants: the process ends with the broker, however the broker ends. A late (`deadline_s`) or unreadable report raises
CleanerLostError, after which the process is not used again.
"""

import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from pipeline.errors import PipelineError
from pipeline.log.compaction.jobs import MAX_LINE_BYTES, CleaningJob, Report, decode_report
from pipeline.processes import ChildProcess, start_process

COMMAND = (sys.executable, "-m", "pipeline.log.compaction.process")
REPORT_DEADLINE_S = 120.0
"""Longer than the slowest disk needs between two reports, and than the first compilation of the kernels takes."""

_RECEIVE_BYTES = 64 * 1024
_Result = TypeVar("_Result")


class CleanerLostError(PipelineError):
    """The cleaner process died, hangs, sends unreadable reports, or cannot be started."""


@dataclass(slots=True, eq=False)
class CleanerChild:
    """A running cleaner process."""

    process: ChildProcess
    stream: trio.SocketStream
    deadline_s: float
    _received: bytearray = field(default_factory=bytearray)

    @classmethod
    def start(
        cls, log: Path, *, command: tuple[str, ...] = COMMAND, deadline_s: float = REPORT_DEADLINE_S
    ) -> "CleanerChild":
        """Start a process, whose standard error is appended to `log`. Raises CleanerLostError."""
        with ExitStack() as opened:
            try:
                own, other = map(opened.enter_context, socket.socketpair())
                process = start_process("cleaner", command, log=log, stdin=other.fileno())
            except OSError as error:
                raise CleanerLostError(f"no cleaner process can be started: {error}") from error
            kept = trio.socket.from_stdlib_socket(socket.socket(fileno=own.detach()))
        return cls(process, trio.SocketStream(kept), deadline_s)

    @property
    def running(self) -> bool:
        """True until the process has ended."""
        return self.process.running

    async def begin(self, job: CleaningJob) -> None:
        """Send a job to a process that has none. Raises CleanerLostError."""
        await self._bounded(partial(self.stream.send_all, job.encode()))

    async def report(self) -> Report:
        """Receive the next report. Raises CleanerLostError."""
        while b"\n" not in self._received:
            data = await self._bounded(partial(self.stream.receive_some, _RECEIVE_BYTES))
            if not data or len(self._received) > MAX_LINE_BYTES:
                raise CleanerLostError(f"the cleaner process ended; see {self.process.log}")
            self._received += data
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        try:
            return decode_report(line)
        except ValueError as error:
            raise CleanerLostError(str(error)) from error

    async def _bounded(self, call: Callable[[], Awaitable[_Result]]) -> _Result:
        try:
            with trio.fail_after(self.deadline_s):
                return await call()
        except trio.TooSlowError as error:
            raise CleanerLostError(f"the cleaner process said nothing for {self.deadline_s:g} s") from error
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CleanerLostError(f"the cleaner process ended; see {self.process.log}") from error

    async def end(self) -> None:
        """Kill the process at any time: its files count only once the broker has swapped them in."""
        with trio.CancelScope(shield=True):
            self.process.kill()
            await self.process.wait()
            await self.stream.aclose()
