import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.hadoop.commit.checkpoints import read_chain, read_manifests
from pipeline.hadoop.commit.layout import TopicLayout, topic_layout
from pipeline.hadoop.commit.manifest import Manifest, ManifestError
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.publication import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    commit,
    read_head,
)
from pipeline.hadoop.commit.runs import clean_up_dead_runs, mark_run
from pipeline.hadoop.files.local import LocalFileSystem
from tests.support.faulty_filesystem import Died, FaultyFileSystem

STEPS_OF_A_COMMIT = ["create", "write", "close", "rename"]


def run_id_of(files: Any, layout: TopicLayout) -> str:
    manifest = read_head(files, layout).manifest
    assert manifest is not None
    return manifest.run_id


@pytest.fixture
def layout(tmp_path: Path) -> TopicLayout:
    return topic_layout(str(tmp_path), "clicks")


@pytest.fixture
def files() -> LocalFileSystem:
    return LocalFileSystem()


def write_files(files: LocalFileSystem, layout: TopicLayout, manifest: Manifest) -> None:
    for file in manifest.files:
        with files.create(layout.absolute(file.path)) as sink:
            sink.write(b"data")


def test_commits_are_read_back_in_order(
    files: LocalFileSystem, layout: TopicLayout, make_manifest: Callable[..., Any], tmp_path: Path
) -> None:
    for _ in range(3):
        head = read_head(files, layout)
        commit(files, layout, make_manifest(head), head)
    manifests = read_manifests(tmp_path.as_uri(), "clicks")
    assert [manifest.sequence for manifest in manifests] == [1, 2, 3]
    assert read_head(files, layout).offsets == {0: 30}


def test_the_second_of_two_loaders_is_fenced(
    files: LocalFileSystem, layout: TopicLayout, make_manifest: Callable[..., Any]
) -> None:
    head = read_head(files, layout)
    commit(files, layout, make_manifest(head, run_id="r1"), head)
    with pytest.raises(CommitConflictError) as caught:
        commit(files, layout, make_manifest(head, run_id="r2"), head)
    assert (caught.value.winner, caught.value.sequence) == ("r1", 1)
    assert run_id_of(files, layout) == "r1"


def test_exactly_one_of_many_loaders_commits(
    files: LocalFileSystem, layout: TopicLayout, make_manifest: Callable[..., Any]
) -> None:
    head = read_head(files, layout)
    barrier = threading.Barrier(8)
    outcomes = {}

    def load(run_id: str) -> None:
        barrier.wait()
        try:
            commit(files, layout, make_manifest(head, run_id=run_id), head)
            outcomes[run_id] = "won"
        except CommitConflictError as error:
            outcomes[run_id] = error.winner

    threads = [threading.Thread(target=load, args=(f"r{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = run_id_of(files, layout)
    assert outcomes.pop(winner) == "won"
    assert set(outcomes.values()) == {winner}
    assert len(outcomes) == 7


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 5))
def test_dying_at_any_step_leaves_all_or_nothing(
    files: LocalFileSystem, layout: TopicLayout, make_manifest: Callable[..., Any], step: int, after: bool
) -> None:
    head = read_head(files, layout)
    manifest = make_manifest(head, run_id="dead")
    mark_run(files, layout, "dead", head=0, orphan_age_ms=60_000)
    os.utime(layout.run("dead"), (0, 0))
    write_files(files, layout, manifest)
    faulty = FaultyFileSystem(files, fail_at=step, after=after, die=True)
    with pytest.raises(Died):
        commit(faulty, layout, manifest, head)
    assert faulty.operations == STEPS_OF_A_COMMIT[:step]

    committed = read_chain(files, layout)
    assert [m.run_id for m in committed] == (["dead"] if step == 4 and after else [])
    if not committed:
        assert clean_up_dead_runs(files, layout, "next", ManifestStore(files, layout)) == 0, (
            "it could commit yet, if it were only slow"
        )
    head = read_head(files, layout)
    following = make_manifest(head, run_id="next")
    write_files(files, layout, following)
    commit(files, layout, following, head)
    assert read_head(files, layout).offsets == {0: 20 if committed else 10}
    deleted = clean_up_dead_runs(files, layout, "last", ManifestStore(files, layout))
    present = [info.path for info in files.list_files(f"{layout.topic_root}/hourly", recursive=True)]
    assert present == [layout.absolute(file.path) for m in [*committed, following] for file in m.files]
    assert (deleted > 0) == (not committed)
    assert files.list_files(layout.runs) == []


@pytest.mark.parametrize("step", range(1, 5))
def test_an_error_before_the_rename_took_place_commits_nothing(
    files: LocalFileSystem, layout: TopicLayout, make_manifest: Callable[..., Any], step: int
) -> None:
    head = read_head(files, layout)
    faulty = FaultyFileSystem(files, fail_at=step)
    with pytest.raises(StorageError, match="injected"):
        commit(faulty, layout, make_manifest(head), head)
    assert read_chain(files, layout) == []


def test_an_error_after_the_rename_took_place_is_a_commit(
    files: LocalFileSystem, layout: TopicLayout, make_manifest: Callable[..., Any]
) -> None:
    head = read_head(files, layout)
    commit(FaultyFileSystem(files, fail_at=4, after=True), layout, make_manifest(head), head)
    assert run_id_of(files, layout) == "r1"


@pytest.mark.parametrize("after", [False, True])
def test_an_outage_at_the_rename_leaves_the_outcome_to_the_next_run(
    files: LocalFileSystem, layout: TopicLayout, make_manifest: Callable[..., Any], after: bool
) -> None:
    head = read_head(files, layout)
    with pytest.raises(CommitOutcomeUnknownError, match="Run again"):
        commit(FaultyFileSystem(files, fail_at=4, after=after, outage=True), layout, make_manifest(head), head)
    assert len(read_chain(files, layout)) == after


def test_a_chain_with_a_hole_or_a_stranger_is_refused(
    files: LocalFileSystem, layout: TopicLayout, make_manifest: Callable[..., Any]
) -> None:
    for _ in range(3):
        head = read_head(files, layout)
        commit(files, layout, make_manifest(head), head)
    second = Path(layout.manifest(2))
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(ManifestError, match="missing"):
        read_chain(files, layout)
    second.write_bytes(content.replace(b'"created_ms": 1', b'"created_ms": 2'))
    with pytest.raises(ManifestError, match="checksum"):
        read_chain(files, layout)
