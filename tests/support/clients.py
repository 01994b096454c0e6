"""Foreign clients as processes of their own: the programs of tests/conformance/programs, and kcat."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "conformance" / "programs"
UNPACKED_KCAT = ROOT / ".cache" / "kcat" / "usr"
CLIENT_DEADLINE_S = 420
POLL_S = 0.05


class TalkingProcess:
    """A program with pipes for input and output, and a file for stderr: a pipe that nobody reads would stop it."""

    def __init__(self, process: "subprocess.Popen[str]", errors: IO[str]) -> None:
        self.process = process
        self._errors = errors

    def ended(self, timeout_s: float) -> tuple[str, str]:
        """Close its input, wait for its end, and return its output and its last words."""
        out, _ = self.process.communicate(timeout=timeout_s)
        self._errors.seek(0)
        return out, self._errors.read()[-3000:]


@contextmanager
def talking_process(command: Sequence[str]) -> Iterator[TalkingProcess]:
    """Start a program; killed at the end of the block if it has not ended."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield TalkingProcess(process, errors)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


class RunningClient:
    """A program that goes on until it is told to stop."""

    def __init__(self, talking: TalkingProcess) -> None:
        self._talking = talking

    def check(self) -> None:
        """Fail with what it found if it has ended unasked."""
        process = self._talking.process
        if process.poll() is not None:
            out, err = self._talking.ended(CLIENT_DEADLINE_S)
            raise AssertionError(f"{process.args!r} ended with {process.returncode}: {out} {err}")

    def stop(self) -> Any:
        """Tell it to end and return what it found."""
        process = self._talking.process
        out, err = self._talking.ended(CLIENT_DEADLINE_S)
        if process.returncode != 0:
            raise AssertionError(f"{process.args!r} failed:\n{err}")
        return json.loads(out)


@contextmanager
def running_client(program: str, command: str, bootstrap: str, asked: object) -> Iterator[RunningClient]:
    """Start `python PROGRAM COMMAND BOOTSTRAP`; killed at the end of the block if it was not stopped."""
    with talking_process([sys.executable, str(PROGRAMS / f"{program}.py"), command, bootstrap]) as talking:
        assert talking.process.stdin is not None
        talking.process.stdin.write(json.dumps(asked) + "\n")
        talking.process.stdin.flush()
        yield RunningClient(talking)


def run_client(program: str, command: str, bootstrap: str, asked: object) -> Any:
    """Run a program to its end and return what it found."""
    with running_client(program, command, bootstrap, asked) as client:
        return client.stop()


def kcat_command() -> tuple[str, dict[str, str]]:
    """Return the path of kcat, and the environment in which it runs."""
    found = shutil.which("kcat")
    environment = dict(os.environ)
    if found is None:
        found = str(UNPACKED_KCAT / "bin" / "kcat")
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, (UNPACKED_KCAT / "lib").iterdir()))
    return found, environment


def try_kcat(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run kcat to its end, however it ends."""
    found, environment = kcat_command()
    return subprocess.run(
        [found, *arguments],
        input=given,
        capture_output=True,
        env=environment,
        timeout=CLIENT_DEADLINE_S,
        check=False,
    )


def run_kcat(*arguments: str, given: bytes = b"", fails: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run kcat to its end; with `fails` an error is what is wanted."""
    done = try_kcat(*arguments, given=given)
    assert (done.returncode != 0) is fails, f"kcat {' '.join(arguments)}: {done.returncode}\n{done.stderr.decode()}"
    return done


def write_with_kcat(
    bootstrap: str, topic: str, codec: str, lines: Sequence[tuple[bytes, bytes]], options: Sequence[str] = ()
) -> None:
    """Lines of key and value to partition 0."""
    given = b"".join(key + b":" + value + b"\n" for key, value in lines)
    run_kcat(
        "-P", "-b", bootstrap, "-t", topic, "-p", "0", "-z", codec, "-K:", *options, "-l", "/dev/stdin", given=given
    )


def read_with_kcat(bootstrap: str, topic: str, offset: str = "beginning") -> list[tuple[Any, ...]]:
    """All of partition 0: offset, key, value, headers, timestamp. Header names and values may hold no `,` and `=`."""
    layout = "%o %T %K %S %h\\n%k%s\\n"
    out = BytesIO(
        run_kcat("-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", offset, "-e", "-q", "-f", layout).stdout
    )
    records = []
    while described := out.readline():
        at, timestamp_ms, key_length, value_length, headers = described[:-1].split(b" ", 4)
        key = _take(out, int(key_length))
        value = _take(out, int(value_length))
        records.append((int(at), key, value, _headers(headers), int(timestamp_ms)))
        assert out.read(1) == b"\n"
    return records


def _take(out: BytesIO, length: int) -> bytes | None:
    return None if length < 0 else out.read(length)


def _headers(text: bytes) -> list[tuple[str, bytes | None]]:
    fields = [field.partition(b"=") for field in text.split(b",")] if text else []
    return [(name.decode(), None if value == b"NULL" else value) for name, _, value in fields]


def wait_for(what: str, condition: Callable[[], object], deadline_s: float = 180) -> None:
    """Poll until the condition holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {deadline_s:.0f} s"
        time.sleep(POLL_S)


def wait_until_true(check: Callable[[], None], deadline_s: float = 180) -> None:
    """Repeat a check until all that it asserts holds; after the deadline its AssertionError is raised."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > end:
                raise
        time.sleep(POLL_S)
