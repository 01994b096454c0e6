"""Marks of unfinished runs, and the removal of files that dead runs left.

A run leaves a mark before its first file: the commit that it follows (`head`) and its `orphan.age.ms`. A run can
commit only as the successor of that commit. So once another commit has followed, the run is fenced off for ever, and
what it wrote can never become part of the data, whatever its processes still do.

Invariant: `clean_up_dead_runs` deletes files only of runs that are fenced off, and whose mark is older than they
themselves allow. Ages are those of the file system, which sets all times: the clocks of machines do not matter.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from pipeline.errors import StorageError
from pipeline.hadoop.commit.layout import TopicLayout, run_of
from pipeline.hadoop.commit.store import CommitStore
from pipeline.hadoop.files.filesystem import FileSystem, PathNotFoundError

logger = structlog.get_logger()

_UNKNOWN_AGE_MS = 60 * 24 * 3_600_000
"""Age of a mark without content, as earlier versions wrote them: twice what they took for `orphan.age.ms` at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """Mark of a run that has not ended well yet. `head` is None in marks of earlier versions."""

    run_id: str
    head: int | None
    orphan_age_ms: int
    written_ms: int

    def is_dead(self, head: int, now_ms: int) -> bool:
        """Return True if the run can never commit and its files may be deleted."""
        return (self.head is None or self.head < head) and now_ms - self.written_ms > self.orphan_age_ms


def mark_run(files: FileSystem, layout: TopicLayout, run_id: str, *, head: int, orphan_age_ms: int) -> None:
    """Leave the mark of a run that follows commit `head` (0: none). Raises PathExistsError, StorageError."""
    with files.create(layout.run(run_id)) as mark:
        mark.write(json.dumps({"head": head, "orphan_age_ms": orphan_age_ms}).encode())


def end_run(files: FileSystem, layout: TopicLayout, run_id: str) -> None:
    """Delete the mark of a run whose tasks all ended at their first attempt, so that it left nothing to clean up."""
    files.delete(layout.run(run_id))


def read_marks(files: FileSystem, layout: TopicLayout) -> list[RunMark]:
    """Return the marks of all runs. A mark that vanishes meanwhile is left out."""
    marks = []
    for info in files.list_files(layout.runs):
        name = info.path.rsplit("/", 1)[-1]
        if name.startswith("."):
            continue
        try:
            content = json.loads(files.read(info.path))
            head, age_ms = int(content["head"]), int(content["orphan_age_ms"])
        except PathNotFoundError:
            continue
        except (ValueError, TypeError, KeyError):
            head, age_ms = None, _UNKNOWN_AGE_MS
        marks.append(RunMark(run_id=name, head=head, orphan_age_ms=age_ms, written_ms=info.modified_ms))
    return marks


def clean_up_dead_runs(files: FileSystem, layout: TopicLayout, run_id: str, store: CommitStore) -> int:
    """Delete the files of dead runs, and their marks. Return the number of deleted files.

    `run_id` is that of the caller, whose run has not begun. Raises ManifestError, StorageError.
    """
    marks = read_marks(files, layout)
    if not marks:
        return 0
    head = store.read_head().next_sequence - 1
    now_ms = _now_ms(files, layout, run_id)
    dead = [mark.run_id for mark in marks if mark.is_dead(head, now_ms)]
    if not dead:
        return 0
    deleted = _delete_orphans(files, layout, dead, store)
    for name in dead:
        files.delete(layout.run(name))
    return deleted


def clean_up_own_run(files: FileSystem, layout: TopicLayout, run_id: str, store: CommitStore) -> int:
    """Delete the files of a run whose outcome is certain; those that it committed stay. Return how many.

    The mark stays, since tasks may still write somewhere; it goes when the run is dead, with what they left.
    """
    return _delete_orphans(files, layout, [run_id], store)


def _delete_orphans(files: FileSystem, layout: TopicLayout, run_ids: Iterable[str], store: CommitStore) -> int:
    """Delete files of the runs that are not part of the data; commits are read after files were listed."""
    ended = set(run_ids)
    written = [info.path for info in files.list_files(f"{layout.topic_root}/hourly", recursive=True)]
    written += [info.path for info in files.list_files(f"{layout.topic_root}/quarantine")]
    listed = store.listed_files()
    orphans = [path for path in written if layout.relative(path) not in listed and run_of(path) in ended]
    for directory in (layout.commits, layout.checkpoints):
        names = (info.path for info in files.list_files(directory))
        orphans += [
            path for path in names if path.rsplit("/", 1)[-1].startswith(".") and path.rsplit(".", 1)[-1] in ended
        ]
    deleted = sum(files.delete(path) for path in orphans)
    logger.info("load_cleaned_up", topic_root=layout.topic_root, runs=sorted(ended), files=deleted)
    return deleted


def _now_ms(files: FileSystem, layout: TopicLayout, run_id: str) -> int:
    """Return the time of the file system, that of a file which is written now."""
    path = layout.clock(run_id)
    with files.create(path) as clock:
        clock.write(b"")
    times = [info.modified_ms for info in files.list_files(layout.runs) if info.path == path]
    files.delete(path)
    if not times:
        raise StorageError(path, "was written, and is not listed")
    return times[0]
