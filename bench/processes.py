"""What a server and its children use, read from /proc: CPU seconds and resident memory; and how one is run.

Invariant: a server that was started is dead when its block ends, and when this process dies, even of `kill -9`.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.processes import DIE_WITH_PARENT

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0
POLL_S = 0.01


class ServerProcess:
    """A command that listens on `port` of `host` when it runs; may be started again after it ended."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        host: str = "127.0.0.1",
    ):
        self.host = host
        self.port = port
        self._command = list(command)
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def replace_program(self, old: Sequence[str], new: Sequence[str]) -> None:
        """Run the same arguments with another program from its next start on."""
        assert self._command[: len(old)] == list(old)
        self._command[: len(old)] = new

    def launch(self) -> None:
        """Start it without waiting."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def check(self) -> None:
        """Raises RuntimeError with the end of its log if it has ended."""
        if self._process is None or self._process.poll() is not None:
            tail = self._log.read_bytes()[-2000:].decode(errors="replace")
            raise RuntimeError(f"{self._command[0]} ended; {self._log} ends:\n{tail}")

    def wait_for_port(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            self.check()
            with suppress(OSError):
                socket.create_connection((self.host, self.port), timeout=1).close()
                return
            time.sleep(POLL_S)
        raise TimeoutError(f"nobody listens on port {self.port} after {START_DEADLINE_S:.0f} s; see {self._log}")

    def stop(self, signal_number: int = signal.SIGTERM) -> None:
        """End it and wait until it is gone; by force if it takes too long."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal_number)
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """It does nothing more until `resume`, and does not know."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, signal_number: int) -> None:
        assert self._process is not None
        self._process.send_signal(signal_number)


@contextmanager
def ended(server: ServerProcess) -> Iterator[ServerProcess]:
    """Kills the server at the end of the block."""
    try:
        yield server
    finally:
        server.kill()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and all below it, user and system, those that have ended included."""
    return sum(sum(map(int, _stat(each)[11:15])) for each in tree(pid)) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all below it."""
    return sum(int(_stat(each)[21]) for each in tree(pid)) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes(pid: int) -> int:
    """The largest resident memory that a process itself has had since it runs its command (proc(5))."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def tree(pid: int) -> list[int]:
    """A process and all below it that live."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                parents[int(entry.name)] = int(_stat(int(entry.name))[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def disk_bytes(directory: Path, pattern: str = "*") -> int:
    """What the files below a directory take up in length."""
    return sum(path.stat().st_size for path in directory.rglob(pattern) if path.is_file())


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on: what follows the name of the command (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
