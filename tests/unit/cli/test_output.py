import json
import logging
import subprocess
import sys

from pipeline.cli import output

LOGS = """
import logging, structlog
from pipeline.cli import output
output.configure_logging("warning")
structlog.get_logger().info("unheard")
output.configure_logging("info")
structlog.get_logger().info("heard", by="all")
logging.getLogger("other").warning("told")
"""


def test_numbers_are_aligned_to_the_right_even_where_some_are_missing():
    table = output.table(["NAME", "COUNT", "RACK"], [["a", 1, None], ["bcdef", None, "r1"], ["c", 1000, "r2"]])
    assert table.splitlines() == [
        "NAME   COUNT  RACK",
        "a          1  -",
        "bcdef      -  r1",
        "c       1000  r2",
    ]


def test_a_table_without_rows_is_its_headings():
    assert output.table(["A", "B"], []) == "A  B"


def test_logs_are_on_stderr_from_the_level_set_last():
    done = subprocess.run([sys.executable, "-c", LOGS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert json.loads(first).items() >= {"event": "heard", "by": "all", "level": "info"}.items()
    assert second == f"{logging.getLevelName(logging.WARNING)} other told"


def test_no_progress_is_drawn_where_nobody_looks(capfd):
    with output.progress("Working", total=2) as progress:
        progress.describe("Still working")
        progress.advance()
    assert capfd.readouterr() == ("", "")
