"""Exports of a table as plain folders: what Spark reads of the folder, and a death at each step."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.hadoop.commit.manifest import Operation
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.table.export import export_files, export_table
from pipeline.hadoop.table.snapshot import TableError
from tests.support.faulty_filesystem import Died, FaultyFileSystem
from tests.support.hand_made_table import HandMadeTable, table_at


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return table_at(tmp_path / "lake")


def visible(folder: Path) -> Any:
    return sorted(path.name for path in folder.rglob("*.parquet") if not path.name.startswith("."))


@pytest.mark.long
def test_spark_reads_the_folder_as_hive_does(spark: Any, table: HandMadeTable, tmp_path: Path) -> None:
    table.add_parquet({"page": pa.array(["/a", "/b"])}, 2)
    table.add_parquet({"page": pa.array(["/c"])}, 1)
    to = (tmp_path / "export").as_uri()
    assert export_table(table.root, table.topic, to, "hive").added == 2
    found = spark.read.parquet(to).orderBy("_offset").select("page", "dt", "hour").collect()
    assert [(row.page, str(row.dt), row.hour) for row in found] == [
        ("/a", "2023-11-14", 22),
        ("/b", "2023-11-14", 22),
        ("/c", "2023-11-14", 23),
    ]
    hourly = tmp_path / "hourly"
    export_table(table.root, table.topic, hourly.as_uri(), "hourly")
    assert len(visible(hourly / "2023/11/14/22")) == 1
    with pytest.raises(TableError, match="in the style hive; export to another folder"):
        export_table(table.root, table.topic, to, "hourly")


def test_late_data_and_removed_files_are_followed(table: HandMadeTable, tmp_path: Path) -> None:
    first = table.add_parquet({"page": pa.array(["/a"])}, 1)
    to = tmp_path / "export"
    export_table(table.root, table.topic, to.as_uri(), "hive")
    (to / "notes.txt").write_text("not of the export")
    late = table.add_parquet({"page": pa.array(["/b"])}, 1, hour_ms=first.hour_ms)
    table.rearrange(Operation.EXPIRE, [first.path])
    result = export_table(table.root, table.topic, to.as_uri(), "hive")
    assert (result.sequence, result.added, result.removed) == (3, 1, 1)
    assert visible(to) == [Path(late.path).name]
    assert (to / "notes.txt").exists()
    assert export_table(table.root, table.topic, to.as_uri(), "hive").added == 0


@pytest.mark.parametrize("after", [False, True])
def test_the_next_run_heals_a_death_at_any_step(table: HandMadeTable, tmp_path: Path, after: bool) -> None:
    old = table.add_parquet({"page": pa.array(["/a"])}, 1)
    new = [table.add_parquet({"page": pa.array(["/b"])}, 1) for _ in range(2)]
    root, local = table.root.removeprefix("file://"), LocalFileSystem()
    wanted = sorted(Path(file.path).name for file in new)
    for step in range(1, 100):
        to = tmp_path / f"export-{after}-{step}"
        export_files(local, root, table.topic, local, str(to), "hive")
        if step == 1:
            table.rearrange(Operation.EXPIRE, [old.path])
        else:
            (to / "dt=2023-11-14/hour=22").mkdir(parents=True, exist_ok=True)
            (to / f"dt=2023-11-14/hour=22/{Path(old.path).name}").write_bytes(b"as before the commit")
            next(to.rglob(wanted[0])).unlink()
        dying = FaultyFileSystem(local, fail_at=step, after=after, die=True)
        try:
            export_files(local, root, table.topic, dying, str(to), "hive")
        except Died:
            whole = [path for path in to.rglob("[0-9]*.parquet") if path.name in wanted]
            assert {path.stat().st_size for path in whole} <= {file.bytes for file in new}
            export_files(local, root, table.topic, local, str(to), "hive")
            assert visible(to) == wanted
            assert not list(to.rglob("*.part"))
        else:
            assert step > 5
            return
    pytest.fail("the export never ended")


def test_a_folder_of_loaded_tables_is_refused_and_files_elsewhere_stay(table: HandMadeTable, tmp_path: Path) -> None:
    table.add_parquet({"page": pa.array(["/a"])}, 1)
    lake = Path(table.root.removeprefix("file://"))
    running = lake / table.topic / "hourly/2023/11/14/22/0-7-running-0-1-0.parquet"
    running.parent.mkdir(parents=True, exist_ok=True)
    running.write_bytes(b"of a load that runs")
    before = sorted(lake.rglob("*"))
    for to in (lake, lake / table.topic, lake / table.topic / "hourly", lake.parent):
        for style in ("hive", "hourly"):
            with pytest.raises(TableError, match="holds loaded tables"):
                export_table(table.root, table.topic, to.as_uri(), style)
    assert sorted(lake.rglob("*")) == before
    to = tmp_path / "export"
    stranger = to / "mine/2023/0-7-other-0-1-0.parquet"
    stranger.parent.mkdir(parents=True)
    stranger.write_bytes(b"of another program")
    assert export_table(table.root, table.topic, to.as_uri(), "hive").removed == 0
    assert stranger.exists()


def test_a_file_of_another_size_is_copied_again(table: HandMadeTable, tmp_path: Path) -> None:
    table.add_parquet({"page": pa.array(["/a"])}, 1)
    to = tmp_path / "export"
    export_table(table.root, table.topic, to.as_uri(), "hive")
    [name] = to.rglob("[0-9]*.parquet")
    whole = name.read_bytes()
    name.write_bytes(whole[:10])
    assert export_table(table.root, table.topic, to.as_uri(), "hive").added == 1
    assert name.read_bytes() == whole


def test_two_exports_at_once_show_only_whole_files(table: HandMadeTable, tmp_path: Path) -> None:
    file = table.add_parquet({"page": pa.array(["/a"])}, 1)
    root, to, local = table.root.removeprefix("file://"), tmp_path / "export", LocalFileSystem()

    class Hurried(LocalFileSystem):
        """Another export begins to write, and dies, before this one renames its file."""

        def rename_exclusive(self, source: str, target: str) -> None:
            dying = FaultyFileSystem(local, fail_at=5, after=True, die=True)
            with pytest.raises(Died):
                export_files(local, root, table.topic, dying, str(to), "hive")
            assert dying.operations[-1] == "write"
            super().rename_exclusive(source, target)

    export_files(local, root, table.topic, Hurried(), str(to), "hive")
    assert {path.stat().st_size for path in to.rglob("[0-9]*.parquet")} == {file.bytes}
