"""A worker of a load stays below 500 MB, whatever the range holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MAX_BYTES = 500_000_000
"""The program makes its batches beside the load, in 70 MB: more than the 32 MB that a consumer fetches ahead."""


@pytest.mark.long
@pytest.mark.parametrize(("file_format", "codec"), [("parquet", "ZSTD"), ("parquet", "NONE"), ("avro", "ZSTD")])
def test_large_records_of_many_schemas_and_hours_need_less_than_500_mb(
    tmp_path: Path, file_format: str, codec: str
) -> None:
    program = [sys.executable, "-m", "tests.support.load_memory", str(tmp_path), file_format, codec]
    done = subprocess.run(program, capture_output=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert found["rows"] == 48_000
    assert found["files"] == 32
    assert found["bytes"] < MAX_BYTES
