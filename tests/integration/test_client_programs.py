"""The programs of docs/client/, run as the pages say, on a cluster of their own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.testing.local_cluster import LocalCluster

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
DEADLINE_S = 400
RECORDS = 1000


def run(page: str, directory: Path, *arguments: str, given: str = "") -> str:
    """Run the first program of a page, and return what it prints."""
    program = directory / "program.py"
    text = (ROOT / "docs" / "client" / page).read_text()
    program.write_text(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0])
    command = [sys.executable, str(program), *arguments]
    result = subprocess.run(command, input=given, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with LocalCluster() as running:
        pipeline = [sys.executable, "-m", "pipeline"]
        for topic in ("clicks", "lines"):
            create = [*pipeline, "topic", "create", topic, "-b", running.bootstrap]
            subprocess.run(create, check=True, timeout=DEADLINE_S)
        lines = "".join(f"{number}\n" for number in range(RECORDS))
        produce = [*pipeline, "produce", "clicks", "-b", running.bootstrap]
        subprocess.run(produce, input=lines, text=True, check=True, timeout=DEADLINE_S)
        yield running


def test_the_low_level_consumer_reads_every_part_of_a_log(cluster: Any, tmp_path: Path) -> None:
    lines = run("simple.md", tmp_path, cluster.bootstrap, "clicks").splitlines()
    quarter = RECORDS // 4
    assert sorted(lines) == sorted(
        f"clicks-0, offsets {start} to {start + quarter - 1}: {quarter} records" for start in range(0, RECORDS, quarter)
    )


def test_the_producer_without_trio_publishes_every_line(cluster: Any, tmp_path: Path) -> None:
    lines = "".join(f"line {number}\n" for number in range(RECORDS))
    said = run("sync.md", tmp_path, cluster.bootstrap, "lines", given=lines)
    assert said == f"{RECORDS} lines are acknowledged.\n"
