"""Files whose store refuses a write."""

import gc
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


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Errors that Python prints as `Exception ignored in ...`; the faulty store may leave a file open."""
    found: list[Any] = []

    def note(unraisable: Any) -> None:
        if unraisable.exc_type is not ResourceWarning:
            found.append(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", note)
    return found


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
