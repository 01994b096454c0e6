"""Files whose store refuses a write."""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PipelineError
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.upkeep.compaction import compact_table
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.table import Table
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.written_table import WrittenTable

ROOT = Path(__file__).parents[4]


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Errors that Python prints as `Exception ignored in ...`; the faulty store may leave a file open."""
    found: list[Any] = []

    def note(unraisable: Any) -> None:
        if unraisable.exc_type is not ResourceWarning:
            found.append(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", note)
    return found


LOAD = """
import os, resource, sys
from pathlib import Path
from pipeline.errors import StorageError
from pipeline.hadoop.load.task import write_task
from pipeline.hadoop.ranges.rows import to_rows
from pipeline.records.columns import open_batches
from tests.support.load_task import ATTEMPT, ROWS, TaskLoad, batch

records = [(None, os.urandom(size), [], hour * 3_600_000) for hour, size in enumerate([9, 200_000, 9])]
rows = to_rows(open_batches(bytes(batch(0, records))), "t", 4, ROWS)
spec = TaskLoad(Path(sys.argv[1]), format="parquet").spec
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))
try:
    write_task(spec, ATTEMPT, 0, [rows])
except StorageError as error:
    print(error)
"""


@pytest.mark.long
def test_a_load_of_several_files_whose_store_refuses_one_has_one_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=True)
    assert done.stdout.endswith("File too large\n")
    assert done.stderr == ""


@pytest.mark.long
def test_a_compaction_onto_a_full_disk_has_one_error(tmp_path: Path, ignored: list[Any]) -> None:
    written = WrittenTable(str(tmp_path))
    for _ in range(2):
        written.load(10)
    table = written.open()
    writes = 0
    for step in range(1, 100):
        files = FaultyFileSystem(LocalFileSystem(), fail_at=step, outage=True)
        faulty = Table(topic=table.topic, files=files, layout=table.layout)
        try:
            compact_table(faulty, UpkeepConfig(), clock=lambda: 1)
        except PipelineError:
            writes += files.operations[step - 1] == "write"
        else:
            break
        gc.collect()
    assert writes > 1
    assert ignored == []
