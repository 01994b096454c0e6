"""What `pipeline load` says at once, without Spark, of which there is none here."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.load.query import fitted

RUN = ("run", "--topic", "visits", "--bootstrap", "127.0.0.1:1")


def load(*arguments: Any) -> Any:
    environment = os.environ | {"JAVA_HOME": "/nowhere", "PYSPARK_GATEWAY_PORT": "none"}
    command = [sys.executable, "-m", "pipeline", "load", *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    return result.returncode, result.stderr


READERS = {
    "status": (),
    "files": (),
    "sql": ("SELECT 1",),
    "compact": ("--json",),
    "expire": ("--set", "retention.ms=3600000"),
    "verify": (),
    "replay": ("-b", "127.0.0.1:1", "--hour", "2026-11-25T10", "--set", "value.format=binary"),
    "hours": ("--json",),
    "quarantine list": (),
    "quarantine show": (),
    "quarantine release": ("--registry", "http://127.0.0.1:1"),
}


@pytest.mark.long
@pytest.mark.parametrize("command", READERS)
def test_a_topic_without_commits_is_reported(tmp_path: Path, command: Any) -> None:
    root = (tmp_path / "none").as_uri()
    code, said = load(*command.split(), *READERS[command], "--topic", "visits", "--root", root)
    assert (code, said) == (1, f"pipeline: visits has no commits below {root}\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--root", "/data"), "schema.registry.url: is missing: value.format=avro needs it"),
        (("--root", "data", "--set", "value.format=binary"), "root: 'data' is not absolute"),
        (("--root", "ftp://host/data", "--set", "value.format=binary"), "root: 'ftp:' is not a known store"),
    ],
)
def test_wrong_settings_of_a_run(arguments: Any, said: Any) -> None:
    code, stderr = load(*RUN, *arguments)
    assert code == 2
    assert said in stderr
    assert stderr.count("\n") == 1


@pytest.mark.long
def test_a_resident_load_prints_no_results() -> None:
    code, stderr = load(*RUN, "--root", "/data", "--set", "value.format=binary", "--interval", "60s", "--json")
    assert (code, stderr) == (2, "pipeline: --json: a resident load prints no results, its log is JSON\n")


def test_lines_are_cut_to_the_width_of_a_terminal_and_not_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "x" * 5000
    monkeypatch.setenv("COLUMNS", "100")
    for is_terminal, expected in ((False, line), (True, "x" * 99 + "…")):
        monkeypatch.setattr(sys, "stdout", _Output(is_terminal))
        assert fitted(f"head\n{line}") == f"head\n{expected}"


class _Output(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal
