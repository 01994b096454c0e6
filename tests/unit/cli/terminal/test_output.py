import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.terminal import output

LOGS = """
import logging, structlog
from pipeline.cli.terminal import output
output.configure_logging("warning")
structlog.get_logger().info("unheard")
output.configure_logging("info")
structlog.get_logger().info("heard", by="all")
logging.getLogger("other").warning("told")
"""


def test_numbers_are_aligned_to_the_right_even_where_some_are_missing() -> None:
    table = output.table(["NAME", "COUNT", "RACK"], [["a", 1, None], ["bcdef", None, "r1"], ["c", 1000, "r2"]])
    assert table.splitlines() == [
        "NAME   COUNT  RACK",
        "a          1  -",
        "bcdef      -  r1",
        "c       1000  r2",
    ]


def test_a_table_without_rows_is_its_headings() -> None:
    assert output.table(["A", "B"], []) == "A  B"


def test_logs_are_on_stderr_from_the_level_set_last() -> None:
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, timeout=400, check=True)
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert json.loads(first).items() >= {"event": "heard", "by": "all", "level": "info"}.items()
    assert second == f"{logging.getLevelName(logging.WARNING)} other told"


FAILING = """
import structlog
from pipeline.cli.terminal import output
output.configure_logging()
def log_in(password):
    raise ValueError("broken")
try:
    log_in("s3c" + "ret")
except ValueError:
    structlog.get_logger().exception("failed")
"""


def test_a_traceback_on_a_terminal_shows_no_values() -> None:
    master, terminal = os.openpty()
    try:
        done = run_program(FAILING, stderr=terminal)
        shown = os.read(master, 100_000).decode()
    finally:
        os.close(master)
        os.close(terminal)
    assert done.returncode == 0
    assert "ValueError: broken" in shown
    assert "s3cret" not in shown


def test_no_progress_is_drawn_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    with output.progress("Working", total=2) as progress:
        progress.describe("Still working")
        progress.advance()
    assert capfd.readouterr() == ("", "")


def run_program(program: Any, **streams: Any) -> Any:
    return subprocess.run([sys.executable, "-c", program], text=True, timeout=400, check=False, **streams)


def command(body: Any) -> Any:
    """A program that runs the command line, whose one command is `body`."""
    imports = "from pipeline.cli import main\nfrom pipeline.cli.terminal import output"
    return f"{imports}\nmain.app = lambda **_: {body}\nmain.main()"


@pytest.mark.long
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_traceback(closed: Any) -> None:
    program = command("(output.say('a'), output.configure_logging(), None)")
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, program],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.long
@pytest.mark.parametrize("write", ["output.say('a')", "output.print_json({})"])
def test_output_that_cannot_be_written_ends_the_command_with_one_line(write: Any) -> None:
    with Path("/dev/full").open("w") as full:
        done = run_program(command(write), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == output.EXIT_FAILED
    assert done.stderr == "pipeline: cannot write to standard output: No space left on device\n"


@pytest.mark.long
def test_names_that_the_terminal_does_not_know_are_escaped() -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PATH": os.environ["PATH"]}
    done = run_program(command(r"output.say('\u00fc')"), capture_output=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "\\xfc\n")


def test_a_name_forges_no_row_and_commands_no_terminal() -> None:
    rows = output.table(["NAME", "STATE"], [["a\nb  Stable", "Dead"], ["\x1b[2J\u202e\u00fc", "Dead"]]).splitlines()[1:]
    assert [row.split("  ")[0] for row in rows] == ["a\\nb", "\\x1b[2J\\u202e\u00fc"]


INTERRUPTED_WHILE_LOADING = """
import sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
import pipeline.__main__
"""


def test_an_interruption_while_the_command_is_loaded_is_no_traceback() -> None:
    done = run_program(INTERRUPTED_WHILE_LOADING, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (output.EXIT_INTERRUPTED, "", "")


def test_numbers_that_json_lacks_are_texts(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": [math.nan, math.inf, {"b": -math.inf}, (1.5, None)], "c": "ä"})
    printed = capsys.readouterr().out
    assert json.loads(printed, parse_constant=pytest.fail) == {
        "a": ["NaN", "Infinity", {"b": "-Infinity"}, [1.5, None]],
        "c": "ä",
    }
