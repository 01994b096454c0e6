"""Commits to a real Hive metastore: fenced, and exact when a loader dies."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from pipeline.hadoop.commit.publication import CommitConflictError
from pipeline.hadoop.iceberg.catalog import open_catalog
from pipeline.hadoop.iceberg.store import IcebergStore
from tests.support.hive_metastore import running_hive_metastore
from tests.support.iceberg_commits import commit_rows, manifest_of, write_file

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_hive_metastore(tmp_path_factory.mktemp("metastore")) as uri:
        yield {"type": "hive", "uri": uri, "hive.hive2-compatible": "true"}


@pytest.fixture
def store(properties: dict[str, str], tmp_path: Path) -> IcebergStore:
    return IcebergStore(tmp_path.as_uri(), f"visits_{tmp_path.name}", properties)


def fresh(store: IcebergStore) -> IcebergStore:
    return IcebergStore(store.root, store.topic, store.catalog_properties)


def is_exact(store: IcebergStore, end: int) -> bool:
    table = load_catalog("pipeline", **store.catalog_properties).load_table(("pipeline", store.topic))
    found = sorted(table.scan().to_arrow().column("_offset").to_pylist())
    return found == list(range(end)) and fresh(store).read_head().offsets == {0: end}


def test_commits_follow_each_other_and_columns_evolve(store: IcebergStore) -> None:
    assert store.read_head().manifest is None
    commit_rows(store, 10, {"count": "int32"})
    commit_rows(fresh(store), 5, {"count": "int64", "who": "string"})
    assert is_exact(store, 15)


def test_one_of_several_loaders_commits(store: IcebergStore) -> None:
    commit_rows(store, 10)
    outcomes: list[str] = []
    ready = threading.Barrier(3)

    def load(number: int) -> None:
        own = fresh(store)
        head = own.read_head()
        manifest = manifest_of(own, head, write_file(own, head, 7), f"run{number}")
        ready.wait(60)
        try:
            own.commit(manifest, head, orphan_age_ms=60_000)
            outcomes.append("committed")
        except CommitConflictError:
            outcomes.append("conflict")

    loaders = [threading.Thread(target=load, args=(number,)) for number in range(3)]
    for each in loaders:
        each.start()
    for each in loaders:
        each.join()
    assert sorted(outcomes) == ["committed", "conflict", "conflict"]
    assert is_exact(store, 17)


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_loader_killed_around_its_commit(store: IcebergStore, step: str) -> None:
    commit_rows(store, 10)
    given = json.dumps(store.catalog_properties)
    command = [sys.executable, "-m", "tests.support.iceberg_commits", store.root, store.topic, step, given]
    assert subprocess.run(command, cwd=ROOT, timeout=180, check=False).returncode == -signal.SIGKILL
    expected = 15 if step == "after" else 10
    assert is_exact(store, expected)
    commit_rows(fresh(store), 5, run_id="next")
    assert is_exact(store, expected + 5)


def test_a_silent_metastore_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        catalog: Any = open_catalog("file:///lake", {"uri": f"thrift://127.0.0.1:{server.getsockname()[1]}"}, 0.2)
        with pytest.raises(Exception, match="read timeout"):
            catalog.load_table(("pipeline", "visits"))
