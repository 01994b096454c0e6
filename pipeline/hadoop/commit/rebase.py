"""Commits that follow another commit than the one they were made for.

A load whose offsets nobody has loaded meanwhile, and a rearrangement whose files are all live still, are as right
after a compaction, an expiry or a load as they were before it. Each such rebase leaves a mark first (`runs.py`).
"""

from dataclasses import replace
from typing import Final

from pipeline.diagnostics import get_logger
from pipeline.errors import StorageError
from pipeline.hadoop.commit.checkpoints import read_state
from pipeline.hadoop.commit.layout import TopicLayout, parse_mark
from pipeline.hadoop.commit.manifest import Manifest, Operation
from pipeline.hadoop.commit.publication import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    Head,
    commit,
    take_back,
)
from pipeline.hadoop.commit.runs import RunEndedError, check_files, follow_commit
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.files.doors import FileSystem

logger = get_logger(__name__)

MAX_REBASES: Final = 20
"""Commits of others that a run lets go first before it gives up."""


def commit_rebasing(
    files: FileSystem, layout: TopicLayout, manifest: Manifest, head: Head, *, orphan_age_ms: int
) -> Manifest:
    """Publish `manifest` after `head`, or after a later commit if nothing in it is touched. Return what was committed.

    Raises CommitConflictError if another commit has loaded the same offsets or removed the same files; RunEndedError
    if a clean-up took the run for dead; otherwise as `commit`.
    """
    for number in range(1, MAX_REBASES + 1):
        try:
            commit(files, layout, manifest, head)
        except CommitConflictError:
            state = read_state(files, layout)
            following = rebased(manifest, head, state)
            if following is None or number == MAX_REBASES:
                raise
            follow_commit(files, layout, manifest.run_id, number, head=state.sequence, orphan_age_ms=orphan_age_ms)
            check_files(files, layout, manifest.run_id, manifest.files)
            logger.info("commit_rebased", topic=manifest.topic, sequence=following.sequence)
            manifest, head = following, Head(manifest=state.last, sha256=state.sha256)
        else:
            break
    _check_mark(files, layout, manifest)
    return manifest


def _check_mark(files: FileSystem, layout: TopicLayout, manifest: Manifest) -> None:
    """Take a commit back whose run has lost its mark: what was below the topic when it wrote its files is gone."""
    try:
        if any((parse_mark(info.path) or ("",))[0] == manifest.run_id for info in files.list_files(layout.runs)):
            return
    except StorageError as error:
        raise CommitOutcomeUnknownError(manifest.topic, manifest.sequence, str(error)) from error
    take_back(files, layout, manifest)
    raise RunEndedError(manifest.run_id, "its mark is gone: an older copy of the table came back")


def rebased(manifest: Manifest, head: Head, state: TableState) -> Manifest | None:
    """Return the manifest as the successor of `state`, or None if commits since `head` are in its way."""
    last = state.last
    if last is None or head.manifest is None:
        return None
    following = replace(manifest, sequence=last.sequence + 1, previous_sha256=state.sha256)
    if manifest.operation is Operation.LOAD:
        unchanged = ("offsets", "ends", "lost", "schemas", "topic_id", "window_ms")
        has_room = all(getattr(last, name) == getattr(head.manifest, name) for name in unchanged)
        return following if has_room else None
    if not all(path in state.files for path in manifest.removed):
        return None
    names = ("offsets", "ends", "lost", "schemas", "topic_id", "path_format")
    cumulative = {name: getattr(last, name) for name in names}
    return replace(following, **cumulative)
