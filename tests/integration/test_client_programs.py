"""The programs of docs/client/, run as the pages say, on a cluster of their own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.testing.local_cluster import LocalCluster

ROOT = Path(__file__).parents[2]
DEADLINE_S = 400
RECORDS = 1000


def run(page: str, directory: Path, *arguments: str) -> str:
    """Run the first program of a page, and return what it prints."""
    program = directory / "program.py"
    text = (ROOT / "docs" / "client" / page).read_text()
    program.write_text(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0])
    command = [sys.executable, str(program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with LocalCluster() as running:
        pipeline = [sys.executable, "-m", "pipeline"]
        create = [*pipeline, "topic", "create", "clicks", "-b", running.bootstrap]
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
