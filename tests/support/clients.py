"""Foreign clients as processes of their own: the programs of tests/conformance/programs, and kcat."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "conformance" / "programs"
UNPACKED_KCAT = ROOT / ".cache" / "kcat" / "usr"
CLIENT_DEADLINE_S = 420
POLL_S = 0.05


class RunningClient:
    """A program that goes on until it is told to stop."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def check(self) -> None:
        """Fail with what it found if it has ended unasked."""
        if self._process.poll() is not None:
            out, err = self._process.communicate()
            raise AssertionError(f"{self._process.args!r} ended with {self._process.returncode}: {out} {err[-3000:]}")

    def stop(self) -> Any:
        """Tell it to end and return what it found."""
        out, err = self._process.communicate(timeout=CLIENT_DEADLINE_S)
        if self._process.returncode != 0:
            raise AssertionError(f"{self._process.args!r} failed:\n{err[-3000:]}")
        return json.loads(out)


@contextmanager
def running_client(program: str, command: str, bootstrap: str, asked: object) -> Iterator[RunningClient]:
    """Start `python PROGRAM COMMAND BOOTSTRAP`; killed at the end of the block if it was not stopped."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / f"{program}.py"), command, bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        yield RunningClient(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


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
