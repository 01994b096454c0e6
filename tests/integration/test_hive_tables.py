"""Hive tables over exports and over Hive-style folders of loads, by the statements of docs/load/export.md."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_hive_reads_the_rows_of_the_table(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(ROOT / "tests/integration/programs/hive_tables.py"), str(tmp_path)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(name.rsplit("_", 1)[0] for name in found) == sorted(
        f"{file_format}_{path_format}"
        for file_format in ("avro", "parquet")
        for path_format in ("hourly", "hive", "hive")
    )
    assert set(found.values()) == {20}
