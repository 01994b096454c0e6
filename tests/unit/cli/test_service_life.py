"""What a service logs of its start and its end, each run in a process of its own."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.version import VERSION

SERVICE = """
import sys
from pathlib import Path
from typing import ClassVar

import trio
from pydantic import Field

from pipeline.cli.foreground import run_service
from pipeline.cli.main import _explain
from pipeline.credentials import Secret
from pipeline.errors import ConfigurationError, StorageError
from pipeline.settings import SettingsModel


class Config(SettingsModel):
    service: ClassVar[str] = "test"
    end: str = Field(alias="test.end")
    size: int = Field(5, alias="test.size", ge=1)
    unchanged: int = Field(7, alias="test.unchanged")
    password: Secret | None = Field(None, alias="test.password")


async def run(config):
    if config.end == "fault":
        raise ExceptionGroup("tasks", [StorageError("/disk", "no space is left")])
    if config.end == "taken":
        raise ConfigurationError("http.listen", "cannot listen on a:1")
    if config.end == "surprise":
        raise KeyError("unforeseen")
    print("running", flush=True)
    await trio.sleep_forever()


try:
    run_service(lambda settings: [Config.from_settings(settings)], run, Path(sys.argv[1]))
except BaseException as error:
    sys.exit(_explain(error))
"""


def launch(directory: Path, settings: str, output: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    file = directory / "test.toml"
    file.write_text(settings)
    command = [sys.executable, "-c", SERVICE, str(file)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def lines_of(stderr: bytes) -> list[dict[str, Any]]:
    """The log: every line of stderr must be JSON."""
    return [json.loads(line) for line in stderr.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_and_a_stop_by_a_signal_are_logged(tmp_path: Path, number: signal.Signals) -> None:
    settings = '[test]\nend = "signal"\nsize = 6\nunchanged = 7\npassword = "hush"\n'
    with launch(tmp_path, settings) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"running\n"
        service.send_signal(number)
        _, stderr = service.communicate()
    assert service.returncode == 0
    starting, stopping, stopped = lines_of(stderr)
    assert list(starting)[:3] == ["timestamp", "level", "event"]
    assert (starting["event"], starting["version"], starting["pid"]) == ("starting", VERSION, service.pid)
    assert starting["settings"] == {"test.end": "signal", "test.size": 6, "test.password": "[hidden]"}
    assert (stopping["event"], stopping["signal"]) == ("stopping", number.name)
    assert (stopped["event"], stopped["reason"], stopped["exit_code"]) == ("stopped", number.name, 0)
    assert b"hush" not in stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "code", "reason"),
    [
        ('test.end = "fault"', 1, "/disk: no space is left"),
        ('test.end = "taken"', 1, "{file}: http.listen: cannot listen on a:1"),
        ('test.end = "surprise"', 1, "unforeseen error: KeyError('unforeseen')"),
        ("test.size = 0", 2, "{file}: test.end: is missing; test.size: must be at least 1 (given: 0)"),
        ("test.end = no quotes", 2, "{file}: is not TOML: Invalid value (at line 1, column 12); text needs quotes"),
    ],
)
def test_a_failure_is_the_last_line_of_the_log(tmp_path: Path, settings: str, code: int, reason: str) -> None:
    with launch(tmp_path, settings) as service:
        _, stderr = service.communicate()
    assert service.returncode == code
    stopped = lines_of(stderr)[-1]
    assert (stopped["event"], stopped["level"], stopped["exit_code"]) == ("stopped", "error", code)
    assert stopped["reason"] == reason.format(file=tmp_path / "test.toml")
    assert ("KeyError" in stopped.get("exception", "")) == ("surprise" in settings)


def test_a_failure_is_a_sentence_on_a_terminal(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    with launch(tmp_path, 'test.end = "fault"', output=end) as service:
        os.close(end)
        shown = b""
        while b"pipeline: /disk: no space is left" not in shown:
            shown += os.read(terminal, 4096)
        service.wait()
    os.close(terminal)
    assert service.returncode == 1
