"""Commits to a real REST catalog: exact while loaders, the catalog and the network between them fail, and fenced."""

import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import StringType

from pipeline.hadoop.commit.publication import CommitConflictError, CommitOutcomeUnknownError
from pipeline.hadoop.iceberg.catalog import CatalogUnreachableError
from pipeline.hadoop.iceberg.store import IcebergError, IcebergStore
from tests.support.http_proxy import Fault, FaultyProxy, faulty_proxy
from tests.support.iceberg_commits import commit_rows, manifest_of, write_file
from tests.support.rest_catalog import RestCatalogServer, running_rest_catalog

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with running_rest_catalog(tmp_path_factory.mktemp("catalog")) as running:
        yield running


@pytest.fixture
def store(server: RestCatalogServer, tmp_path: Path) -> IcebergStore:
    return IcebergStore(tmp_path.as_uri(), f"visits-{next(_numbers)}", server.properties)


@pytest.fixture
def proxy(server: RestCatalogServer) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.url) as running:
        yield running


def fresh(store: IcebergStore, proxy: FaultyProxy | None = None, timeout_s: float = 120) -> IcebergStore:
    given = store.catalog_properties if proxy is None else {"type": "rest", "uri": proxy.url}
    return IcebergStore(store.root, store.topic, given, timeout_s)


def table(store: IcebergStore) -> Any:
    """The table as any program of pyiceberg opens it."""
    return load_catalog("pipeline", **store.catalog_properties).load_table(("pipeline", store.topic))


def offsets(store: IcebergStore) -> Any:
    return sorted(table(store).scan().to_arrow().column("_offset").to_pylist())


def is_exact(store: IcebergStore, end: int) -> bool:
    return offsets(store) == list(range(end)) and fresh(store).read_head().offsets == {0: end}


def test_commits_follow_each_other(store: IcebergStore) -> None:
    assert store.read_head().manifest is None
    commit_rows(store, 10, {"count": "int32"})
    commit_rows(fresh(store), 5, {"count": "int64", "who": "string"})
    assert is_exact(store, 15)


def test_two_loaders_at_once(store: IcebergStore) -> None:
    commit_rows(store, 10)
    outcomes: list[str] = []
    ready = threading.Barrier(4)

    def load(number: int) -> None:
        own = fresh(store)
        head = own.read_head()
        manifest = manifest_of(own, head, write_file(own, head, 7), f"run{number}")
        ready.wait(60)
        try:
            own.commit(manifest, head, orphan_age_ms=60_000)
            outcomes.append(f"run{number}")
        except CommitConflictError:
            outcomes.append("conflict")

    loaders = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for each in loaders:
        each.start()
    for each in loaders:
        each.join()
    assert sorted(outcomes)[:3] == ["conflict"] * 3
    assert len(outcomes) == 4
    assert outcomes.count("conflict") == 3
    assert is_exact(store, 17)


@pytest.mark.parametrize("step", ["before", "sent", "carried out", "after"])
def test_a_loader_killed_around_its_commit(store: IcebergStore, proxy: FaultyProxy, step: str) -> None:
    commit_rows(store, 10)
    loader: Any = None
    known = threading.Event()

    def kill_loader() -> None:
        assert known.wait(60)
        os.kill(loader.pid, signal.SIGKILL)

    if step in {"sent", "carried out"}:
        proxy.faults.append(Fault("POST", store.topic, is_forwarded=step == "carried out", then=kill_loader))
    own_step = step if step in {"before", "after"} else "never"
    properties = json.dumps({"type": "rest", "uri": proxy.url})
    command = [sys.executable, "-m", "tests.support.iceberg_commits", store.root, store.topic, own_step, properties]
    loader = subprocess.Popen(command, cwd=ROOT)
    known.set()
    assert loader.wait(180) == -signal.SIGKILL
    expected = 15 if step in {"after", "carried out"} else 10
    assert is_exact(store, expected)
    commit_rows(fresh(store), 5, run_id="next")
    assert is_exact(store, expected + 5)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_an_error_after_the_commit_was_carried_out(store: IcebergStore, proxy: FaultyProxy, status: int) -> None:
    commit_rows(store, 10)
    proxy.faults.append(Fault("POST", store.topic, status=status))
    commit_rows(fresh(store, proxy), 5)
    assert is_exact(store, 15)


def test_an_error_instead_of_a_commit_leaves_its_outcome_open(store: IcebergStore, proxy: FaultyProxy) -> None:
    """The request may be in a queue of the catalog: it is carried out later, once, or never."""
    commit_rows(store, 10)
    proxy.faults.append(Fault("POST", store.topic, status=504, is_late=True))
    with pytest.raises(CommitOutcomeUnknownError):
        commit_rows(fresh(store, proxy), 5, run_id="late")
    assert is_exact(store, 10)
    proxy.let_through()
    assert is_exact(store, 15)
    commit_rows(fresh(store), 5)
    assert is_exact(store, 20)


def test_a_refusal_without_a_cause_deletes_nothing(store: IcebergStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway sends the commit twice and answers with the second refusal; what is read then comes of its cache."""
    commit_rows(store, 10)
    loader = fresh(store)
    before = loader.catalog.load_table(("pipeline", store.topic))
    commit = loader.catalog.commit_table

    def commit_and_refuse(*arguments: Any) -> None:
        commit(*arguments)
        monkeypatch.setattr(loader.catalog, "load_table", lambda _: before)
        raise CommitFailedException("the current snapshot is another one")

    monkeypatch.setattr(loader.catalog, "commit_table", commit_and_refuse)
    with pytest.raises(CommitOutcomeUnknownError):
        commit_rows(loader, 5, run_id="twice")
    assert is_exact(store, 15)


def test_a_change_of_the_schema_by_an_operator_refuses_a_load(
    store: IcebergStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_rows(store, 10)
    loader = fresh(store)
    commit = loader.catalog.commit_table

    def commit_late(*arguments: Any) -> Any:
        with table(store).update_schema() as update:
            update.add_column("note", StringType())
        return commit(*arguments)

    monkeypatch.setattr(loader.catalog, "commit_table", commit_late)
    with pytest.raises(IcebergError, match="nothing was committed"):
        commit_rows(loader, 5, {"who": "string"})
    commit_rows(fresh(store), 5, {"who": "string"})
    assert is_exact(store, 15)


def test_a_late_commit_is_fenced_by_the_next_load(store: IcebergStore, proxy: FaultyProxy) -> None:
    commit_rows(store, 10)
    proxy.faults.append(Fault("POST", store.topic, status=504, is_late=True))
    with pytest.raises(CommitOutcomeUnknownError):
        commit_rows(fresh(store, proxy), 5, run_id="late")
    commit_rows(fresh(store), 5, run_id="next")
    proxy.let_through()
    assert is_exact(store, 15)


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_catalog_killed_around_a_commit(tmp_path: Path, carried_out: bool) -> None:
    directory = tmp_path / "catalog"
    directory.mkdir()
    with running_rest_catalog(directory) as server, faulty_proxy(server.url) as proxy:
        store = IcebergStore((tmp_path / "lake").as_uri(), "visits", server.properties)
        commit_rows(store, 10)
        proxy.faults.append(Fault("POST", "/visits", is_forwarded=carried_out, then=server.kill))
        with pytest.raises(CommitOutcomeUnknownError):
            commit_rows(fresh(store, proxy), 5, run_id="unknown")
        with pytest.raises(CatalogUnreachableError):
            fresh(store).read_head()
        server.restart()
        expected = 15 if carried_out else 10
        assert is_exact(store, expected)
        commit_rows(fresh(store), 5, run_id="next")
        assert is_exact(store, expected + 5)


def test_a_catalog_restored_from_an_older_copy(tmp_path: Path) -> None:
    directory = tmp_path / "catalog"
    directory.mkdir()
    with running_rest_catalog(directory) as server:
        store = IcebergStore((tmp_path / "lake").as_uri(), "visits", server.properties)
        commit_rows(store, 10)
        backup = tmp_path / "backup.db"
        with sqlite3.connect(server.database) as source, sqlite3.connect(backup) as copy:
            source.backup(copy)
        source.close()
        copy.close()
        commit_rows(store, 5)
        sleeper = fresh(store)
        head = sleeper.read_head()
        manifest = manifest_of(sleeper, head, write_file(sleeper, head, 7), "sleeper")
        server.kill()
        for path in directory.glob("catalog.db*"):
            path.unlink()
        shutil.copy(backup, server.database)
        server.restart()
        assert is_exact(store, 10)
        with pytest.raises(CommitConflictError):  # it read its offsets from what no longer exists
            sleeper.commit(manifest, head, orphan_age_ms=60_000)
        commit_rows(fresh(store), 20)
        assert is_exact(store, 30)
        server.kill()
        for path in directory.glob("catalog.db*"):
            path.unlink()
        server.restart()
        with pytest.raises(IcebergError, match="the catalog is another one, or was lost"):
            fresh(store).read_head()


@pytest.mark.parametrize("ending", ["/config", "", "commit"])
def test_a_silent_catalog_ends_a_load(store: IcebergStore, proxy: FaultyProxy, ending: str) -> None:
    commit_rows(store, 10)
    method, path = {"/config": ("GET", "/config"), "": ("GET", store.topic), "commit": ("POST", store.topic)}[ending]
    proxy.faults.append(Fault(method, path, times=1000, is_forwarded=False, status=None))
    loader = fresh(store, proxy, timeout_s=1)
    errors = {"/config": CatalogUnreachableError, "": IcebergError, "commit": CommitOutcomeUnknownError}
    began = time.monotonic()
    with pytest.raises(errors[ending]):
        commit_rows(loader, 5, run_id="silent")
    assert time.monotonic() - began < 100
    assert is_exact(store, 10)
    proxy.faults.clear()
    commit_rows(fresh(store, proxy), 5)
    assert is_exact(store, 15)
