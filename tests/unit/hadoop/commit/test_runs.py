"""Clean-up after dead runs: what it deletes, and which runs it spares."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.publication import CommitConflictError, commit, read_head
from pipeline.hadoop.commit.runs import clean_up_dead_runs, clean_up_own_run, end_run, mark_run, read_marks
from pipeline.hadoop.files.local import LocalFileSystem

MINUTE_MS = 60_000
HOUR_MS = 3_600_000


class Runs:
    """Runs of one topic, at any step of their work."""

    def __init__(self, directory: Path, make_manifest: Callable[..., Any]) -> None:
        self.files = LocalFileSystem()
        self.layout = topic_layout(str(directory), "clicks")
        self._make_manifest = make_manifest

    def begin(self, run_id: str, *, age_ms: int = 0, orphan_age_ms: int = HOUR_MS) -> Any:
        """A run whose files are written and whose mark is `age_ms` old; what it needs to commit."""
        head = read_head(self.files, self.layout)
        mark_run(self.files, self.layout, run_id, head=head.next_sequence - 1, orphan_age_ms=orphan_age_ms)
        self.age(run_id, age_ms)
        manifest = self._make_manifest(head, run_id=run_id)
        for file in manifest.files:
            with self.files.create(self.layout.absolute(file.path)) as sink:
                sink.write(b"data")
        return manifest, head

    def age(self, run_id: str, age_ms: int) -> None:
        path = Path(self.layout.run(run_id))
        then_s = path.stat().st_mtime - age_ms / 1000
        os.utime(path, (then_s, then_s))

    def commit(self, begun: Any) -> None:
        commit(self.files, self.layout, *begun)

    def clean_up(self) -> int:
        return clean_up_dead_runs(self.files, self.layout, "next", ManifestStore(self.files, self.layout))

    def names(self) -> set[str]:
        found = self.files.list_files(self.layout.topic_root + "/hourly", recursive=True)
        return {info.path.rsplit("/", 1)[-1] for info in found}

    def marks(self) -> set[str]:
        return {mark.run_id for mark in read_marks(self.files, self.layout)}


@pytest.fixture
def runs(tmp_path: Path, make_manifest: Callable[..., Any]) -> Runs:
    return Runs(tmp_path, make_manifest)


def test_a_slow_run_keeps_its_files_whatever_another_allows_itself(runs: Runs) -> None:
    slow = runs.begin("slow", age_ms=3 * MINUTE_MS, orphan_age_ms=24 * HOUR_MS)
    runs.begin("hasty", orphan_age_ms=MINUTE_MS)
    assert runs.clean_up() == 0
    runs.commit(slow)
    assert runs.files.read(runs.layout.absolute(slow[0].files[0].path)) == b"data"


def test_an_old_run_that_can_commit_yet_keeps_its_files(runs: Runs) -> None:
    paused = runs.begin("paused", age_ms=50 * HOUR_MS)
    assert runs.clean_up() == 0
    runs.commit(paused)
    assert read_head(runs.files, runs.layout).offsets == {0: 10}


def test_files_of_a_fenced_run_go_when_it_is_old(runs: Runs) -> None:
    old, young = runs.begin("old", age_ms=2 * HOUR_MS), runs.begin("young")
    runs.commit(runs.begin("won"))
    assert runs.clean_up() == 1
    assert runs.names() == {"0-0-won-0-1-0.avro", "0-0-young-0-1-0.avro"}
    assert runs.marks() == {"won", "young"}
    for late in (old, young):
        with pytest.raises(CommitConflictError):
            runs.commit(late)


def test_the_times_of_the_file_system_decide(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.begin("young", age_ms=30 * MINUTE_MS)
    runs.commit(runs.begin("won"))
    monkeypatch.setattr("time.time", lambda: 1e12)
    monkeypatch.setattr("time.time_ns", lambda: 10**21)
    assert runs.clean_up() == 0


def test_marks_of_earlier_versions_last_for_sixty_days(runs: Runs) -> None:
    for run_id, age_ms in (("before", 59 * 24 * HOUR_MS), ("long", 61 * 24 * HOUR_MS)):
        runs.begin(run_id)
        Path(runs.layout.run(run_id)).write_bytes(run_id.encode())
        runs.age(run_id, age_ms)
    assert runs.clean_up() == 0, "nothing is committed, so nobody knows what may go"
    runs.commit(runs.begin("won"))
    assert runs.clean_up() == 1
    assert runs.names() == {"0-0-before-0-1-0.avro", "0-0-won-0-1-0.avro"}


def test_what_is_listed_or_foreign_stays(runs: Runs) -> None:
    runs.commit(runs.begin("won", age_ms=2 * HOUR_MS))
    runs.begin("failed")
    Path(runs.layout.topic_root, "hourly", "notes.txt").write_text("mine")
    temporary = Path(runs.layout.temporary_manifest(2, "failed"))
    temporary.write_text("{}")
    assert clean_up_own_run(runs.files, runs.layout, "failed", ManifestStore(runs.files, runs.layout)) == 2
    assert runs.names() == {"0-0-won-0-1-0.avro", "notes.txt"}
    assert not temporary.exists()
    end_run(runs.files, runs.layout, "won")
    assert runs.marks() == {"failed"}
    assert not [info for info in runs.files.list_files(runs.layout.runs) if "clock" in info.path]
