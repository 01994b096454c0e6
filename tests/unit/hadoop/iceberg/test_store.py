"""Commits to an Iceberg table in an SQLite catalog: exact, also when a process dies, and fenced."""

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog import load_catalog

from pipeline.hadoop.commit.checkpoints import IcebergTableError, table_of
from pipeline.hadoop.commit.publication import CommitConflictError
from pipeline.hadoop.iceberg.snapshot_properties import SnapshotPropertyError
from pipeline.hadoop.iceberg.store import OTHER_WRITER, IcebergError, IcebergStore, may_precede
from pipeline.hadoop.upkeep.cleaning import clean_table
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.table import open_table
from tests.support.iceberg_commits import commit_rows, manifest_of, write_file


@pytest.fixture
def store(tmp_path: Path) -> IcebergStore:
    return IcebergStore(tmp_path.as_uri(), "visits", {})


def fresh(store: IcebergStore) -> IcebergStore:
    return IcebergStore(store.root, store.topic, {})


def table(store: IcebergStore) -> Any:
    """The table as any program of pyiceberg opens it."""
    path = store.root.removeprefix("file://")
    catalog = load_catalog("pipeline", type="sql", uri=f"sqlite:///{path}/_catalog.db", warehouse=store.root)
    return catalog.load_table(("pipeline", store.topic))


def offsets(store: IcebergStore) -> Any:
    return sorted(table(store).scan().to_arrow().column("_offset").to_pylist())


def test_commits_follow_each_other_and_are_read_back(store: IcebergStore) -> None:
    assert store.read_head().manifest is None
    commit_rows(store, 10, {"count": "int32"})
    commit_rows(fresh(store), 5, {"count": "int64", "who": "string"})
    head = fresh(store).read_head()
    assert head.manifest is not None
    assert (head.manifest.sequence, head.offsets, head.manifest.files) == (2, {0: 15}, ())
    assert offsets(store) == list(range(15))
    found = table(store)
    assert [str(field.field_type) for field in found.schema().fields][-2:] == ["long", "string"]
    rows = found.scan().to_arrow().sort_by("_offset").to_pylist()
    assert [row["who"] for row in rows] == [None] * 10 + ["who"] * 5
    assert [row["count"] for row in rows] == list(range(15))
    hours = found.inspect.partitions().column("partition").to_pylist()
    assert len(hours) == 2
    assert found.scan("_timestamp >= '2023-11-14T23:00:00+00:00'").to_arrow().num_rows == 5


def test_the_first_load_makes_its_root(tmp_path: Path) -> None:
    store = IcebergStore((tmp_path / "new" / "lake").as_uri(), "visits", {})
    commit_rows(store, 3)
    assert offsets(store) == [0, 1, 2]


def test_upkeep_and_readers_of_manifests_leave_the_table_alone(store: IcebergStore) -> None:
    commit_rows(store, 10)
    with pytest.raises(IcebergTableError, match="holds an Iceberg table"):
        clean_table(open_table(store.root, store.topic), UpkeepConfig.from_settings({}), dry_run=False)
    assert offsets(store) == list(range(10))
    with pytest.raises(IcebergTableError):
        table_of(store.root, store.topic)


def test_duckdb_reads_the_table(store: IcebergStore) -> None:
    commit_rows(store, 10, {"count": "int32"})
    commit_rows(store, 5, {"count": "int64"})
    spec = find_spec("duckdb_ext")
    assert spec is not None
    (extensions,) = Path(next(iter(spec.submodule_search_locations or ()))).glob("extensions/v*/linux_*")
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        connection.execute(f"LOAD '{extensions}/{name}.duckdb_extension'")
    scan = f"iceberg_scan('{table(store).metadata_location}')"
    assert connection.execute(f'SELECT count(*), sum("count") FROM {scan}').fetchall() == [(15, sum(range(15)))]
    late = f"SELECT count(*) FROM {scan} WHERE _timestamp >= '2023-11-14 23:00:00+00'"
    assert connection.execute(late).fetchall() == [(5,)]


def test_a_second_loader_is_fenced(store: IcebergStore) -> None:
    commit_rows(store, 10)
    loser, winner = fresh(store), fresh(store)
    head = loser.read_head()
    file = write_file(loser, head, 7)
    manifest = manifest_of(loser, head, file, "loser")
    commit_rows(winner, 3, run_id="winner")
    with pytest.raises(CommitConflictError, match="made by run winner"):
        loser.commit(manifest, head, orphan_age_ms=60_000)
    assert offsets(store) == list(range(13))
    commit_rows(loser, 7, run_id="again")
    assert offsets(store) == list(range(20))


def test_a_loader_that_lost_the_race_after_its_check_is_fenced(
    store: IcebergStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_rows(store, 10)
    loser = fresh(store)
    head = loser.read_head()
    manifest = manifest_of(loser, head, write_file(loser, head, 7), "loser")
    real = loser.catalog.commit_table

    def commit_late(*arguments: Any) -> Any:
        commit_rows(fresh(store), 3, run_id="winner")
        return real(*arguments)

    monkeypatch.setattr(loser.catalog, "commit_table", commit_late)
    with pytest.raises(CommitConflictError, match="made by run winner"):
        loser.commit(manifest, head, orphan_age_ms=60_000)
    assert offsets(store) == list(range(13))


def test_another_writer_of_the_table_fences_a_load(store: IcebergStore) -> None:
    commit_rows(store, 4)
    commit_rows(store, 6)
    head = store.read_head()
    manifest = manifest_of(store, head, write_file(store, head, 7), "late")
    table(store).delete("_offset < 4")
    with pytest.raises(CommitConflictError, match=OTHER_WRITER):
        store.commit(manifest, head, orphan_age_ms=60_000)
    commit_rows(store, 2)
    assert offsets(store) == list(range(4, 12))


def test_a_lost_answer_is_settled_by_reading_back(store: IcebergStore, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_rows(store, 10)
    real = store.catalog.commit_table

    def lose_the_answer(*arguments: Any) -> None:
        real(*arguments)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(store.catalog, "commit_table", lose_the_answer)
    commit_rows(store, 5)
    assert offsets(store) == list(range(15))

    def fail(*_arguments: Any) -> None:
        raise ConnectionError("nothing was sent")

    monkeypatch.setattr(store.catalog, "commit_table", fail)
    with pytest.raises(IcebergError, match="nothing was sent"):
        commit_rows(store, 5)
    assert offsets(store) == list(range(15))


def test_offsets_survive_the_expiry_of_snapshots(store: IcebergStore) -> None:
    commit_rows(store, 4)
    commit_rows(store, 6)
    table(store).delete("_offset < 4")  # the current snapshot is no longer a load's
    for snapshot in table(store).metadata.snapshots:
        if "pipeline.run-id" in snapshot.summary.additional_properties:
            table(store).maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    assert len(table(store).metadata.snapshots) == 1
    head = store.read_head()
    assert head.offsets == {0: 10}
    commit_rows(store, 5)
    assert offsets(store) == list(range(4, 15))
    assert len(store.listed_files()) == 2


def test_offsets_follow_a_table_that_was_set_back(store: IcebergStore) -> None:
    commit_rows(store, 10)
    first = table(store).current_snapshot().snapshot_id
    commit_rows(store, 5)
    table(store).manage_snapshots().set_current_snapshot(first).commit()
    assert store.read_head().offsets == {0: 10}
    commit_rows(store, 2)
    assert offsets(store) == list(range(12))


def test_a_catalog_that_lost_the_table_is_no_empty_table(store: IcebergStore) -> None:
    commit_rows(store, 10)
    store.catalog.close()
    Path(store.root.removeprefix("file://"), "_catalog.db").unlink()
    for ask in (fresh(store).read_head, fresh(store).listed_files):
        with pytest.raises(IcebergError, match="the catalog is another one, or was lost"):
            ask()


def test_a_load_of_no_records_moves_the_offsets(store: IcebergStore) -> None:
    head = store.read_head()
    store.commit(manifest_of(store, head, None, "empty", records=7), head, orphan_age_ms=60_000)
    assert store.read_head().offsets == {0: 7}


@pytest.mark.long
@pytest.mark.parametrize("step", ["before", "staged", "after"])
def test_a_process_killed_around_its_commit(store: IcebergStore, step: str) -> None:
    commit_rows(store, 10)
    command = [sys.executable, "-m", "tests.support.iceberg_commits", store.root, store.topic, step]
    killed = subprocess.run(command, timeout=400, check=False, cwd=Path(__file__).parents[4])
    assert killed.returncode == -signal.SIGKILL
    expected = 15 if step == "after" else 10
    assert offsets(store) == list(range(expected))
    assert store.read_head().offsets == {0: expected}
    commit_rows(store, 5, run_id="next")
    assert offsets(store) == list(range(expected + 5))


def test_a_manifest_that_is_too_large_is_refused(store: IcebergStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.hadoop.iceberg.snapshot_properties.MAX_BYTES", 100)
    with pytest.raises(SnapshotPropertyError, match="Use table=manifest"):
        commit_rows(store, 10)
    assert store.read_head().manifest is None


def values(store: IcebergStore, column: str) -> Any:
    return [row[column] for row in table(store).scan().to_arrow().sort_by("_offset").to_pylist()]


def test_columns_that_an_operator_dropped_or_renamed_keep_their_new_values(store: IcebergStore) -> None:
    commit_rows(store, 3, {"count": "int64", "who": "string"})
    with table(store).update_schema() as update:
        update.delete_column("count")
        update.rename_column("who", "name")
    commit_rows(fresh(store), 2, {"count": "int64", "who": "string"})
    assert values(store, "count")[3:] == [3, 4]
    assert values(store, "who")[3:] == ["who"] * 2


def test_a_name_mapping_without_a_column_loses_no_values(store: IcebergStore) -> None:
    commit_rows(store, 3, {"count": "int64"})
    mapping = table(store).properties["schema.name-mapping.default"]
    kept = [field for field in json.loads(mapping) if field["names"] != ["count"]]
    with table(store).transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": json.dumps(kept)})
    with pytest.raises(IcebergError, match="name mapping lacks a column"):
        commit_rows(fresh(store), 2, {"count": "int64"})
    assert table(store).scan().count() == 3


def test_a_table_of_this_name_elsewhere_is_refused(store: IcebergStore, tmp_path: Path) -> None:
    commit_rows(store, 3)
    uri = f"sqlite:///{store.root.removeprefix('file://')}/_catalog.db"
    elsewhere = IcebergStore((tmp_path / "elsewhere").as_uri(), store.topic, {"type": "sql", "uri": uri})
    for ask in (elsewhere.read_head, elsewhere.listed_files, lambda: commit_rows(elsewhere, 1)):
        with pytest.raises(IcebergError, match="lies in"):
            ask()
    assert offsets(store) == [0, 1, 2]


def test_offsets_of_a_load_that_was_taken_back_are_not_believed(store: IcebergStore) -> None:
    """A load is taken back, another writer goes on from before it, and the snapshots of loads expire."""
    commit_rows(store, 4)
    commit_rows(store, 2)
    table(store).delete("_offset < 4")
    before = table(store).current_snapshot().snapshot_id
    commit_rows(store, 6)
    table(store).manage_snapshots().set_current_snapshot(before).commit()
    table(store).delete("_offset < 6")
    last = table(store).current_snapshot()
    assert last.parent_snapshot_id == before
    for snapshot in table(store).metadata.snapshots:
        if snapshot.snapshot_id not in {last.snapshot_id, before}:
            table(store).maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    with pytest.raises(SnapshotPropertyError, match="was set back"):
        fresh(store).read_head()
    # An expiry that leaves the last one alone, and its parent's id, as Spark's does.
    assert not may_precede(table(store).properties, [last])


def test_a_table_with_other_partitions_takes_loads(store: IcebergStore) -> None:
    commit_rows(store, 3)
    with table(store).update_spec() as update:
        update.add_identity("_kafka_partition")
    commit_rows(fresh(store), 2)
    assert offsets(store) == list(range(5))
    assert table(store).scan("_kafka_partition = 0 and _offset > 2").to_arrow().num_rows == 2


def test_a_load_makes_no_new_table_in_a_catalog_that_came_back_empty(store: IcebergStore) -> None:
    """The next load would take it for the first one, and load what the topic still has."""
    commit_rows(store, 10)
    sleeper = fresh(store)
    head = sleeper.read_head()
    manifest = manifest_of(sleeper, head, write_file(sleeper, head, 5), "sleeper")
    sleeper.catalog.drop_table(("pipeline", store.topic))
    with pytest.raises(IcebergError, match="the catalog is another one, or was lost"):
        sleeper.commit(manifest, head, orphan_age_ms=60_000)
    with pytest.raises(IcebergError, match="the catalog is another one, or was lost"):
        fresh(store).read_head()


def test_a_first_load_notices_commits_that_came_meanwhile_and_were_lost(store: IcebergStore) -> None:
    sleeper = fresh(store)
    head = sleeper.read_head()
    manifest = manifest_of(sleeper, head, write_file(sleeper, head, 5), "sleeper")
    commit_rows(fresh(store), 10)
    sleeper.catalog.drop_table(("pipeline", store.topic))
    with pytest.raises(IcebergError, match="the catalog is another one, or was lost"):
        sleeper.commit(manifest, head, orphan_age_ms=60_000)


def test_a_table_dropped_and_made_again_by_somebody_else_is_no_table_of_loads(store: IcebergStore) -> None:
    commit_rows(store, 10)
    columns = table(store).schema()
    store.catalog.drop_table(("pipeline", store.topic))
    store.catalog.create_table(("pipeline", store.topic), columns, location=store.location)
    with pytest.raises(IcebergError, match="the catalog is another one, or was lost"):
        fresh(store).read_head()


def test_the_column_of_partitions_of_an_earlier_version_gets_its_new_name(store: IcebergStore) -> None:
    commit_rows(store, 3)
    with table(store).update_schema() as update:
        update.rename_column("_kafka_partition", "_partition")
    commit_rows(fresh(store), 2)
    assert values(store, "_kafka_partition") == [0] * 5
    assert "_partition" not in table(store).schema().column_names


def test_branches_and_tags_are_other_tables(store: IcebergStore) -> None:
    commit_rows(store, 4)
    first = table(store).current_snapshot().snapshot_id
    table(store).manage_snapshots().create_branch(first, "audit").create_tag(first, "whole").commit()
    table(store).delete("_offset >= 0", branch="audit")
    commit_rows(fresh(store), 2)
    assert offsets(store) == list(range(6))
    assert table(store).scan().use_ref("audit").to_arrow().num_rows == 0
    assert len(fresh(store).listed_files()) == 2
    table(store).manage_snapshots().set_current_snapshot(ref_name="audit").commit()
    assert fresh(store).read_head().offsets == {0: 4}  # the load that the branch came from
    commit_rows(fresh(store), 3)
    assert offsets(store) == [4, 5, 6]
