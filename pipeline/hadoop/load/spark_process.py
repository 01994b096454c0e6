"""The JVM of a Spark driver, as a process that this one owns.

PySpark keeps no hold of the JVM that it starts, and a JVM whose start is interrupted waits for ever. Here the process
is started first, and PySpark connects to it.

Invariants:

A. The JVM has a session of its own: a Ctrl-C at the terminal reaches this process alone, which decides.
B. After `end` no process of that session is left, and none starts any more, in whatever thread `start` is.
C. A killed Python process leaves no JVM: the JVM ends when its standard input closes, which no other process holds.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from pipeline.errors import PipelineError

START_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.02
STOP_GRACE_S: Final = 5.0
_TERMINATION_GRACE_S: Final = 2.0
_NOISE: Final = b"WARNING: Using incubator modules:"


class SparkStartError(PipelineError):
    """The JVM of the Spark driver did not start."""


class SparkProcess:
    """A JVM to which one PySpark session connects. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False
        self._is_silent = False

    def start(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Start the JVM with settings of Spark, and return the environment by which PySpark finds it.

        Raises SparkStartError if it does not start, or was ended meanwhile.
        """
        command = [f"{_spark_home()}/bin/spark-submit"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        folder = Path(tempfile.mkdtemp(prefix="pipeline-spark-"))
        try:
            contact = folder / "contact"
            # The name under which the JVM looks for the file that it is to write port and secret to.
            environment = os.environ | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(contact)}
            process = self._launch([*command, "pyspark-shell"], environment)
            deadline = time.monotonic() + START_TIMEOUT_S
            while not contact.exists():
                if process.poll() is not None:
                    raise SparkStartError(f"Spark did not start: its JVM ended with exit code {process.returncode}")
                if time.monotonic() > deadline:
                    raise SparkStartError(f"Spark did not start within {START_TIMEOUT_S:g} s")
                time.sleep(_POLL_S)
            told = contact.read_bytes()
        except BaseException:
            self.end()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        # A port, and a secret after its length (java.io.DataOutputStream).
        port, length = (int.from_bytes(told[at : at + 4], "big") for at in (0, 4))
        return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": told[8 : 8 + length].decode()}

    @property
    def is_running(self) -> bool:
        """True if the JVM has started and not ended."""
        return self._process is not None and self._process.poll() is None

    def end(self, *, at_once: bool = False, grace_s: float = STOP_GRACE_S) -> None:
        """End the JVM and wait for its end. `at_once`: it need not finish its work, and says nothing any more.

        Otherwise it has `grace_s` seconds to end by itself.
        """
        with self._lock:  # invariant B: a JVM that `start` is about to launch is waited for, or never launched
            self._is_ended = True
            process = self._process
        if process is None:
            return
        self._is_silent = at_once
        if not at_once and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # Spark deletes its temporary files
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TERMINATION_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _launch(self, command: list[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._is_ended:
                raise SparkStartError("Spark was ended before it had started")
            self._process = process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
            )
        assert process.stderr is not None
        threading.Thread(target=self._pass_on, args=(process.stderr,), name="spark-stderr", daemon=True).start()
        return process

    def _pass_on(self, lines: IO[bytes]) -> None:
        """Write what the JVM says to our stderr."""
        with lines:
            for line in lines:
                if not self._is_silent and not line.startswith(_NOISE):
                    with suppress(OSError, ValueError):  # our stderr may be closed
                        sys.stderr.write(line.decode(errors="replace"))
                        sys.stderr.flush()


def _spark_home() -> str:
    """Return the directory of Spark as PySpark finds it, without an import of PySpark if that is not needed."""
    given = os.environ.get("SPARK_HOME")
    if given is not None:
        return given
    spec = find_spec("pyspark")
    module = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("pyspark")
    for place in (module / "spark-distribution", module):
        if (place / "bin" / "spark-submit").exists() and (place / "jars").is_dir():
            return str(place)
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())
