"""Child processes: started, watched, and stopped by their own id, never by name. For Linux.

Owns each child until it has been reaped. A child's standard input is what it is given, or closed, and its output goes
to a file, so that no child shares the terminal with its parent; it runs in a session of its own, so that Ctrl-C reaches
the parent alone, which then stops its children in order.

A child does not outlive its parent, even when that is killed with -9: the kernel kills it then (PR_SET_PDEATHSIG, see
prctl(2)), which works for any program and leaves nothing to clean up, unlike ids noted in a file. The kernel means the
thread that started the child, not the process, so children are started in the thread that runs trio, and not in the
worker threads of `trio.lowlevel.open_process`, which end when they are idle. A program in between asks for it and then
becomes the child, since Python code between fork and exec (`preexec_fn`) may hang where there are threads.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from pipeline.errors import DeadlineExceededError, PipelineError

STOP_GRACE_S = 10.0
BROKER_STOP_GRACE_S = 330.0
"""Longer than a broker waits for its disks (`log.directory.CLOSE_TIMEOUT_S`) and for others to take over."""
POLL_INTERVAL_S = 0.05
LOG_TAIL_BYTES = 4000

DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""
"""Becomes the program given by its arguments, after the id of the parent."""


class ProcessEndedError(PipelineError):
    """A child ended before it was ready. The message holds the end of what it wrote."""


@dataclass(slots=True)
class ChildProcess:
    """One running child."""

    name: str
    process: subprocess.Popen[bytes]
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
        while self.running:
            try:
                descriptor = os.pidfd_open(self.pid)
            except OSError:  # no descriptor is left
                await trio.sleep(POLL_INTERVAL_S)
                continue
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        return self.process.wait()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> int:
        """SIGTERM, and SIGKILL when `grace_s` is over. Completes even when cancelled."""
        with trio.CancelScope(shield=True):
            if self.running:
                self.process.send_signal(signal.SIGTERM)
                with trio.move_on_after(grace_s):
                    await self.wait()
            if self.running:
                self.process.kill()
            await self.wait()
        return self.process.wait()

    def kill(self) -> None:
        """SIGKILL, at once."""
        self.process.kill()

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
        code = await self.wait()
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"{self.name} ended with exit code {code}; see {self.log}, which ends:\n{tail}"


def start_process(
    name: str, command: Sequence[str], *, log: Path, stdin: int = subprocess.DEVNULL, stdout: int | None = None
) -> ChildProcess:
    """Start `command`; its output is appended to `log`. It ends when this process ends, however that happens.

    `stdin`: a descriptor that becomes its standard input; without one it has none. `stdout`: one that its standard
    output goes to instead of `log`.

    A command that cannot be started is a child that ends at once, with the reason in `log`.
    """
    with log.open("ab") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command],
            stdin=stdin,
            stdout=log_file if stdout is None else stdout,
            stderr=log_file,
            start_new_session=True,
        )
    return ChildProcess(name, process, log)


def is_port_free(port: int, host: str = "127.0.0.1") -> bool:
    """True if a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port for a server that is started later and may come back to it; nobody else gets it while this process lives.

    The kernel chooses it, and keeps it for a socket that is bound and never listens: connections to it are refused, and
    neither a program that asks for any port nor an outgoing connection is given it. A server that sets SO_REUSEADDR can
    listen on it all the same, as long as no other one does. Raises PipelineError where no port is left.
    """
    reservation = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, 0))
    except OSError as error:
        reservation.close()
        raise PipelineError(f"no free port on {host}: {error.strerror}") from error
    port: int = reservation.getsockname()[1]
    reservation.detach()  # never closed, so that the reservation lasts as long as the process
    return port
