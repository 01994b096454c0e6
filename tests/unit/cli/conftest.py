"""Commands that run in this process."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipeline.cli.main import main
from pipeline.cli.terminal import output


@pytest.fixture(autouse=True)
def logging_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the logging of the tests, also of those that come later in this process."""
    monkeypatch.setattr(output, "configure_logging", lambda *_: None)


@pytest.fixture
def pipeline_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command of `pipeline`; its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["pipeline", *arguments])
        with capture_logs(), pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run
