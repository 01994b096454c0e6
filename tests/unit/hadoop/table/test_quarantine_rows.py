"""Rows of the files that a load puts into its quarantine, as the table's reader gives them."""

from pathlib import Path
from typing import Any

from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load.task import TaskWriter
from pipeline.hadoop.ranges.rows import fault_rows
from pipeline.hadoop.table.file_rows import QUARANTINE_SCHEMA, quarantine_rows
from tests.support.bad_batches import sound
from tests.support.load_task import ATTEMPT, ROWS, TaskLoad, batch

NOON_MS = 1_700_006_400_000


def rows_of(path: Path) -> list[dict[str, Any]]:
    found = quarantine_rows(LocalFileSystem(), str(path), QUARANTINE_SCHEMA)
    return [row for part in found for row in part.to_pylist()]


def test_records_of_the_quarantine_have_their_reason(tmp_path: Path) -> None:
    task = TaskLoad(tmp_path, schemas={}.__getitem__, format="parquet", quarantine=True)
    records = [(b"k", b"broken", [("h", None)], NOON_MS), (None, None, [], 2**60), (None, b"", [], -(2**60))]
    (file,) = [file for file in task.run(batch(0, records)).files if file.quarantined]
    first, *others = rows_of(task.path(file))
    assert "does not begin with a zero byte" in first.pop("_reason")
    assert first.pop("_timestamp").timestamp() * 1000 == NOON_MS
    assert first == {
        "_key": b"k",
        "_offset": 0,
        "_partition": 4,
        "_headers": [{"key": "h", "value": None}],
        "_tombstone": False,
        "value": b"broken",
    }
    assert [(row["_timestamp"], row["_tombstone"], row["value"]) for row in others] == [
        (None, True, None),
        (None, False, b""),
    ]
    assert all("not in the years" in row["_reason"] for row in others)


def test_batches_of_the_quarantine_are_rows_of_their_bytes(tmp_path: Path) -> None:
    bad = sound(b"a", b"b", timestamp_ms=NOON_MS)
    spec = TaskLoad(tmp_path, format="parquet", quarantine=True).spec
    writer = TaskWriter(spec, LocalFileSystem(), topic_layout(str(tmp_path), "t"), ATTEMPT)
    for part in fault_rows(memoryview(bad), "t", 4, 0, "has a wrong checksum", ROWS):
        writer.add(part)
    (file,) = writer.finish(0).files
    (row,) = rows_of(tmp_path / "t" / file.path)
    assert (row["_offset"], row["_headers"], row["_key"]) == (0, [], None)
    assert (row["value"], row["_reason"]) == (bytes(bad), "has a wrong checksum")
