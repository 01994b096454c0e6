"""Tables with folders of several formats: upkeep, exports and clean-up see the files of all."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.hadoop.commit.layout import PATH_FORMATS, topic_layout
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.runs import clean_up_dead_runs
from pipeline.hadoop.table.export import export_table
from pipeline.hadoop.table.snapshot import TableError, TableSelection, read_snapshot
from pipeline.hadoop.upkeep.cleaning import clean_table
from pipeline.hadoop.upkeep.compaction import compact_table
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.retention import expire_hours
from pipeline.hadoop.upkeep.verification import verify_files
from tests.support.written_table import FIRST_MS, WrittenTable

CONFIG = UpkeepConfig()


def now() -> int:
    return FIRST_MS


@pytest.fixture(params=["avro", "parquet"])
def mixed(request: Any, tmp_path: Path) -> WrittenTable:
    """One hour in folders of both formats, and another one in those of the last load."""
    written = WrittenTable(str(tmp_path / "lake"))
    for path_format in ("hive", "hourly", "hive"):
        written.spec = {"format": request.param, "path_format": path_format}
        written.load(10)
    written.load(10, hour=1)
    return written


def folders(paths: Any) -> set[str]:
    return {path.rpartition("/")[0] for path in paths}


def test_compaction_joins_files_of_all_folders_into_those_of_the_last_load(mixed: WrittenTable) -> None:
    before = mixed.rows()
    assert folders(mixed.names()) == {
        "hourly/2023/11/15/00",
        "hive/dt=2023-11-15/hour=00",
        "hive/dt=2023-11-15/hour=01",
    }
    manifest = compact_table(mixed.open(), CONFIG, clock=now)
    assert manifest is not None
    assert (len(manifest.removed), folders(file.path for file in manifest.files)) == (3, {"hive/dt=2023-11-15/hour=00"})
    assert manifest.path_format == "hive"
    assert mixed.rows() == before
    table = mixed.open()
    assert verify_files(table, table.state(), lambda size: None) == []


def test_clean_up_deletes_removed_files_and_orphans_of_all_folders(mixed: WrittenTable) -> None:
    table = mixed.open()
    compact_table(table, CONFIG, clock=now)
    orphans = set()
    for path_format in PATH_FORMATS:
        mixed.spec = {**mixed.spec, "path_format": path_format}
        manifest, _ = mixed.write(5)
        orphans |= {file.path for file in manifest.files}
        mixed.make_older(table.layout.run(manifest.run_id), 100 * 24 * 3_600_000)
    assert folders(orphans) == {"hourly/2023/11/15/00", "hive/dt=2023-11-15/hour=00"}
    for _ in range(12):
        mixed.load(5)
    for path in Path(table.layout.commits).iterdir():
        mixed.make_older(str(path), 100 * 24 * 3_600_000)
    rows = mixed.rows()
    cleaning = clean_table(table, CONFIG, dry_run=False)
    assert {table.layout.relative(deletion.path) for deletion in cleaning.files} >= orphans
    assert mixed.names() == {file.path for file in table.state().data_files()}
    assert mixed.rows() == rows


def test_a_load_deletes_files_of_dead_runs_in_all_folders(mixed: WrittenTable) -> None:
    table = mixed.open()
    for path_format in PATH_FORMATS:
        mixed.spec = {**mixed.spec, "path_format": path_format}
        manifest, _ = mixed.write(5)
        mixed.make_older(table.layout.run(manifest.run_id), 100 * 24 * 3_600_000)
    mixed.load(5)
    assert clean_up_dead_runs(table.files, table.layout, "r9", ManifestStore(table.files, table.layout)) == 2
    assert mixed.names() == {file.path for file in table.state().data_files()}


def test_expiry_removes_hours_of_all_folders(mixed: WrittenTable) -> None:
    config = CONFIG.model_copy(update={"retention_ms": 3_600_000})
    manifest = expire_hours(mixed.open(), config, clock=now)
    assert manifest is not None
    assert folders(manifest.removed) == folders(mixed.names())
    assert mixed.rows() == []


def test_readers_and_exports_take_files_of_all_folders(mixed: WrittenTable, tmp_path: Path) -> None:
    snapshot = read_snapshot(mixed.root, "clicks", TableSelection(to_ms=FIRST_MS + 3_600_000))
    assert folders(file.path for file in snapshot.files) == {"hourly/2023/11/15/00", "hive/dt=2023-11-15/hour=00"}
    to = tmp_path / "export"
    assert export_table(mixed.root, "clicks", to.as_uri(), "hive").added == 4
    assert {path.name for path in to.rglob("*-*-*")} - {"dt=2023-11-15"} == {Path(name).name for name in mixed.names()}
    layout = topic_layout(mixed.root, "clicks")
    for folder in layout.data_folders:
        with pytest.raises(TableError, match="holds loaded tables"):
            export_table(mixed.root, "clicks", Path(folder).as_uri(), "hive")
