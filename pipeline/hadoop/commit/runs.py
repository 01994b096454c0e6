"""Marks of unfinished runs, and the removal of files that dead runs left.

A run leaves a mark before its first file: the commit that it follows (`head`) and its `orphan.age.ms`. A run can
commit only as the successor of the commit in its last mark. So once another commit has followed, the run is fenced
off, and what it wrote cannot become part of the data, unless it follows that commit by a further mark
(`follow_commit`). Marks of a run are numbered, and each is created exclusively: a run that wants to go on, and a
clean-up that wants to delete its files, contend for the same number, and one of them wins.

Invariants:

A. Files are deleted only of runs that are fenced off, whose last mark is older than they themselves allow, and whose
   next mark the clean-up has won (`dead`). Ages are those of the file system, which sets all times: the clocks of
   machines do not matter.
B. Marks of a dead run go after its files. A run that follows a commit looks for its files after it has left the mark.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError, StorageError
from pipeline.hadoop.commit.layout import QUARANTINES, TopicLayout, parse_mark, run_of
from pipeline.hadoop.commit.manifest import DataFile
from pipeline.hadoop.commit.store import CommitStore
from pipeline.hadoop.files.doors import FileInfo, FileSystem, PathExistsError, PathNotFoundError

logger = get_logger(__name__)

_UNKNOWN_AGE_MS = 60 * 24 * 3_600_000
"""Age of a mark without content, as earlier versions wrote them: twice what they took for `orphan.age.ms` at most."""


class RunEndedError(PipelineError):
    """The run's files are not there: a clean-up took it for dead, or an older copy came back. Nothing was committed."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id}: {reason}; nothing was committed. Run again, with a longer orphan.age.ms")
        self.run_id = run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """Last mark of a run that has not ended well yet. `head` is None in marks of earlier versions.

    `numbers` are those of all its marks. True for `is_claimed`: a clean-up has won the last mark.
    """

    run_id: str
    numbers: tuple[int, ...]
    head: int | None
    orphan_age_ms: int
    written_ms: int
    is_claimed: bool = False

    def is_dead(self, head: int, now_ms: int) -> bool:
        """Return True if the run is fenced off, and its files may be deleted once its next mark is won."""
        is_fenced = self.head is None or self.head < head
        return self.is_claimed or (is_fenced and now_ms - self.written_ms > self.orphan_age_ms)


def mark_run(files: FileSystem, layout: TopicLayout, run_id: str, *, head: int, orphan_age_ms: int) -> None:
    """Leave the mark of a run that follows commit `head` (0: none). Raises PathExistsError, StorageError."""
    _write_mark(files, layout.run(run_id), {"head": head, "orphan_age_ms": orphan_age_ms})


def follow_commit(
    files: FileSystem, layout: TopicLayout, run_id: str, number: int, *, head: int, orphan_age_ms: int
) -> None:
    """Leave mark `number` (1, 2, ...) of a run that will follow commit `head` in place of the one it began with.

    Raises RunEndedError if a clean-up has won that mark; StorageError.
    """
    try:
        _write_mark(files, layout.run(run_id, number), {"head": head, "orphan_age_ms": orphan_age_ms})
    except PathExistsError as error:
        raise RunEndedError(run_id, "its files were cleaned up") from error


def check_files(files: FileSystem, layout: TopicLayout, run_id: str, listed: Iterable[DataFile]) -> None:
    """Raise RunEndedError unless all files are there, of the size that is listed."""
    sizes = {layout.absolute(file.path): file.bytes for file in listed}
    found = {
        info.path: info.size_bytes
        for directory in {path.rsplit("/", 1)[0] for path in sizes}
        for info in files.list_files(directory)
    }
    for path, size in sizes.items():
        if found.get(path) != size:
            raise RunEndedError(run_id, f"its file {layout.relative(path)} is not there as it was written")


def end_run(files: FileSystem, layout: TopicLayout, run_id: str) -> None:
    """Delete the marks of a run whose tasks all ended at their first attempt, so that it left nothing to clean up."""
    for mark in read_marks(files, layout):
        if mark.run_id == run_id:
            delete_marks(files, layout, mark)


def delete_marks(files: FileSystem, layout: TopicLayout, mark: RunMark) -> None:
    """Delete all marks of a run, the last one at last."""
    for number in mark.numbers:
        files.delete(layout.run(mark.run_id, number))


def read_marks(files: FileSystem, layout: TopicLayout) -> list[RunMark]:
    """Return the last mark of each run. A mark that vanishes meanwhile is left out."""
    written: dict[str, dict[int, FileInfo]] = {}
    for info in files.list_files(layout.runs):
        parsed = parse_mark(info.path)
        if parsed is not None:
            written.setdefault(parsed[0], {})[parsed[1]] = info
    marks = []
    for run_id, infos in written.items():
        numbers = tuple(sorted(infos))
        last = infos[numbers[-1]]
        is_claimed = False
        head: int | None
        try:
            content = json.loads(files.read(last.path))
            is_claimed = bool(content.get("dead", False))
            head, age_ms = (None, 0) if is_claimed else (int(content["head"]), int(content["orphan_age_ms"]))
        except PathNotFoundError:
            continue
        except (ValueError, TypeError, KeyError, AttributeError):
            head, age_ms = None, _UNKNOWN_AGE_MS
        marks.append(
            RunMark(
                run_id=run_id,
                numbers=numbers,
                head=head,
                orphan_age_ms=age_ms,
                written_ms=last.modified_ms,
                is_claimed=is_claimed,
            )
        )
    return marks


def claim_dead_runs(files: FileSystem, layout: TopicLayout, marks: Iterable[RunMark]) -> list[RunMark]:
    """Win the next marks of dead runs, so that they cannot commit any more. Return those whose files may be deleted."""
    won = []
    for mark in marks:
        if mark.is_claimed:
            won.append(mark)
            continue
        number = mark.numbers[-1] + 1
        with suppress(PathExistsError):
            _write_mark(files, layout.run(mark.run_id, number), {"dead": True})
            won.append(replace(mark, numbers=(*mark.numbers, number), is_claimed=True))
    return won


def clean_up_dead_runs(files: FileSystem, layout: TopicLayout, run_id: str, store: CommitStore) -> int:
    """Delete the files of dead runs, and their marks. Return the number of deleted files.

    `run_id` is that of the caller, whose run has not begun. Raises ManifestError, StorageError.
    """
    marks = read_marks(files, layout)
    if not marks:
        return 0
    head = store.read_head().next_sequence - 1
    if not head:  # no run is fenced off, and nobody knows which files were committed
        return 0
    now_ms = filesystem_now_ms(files, layout, run_id)
    dead = claim_dead_runs(files, layout, [mark for mark in marks if mark.is_dead(head, now_ms)])
    if not dead:
        return 0
    deleted = _delete_orphans(files, layout, [mark.run_id for mark in dead], store)
    for mark in dead:
        delete_marks(files, layout, mark)
    return deleted


def clean_up_own_run(files: FileSystem, layout: TopicLayout, run_id: str, store: CommitStore) -> int:
    """Delete the files of a run whose outcome is certain; those that it committed stay. Return how many.

    The mark stays, since tasks may still write somewhere; it goes when the run is dead, with what they left.
    """
    return _delete_orphans(files, layout, [run_id], store)


def _delete_orphans(files: FileSystem, layout: TopicLayout, run_ids: Iterable[str], store: CommitStore) -> int:
    """Delete files of the runs that are not part of the data; commits are read after files were listed."""
    ended = set(run_ids)
    written = [info.path for folder in layout.data_folders for info in files.list_files(folder, recursive=True)]
    for folder in QUARANTINES:
        written += [info.path for info in files.list_files(layout.absolute(folder))]
    written += [info.path for info in files.list_unfinished(layout.topic_root)]
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


def filesystem_now_ms(files: FileSystem, layout: TopicLayout, run_id: str) -> int:
    """Return the time of the file system, that of a file which is written now."""
    path = layout.clock(run_id)
    with files.create(path) as clock:
        clock.write(b"")
    times = [info.modified_ms for info in files.list_files(layout.runs) if info.path == path]
    files.delete(path)
    if not times:
        raise StorageError(path, "was written, and is not listed")
    return times[0]


def _write_mark(files: FileSystem, path: str, content: dict[str, int | bool]) -> None:
    with files.create(path) as mark:
        mark.write(json.dumps(content).encode())
