"""`load verify` of Iceberg tables: what is lost, doubled, changed or expired is named."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from pipeline.hadoop.iceberg.history import read_iceberg_history
from pipeline.hadoop.iceberg.store import IcebergStore
from pipeline.hadoop.upkeep.iceberg_verification import verify_table_files
from pipeline.hadoop.upkeep.verification import DoubledRecords, held_otherwise
from tests.support.iceberg_commits import FIRST_HOUR_MS, commit_rows


@pytest.fixture
def store(tmp_path: Path) -> IcebergStore:
    store = IcebergStore(tmp_path.as_uri(), "visits", {})
    for count in (10, 5):
        commit_rows(store, count)
    return store


def differences(store: IcebergStore) -> Any:
    history = read_iceberg_history(IcebergStore(store.root, store.topic, {}))
    assert history is not None
    return [(item.path.rsplit("/", 1)[-1], item.reason) for item in verify_table_files(history, lambda _: None)]


def table(store: IcebergStore) -> Any:
    path = store.root.removeprefix("file://")
    return load_catalog("pipeline", type="sql", uri=f"sqlite:///{path}/_catalog.db").load_table(("pipeline", "visits"))


def files(store: IcebergStore) -> list[Path]:
    return sorted(Path(store.root.removeprefix("file://")).rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)


def test_a_whole_table_has_no_differences(store: IcebergStore) -> None:
    assert differences(store) == []
    commit_rows(store, 7)
    assert differences(store) == []


def test_files_that_are_gone_or_damaged_are_named(store: IcebergStore) -> None:
    first, second = files(store)
    first.unlink()
    data = bytearray(second.read_bytes())
    data[4:40] = bytes(36)
    second.write_bytes(data)
    reasons = dict(differences(store))
    assert reasons[first.name] == "is missing"
    assert "cannot be read" in reasons[second.name]
    second.write_bytes(data[:-1])
    assert f"has {len(data) - 1} bytes" in dict(differences(store))[second.name]


def test_rows_that_another_writer_deleted_are_named(store: IcebergStore) -> None:
    table(store).delete("_offset >= 10")
    (found,) = differences(store)
    assert found[0] == "partition 0 [10, 15)"
    assert "commit 2 counts 5 records, and the table holds 0; another writer removed rows in snapshot" in found[1]


def test_rows_that_are_there_twice_or_too_late_are_named(store: IcebergStore) -> None:
    first, second = files(store)
    copy = first.with_name("copy.parquet")
    copy.write_bytes(first.read_bytes())
    table(store).add_files([copy.as_uri()])
    found = differences(store)
    assert [reason for _, reason in found if "more than once" in reason]
    other = IcebergStore(f"{store.root}/else", "visits", {})
    for count in (15, 30):
        commit_rows(other, count)
    late = second.with_name("late.parquet")
    late.write_bytes(files(other)[1].read_bytes())
    table(store).add_files([late.as_uri()])
    assert [reason for _, reason in differences(store) if "offset 44, beyond the last that was loaded" in reason]


def test_a_doubled_file_says_how_many_records_of_which_hours_are_there_twice(store: IcebergStore) -> None:
    first, _ = files(store)
    copy = first.with_name("copy.parquet")
    copy.write_bytes(first.read_bytes())
    table(store).add_files([copy.as_uri()])
    history = read_iceberg_history(store)
    assert history is not None
    damaged, doubled = held_otherwise(verify_table_files(history, lambda _: None))
    assert (damaged, doubled) == (set(), [DoubledRecords(0, FIRST_HOUR_MS, 10)])


def test_expired_commits_are_counted(store: IcebergStore) -> None:
    found = table(store)
    found.maintenance.expire_snapshots().by_id(found.metadata.snapshots[0].snapshot_id).commit()
    history = read_iceberg_history(store)
    assert history is not None
    assert (history.expired, [commit.sequence for commit in history.commits]) == (1, [2])
    assert differences(store) == []
    assert len(history.files()) == 2
