"""A table that is open for upkeep, and runs that rearrange its files."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import crc32c

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.commit.checkpoints import checkpoint_if_due, read_state, refuse_iceberg
from pipeline.hadoop.commit.layout import TopicLayout, topic_layout
from pipeline.hadoop.commit.manifest import DataFile, Manifest, Operation
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.publication import CommitOutcomeUnknownError, Head
from pipeline.hadoop.commit.rebase import commit_rebasing
from pipeline.hadoop.commit.runs import clean_up_own_run, end_run, mark_run
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.files.doors import FileSystem, PathNotFoundError
from pipeline.hadoop.files.filesystem import open_filesystem

logger = get_logger(__name__)


class DamagedFileError(PipelineError):
    """A file of the table is missing, or is not as it was committed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A topic's table: its file system and its paths."""

    topic: str
    files: FileSystem
    layout: TopicLayout

    def state(self) -> TableState:
        """Return the state after the last commit. Raises ManifestError, StorageError."""
        return read_state(self.files, self.layout)

    def read(self, file: DataFile) -> bytes:
        """Return the content of a file. Raises DamagedFileError unless it is as it was committed; StorageError."""
        try:
            data = self.files.read(self.layout.absolute(file.path))
        except PathNotFoundError as error:
            raise DamagedFileError(file.path, "is missing") from error
        if len(data) != file.bytes:
            raise DamagedFileError(file.path, f"has {len(data)} bytes; {file.bytes} were committed")
        if crc32c.crc32c(data) != file.crc32c:
            raise DamagedFileError(file.path, "has another CRC-32C than was committed")
        return data


def open_table(root: str, topic: str) -> Table:
    """Return the table of a topic below the root URL of a load.

    Raises ConfigurationError; IcebergTableError, since to upkeep all files of such a table are orphans; StorageError.
    """
    files, path = open_filesystem(root)
    layout = topic_layout(path, topic)
    refuse_iceberg(files, layout)
    return Table(topic=topic, files=files, layout=layout)


@contextmanager
def marked_run(table: Table, state: TableState, orphan_age_ms: int) -> Iterator[str]:
    """Give the id of a run that follows `state`. Its files go if the block raises, unless its outcome is unknown."""
    run_id = secrets.token_hex(8)
    mark_run(table.files, table.layout, run_id, head=state.sequence, orphan_age_ms=orphan_age_ms)
    try:
        yield run_id
    except CommitOutcomeUnknownError:
        raise
    except Exception:
        _end_quietly(table, run_id, has_failed=True)
        raise
    _end_quietly(table, run_id, has_failed=False)


def commit_rearrangement(
    table: Table,
    state: TableState,
    operation: Operation,
    *,
    run_id: str,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    created_ms: int,
    orphan_age_ms: int,
) -> Manifest:
    """Commit files in place of others, after `state` or a later commit. Raises as `commit_rebasing`."""
    last = state.last
    assert last is not None
    manifest = Manifest(
        sequence=last.sequence + 1,
        run_id=run_id,
        created_ms=created_ms,
        topic=table.topic,
        topic_id=last.topic_id,
        format=last.format,
        window_ms=last.window_ms,
        offsets=last.offsets,
        ranges=(),
        files=tuple(sorted(added)),
        removed=tuple(sorted(file.path for file in removed)),
        operation=operation,
        schemas=last.schemas,
        path_format=last.path_format,
        ends=last.ends,
        lost=last.lost,
        previous_sha256=state.sha256,
    )
    head = Head(manifest=last, sha256=state.sha256)
    manifest = commit_rebasing(table.files, table.layout, manifest, head, orphan_age_ms=orphan_age_ms)
    checkpoint_if_due(table.files, table.layout, manifest.sequence, run_id)
    return manifest


def _end_quietly(table: Table, run_id: str, *, has_failed: bool) -> None:
    try:
        if has_failed:
            clean_up_own_run(table.files, table.layout, run_id, ManifestStore(table.files, table.layout))
        end_run(table.files, table.layout, run_id)
    except PipelineError as error:
        logger.warning("upkeep_run_not_ended", topic=table.topic, run_id=run_id, reason=str(error))
