"""Child processes: started, watched, and stopped by their own id, never by name. For Linux.

Owns each child until it has been reaped. A child has the given standard input or none, and its output goes to a file,
so that no child shares the terminal with its parent. It runs in its own session, so that Ctrl-C reaches only the
parent, which then stops its children in order.

A child does not outlive its parent, even if that is killed with -9: the kernel then kills the child (PR_SET_PDEATHSIG,
see prctl(2)). This works for any program and leaves nothing to clean up, unlike ids noted in a file. The kernel watches
the thread that started the child, so children are started in the thread that runs trio, and not in the worker threads
of `trio.lowlevel.open_process`, which end when they are idle. A program in between asks the kernel and then becomes the
child, since Python code between fork and exec (`preexec_fn`) may hang in a process with threads.
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
"""Time above a broker's waits for its disks (`log.directory.CLOSE_TIMEOUT_S`) and for new leaders."""
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
"""A program that becomes the command in its arguments, which follow the id of the parent."""


class ProcessEndedError(PipelineError):
    """A child ended before it was ready. The message holds the end of its output."""


@dataclass(slots=True)
class ChildProcess:
    """A running child."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """True until the child has ended."""
        return self.process.poll() is None

    async def wait(self) -> int:
        """Wait for the end of the child, and return its exit code (negative: the signal)."""
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
        """Send SIGTERM, and SIGKILL after `grace_s`. Return the exit code. Runs to its end even if cancelled."""
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
        """Send SIGKILL."""
        self.process.kill()

    async def wait_until(self, ready: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Poll `ready` until it is True. Raises DeadlineExceededError, ProcessEndedError if the child ends first."""
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

    `stdin` and `stdout` are descriptors: the child's input (default: none), and its output instead of `log`. A command
    that cannot be started is a child that ends at once, with the reason in `log`.
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
    """True if a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def free_port(host: str = "127.0.0.1") -> int:
    """Reserve a port for a server that starts later and may restart, for as long as this process lives.

    The kernel chooses the port for a socket that is bound and never listens: connections to it are refused, and neither
    a program that asks for any port nor an outgoing connection gets it. A server that sets SO_REUSEADDR can listen on
    it all the same, if no other server does. Raises PipelineError if no port is left.
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
