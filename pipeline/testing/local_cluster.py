"""A real cluster on this machine for the length of a `with` block: ZooKeeper, brokers, registry and audit if wanted.

Plain and synchronous, so that it serves tests of any kind. It is `pipeline local up` as a child process and learns from
its lines of JSON alone, so what runs is what a user runs.

Invariants: when the block ends, however it ends, no process of the cluster is left; a directory that was given is kept
and can be taken up again, one that was not given is removed; `pids` names the processes believed to be alive.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.processes import BROKER_STOP_GRACE_S, ProcessEndedError

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = BROKER_STOP_GRACE_S + 60.0
RESTART_TIMEOUT_S = 120.0
LOG_TAIL_BYTES = 4000


class LocalCluster:
    """`with LocalCluster() as cluster:` then `cluster.bootstrap` is where clients begin.

    `settings` go to every broker, under Kafka's names. A process that dies is started again on its old port after
    `restart_after_s` seconds; with 0 it stays dead. Addresses and `pids` mean something while the cluster runs.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        brokers: int = 1,
        port: int = 0,
        settings: Mapping[str, str | int | bool] | None = None,
        registry: bool = False,
        audit: bool = False,
        secure: bool = False,
        restart_after_s: float = 0.2,
    ) -> None:
        """`port` is the first broker's; 0 takes free ports."""
        self._given_directory = directory
        self._options = ["--brokers", str(brokers), "--port", str(port), "--restart-after", str(restart_after_s)]
        for key, value in (settings or {}).items():
            self._options += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        self._options += ["--registry"] * registry + ["--audit"] * audit + ["--secure"] * secure
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._changed = threading.Condition()
        self._said: dict[str, Any] | None = None
        self._has_ended = False
        self._pids: dict[str, int] = {}
        self.directory = Path()

    def start(self) -> None:
        """Start it and wait until all of it is ready.

        Raises ProcessEndedError with the end of the command's log, or DeadlineExceededError; nothing runs then.
        """
        if self._process is not None:
            raise PipelineError("the cluster was started already")
        self.directory = self._given_directory or Path(tempfile.mkdtemp(prefix="pipeline-cluster-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self._said, self._has_ended, self._pids = None, False, {}
        command = [sys.executable, "-m", "pipeline", "local", "up", "--dir", str(self.directory), *self._options]
        try:
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
            self._reader = threading.Thread(target=self._read_lines, args=[self._process.stdout], daemon=True)
            self._reader.start()
            with self._changed:
                self._changed.wait_for(lambda: self._said is not None or self._has_ended, START_TIMEOUT_S)
                if self._said is None:
                    raise self._failure("the local cluster was not ready", START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> int:
        """Stop everything in order, and by force what does not stop. Gives the exit code of the command (0: clean)."""
        process = self._process
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            for pid in self.pids.values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._reader is not None:
            self._reader.join()
        assert process.stdout is not None
        process.stdout.close()
        self._process = self._reader = None
        if self._given_directory is None:
            shutil.rmtree(self.directory, ignore_errors=True)
        return process.returncode

    def kill(self, name: str, signal_number: int = signal.SIGKILL) -> int:
        """End one process (`broker-1`, `zookeeper`, `registry`, `audit`) as a crash would, and give its late id.

        Raises PipelineError if none of that name runs.
        """
        with self._changed:
            pid = self._pids.pop(name, None)
        if pid is None:
            raise PipelineError(f"no {name} runs; there are {', '.join(sorted(self._pids)) or 'none'}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal_number)
        return pid

    def wait_restarted(self, name: str, timeout_s: float = RESTART_TIMEOUT_S) -> int:
        """Wait until a process that was killed is ready again, and give its new id.

        Raises DeadlineExceededError, or ProcessEndedError if the whole cluster ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: name in self._pids or self._has_ended, timeout_s)
            if name not in self._pids:
                raise self._failure(f"{name} was not started again", timeout_s)
            return self._pids[name]

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of the brokers."""
        return str(self._address("bootstrap"))

    @property
    def zookeeper(self) -> str:
        """`host:port` of the ZooKeeper."""
        return str(self._address("zookeeper"))

    @property
    def registry(self) -> str:
        """URL of the schema registry, if it was asked for."""
        return str(self._address("registry"))

    @property
    def audit(self) -> str:
        """URL of the audit service, if it was asked for."""
        return str(self._address("audit"))

    def client_config(self, user: str = "app") -> Path:
        """Return the file of client settings of a user, if the cluster is `secure`: `admin`, `app`, `load`, ..."""
        return Path(self._address("security")["client_config"][user])

    def librdkafka_config(self, user: str = "app") -> Path:
        """Return the file of the same settings for programs of librdkafka."""
        return Path(self._address("security")["librdkafka_config"][user])

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name, of now."""
        with self._changed:
            return dict(self._pids)

    @property
    def log(self) -> Path:
        """Standard error of the command; each process has its own log in a directory beside."""
        return self.directory / "local.log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _address(self, key: str) -> Any:
        if self._said is None or key not in self._said:
            raise PipelineError(f"the local cluster has no {key}; it was not started, or not asked for one")
        return self._said[key]

    def _read_lines(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            said = json.loads(line)
            with self._changed:
                if "restarted" in said:
                    self._pids[said["restarted"]] = said["pid"]
                else:
                    self._pids = said["pids"]
                    self._said = said
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _failure(self, what: str, timeout_s: float) -> PipelineError:
        tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        if self._has_ended:
            return ProcessEndedError(f"{what}: the command ended; {self.log} ends:\n{tail}")
        return DeadlineExceededError(f"{what} within {timeout_s:.0f} s; {self.log} ends:\n{tail}")
