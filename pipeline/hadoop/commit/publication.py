"""Commits a load atomically on a store (`hadoop/files`), and reads commits.

The 2011 paper asks for data and offsets together or not at all. A store that lets a whole file appear at an unused
name in one step (`publish_exclusive`: a hard link, a rename in HDFS, a conditional PUT) gives that, in these steps:

1. the run leaves a mark, reads the last manifest and fixes its plan;
2. tasks write files under names of their own, which no reader looks at;
3. the manifest (ranges, files, counts, run id) is published as the next number, which fails if that exists: the only
   point of decision. Of several runs that started from one manifest exactly one finds the number free, and the others
   are fenced off;
4. after any error the number is read back: the manifest there, and its run id, are the outcome. Where the store cannot
   exclude that a lost request is carried out later (PublicationOpenError), a free number leaves the outcome unknown;
5. a run that slept until manifests expired may find a number free that was taken. It looks for later manifests after
   the publication, and takes its own back, which no reader has followed: readers begin at the newest checkpoint. The
   same holds for a run that slept until an older copy of the table came back: the manifest before is not there, or
   its own mark is not (`rebase.py`);
6. readers follow manifests only; clean-up (`runs.py`) deletes only files that no manifest lists.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError, StorageError
from pipeline.hadoop.commit.checkpoints import manifests_of, read_manifest, table_of
from pipeline.hadoop.commit.layout import TopicLayout
from pipeline.hadoop.commit.manifest import DataFile, Manifest, check_follows, sha256_of
from pipeline.hadoop.files.doors import FileSystem, PathNotFoundError, PublicationOpenError

logger = get_logger(__name__)


class CommitConflictError(PipelineError):
    """Another run committed first, nothing of this run counts. Run again to load records that are new since then."""

    def __init__(self, topic: str, sequence: int, winner: str) -> None:
        super().__init__(f"{topic}: commit {sequence} was made by run {winner} meanwhile; nothing was committed here")
        self.topic = topic
        self.sequence = sequence
        self.winner = winner


class CommitOutcomeUnknownError(PipelineError):
    """The file system failed during the commit and after it. The next run learns the outcome from the manifests."""

    def __init__(self, topic: str, sequence: int, reason: str) -> None:
        super().__init__(
            f"{topic}: it is not known whether commit {sequence} took place ({reason}). "
            "Nothing was deleted. Run again: the next run goes on from the last manifest that it finds"
        )
        self.topic = topic
        self.sequence = sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest manifest of a topic, and its checksum. Both are None before the first commit."""

    manifest: Manifest | None
    sha256: str | None

    @property
    def next_sequence(self) -> int:
        """Number of the next manifest."""
        return 1 if self.manifest is None else self.manifest.sequence + 1

    @property
    def offsets(self) -> Mapping[int, int]:
        """Offset at which the next load starts, by partition."""
        return {} if self.manifest is None else self.manifest.offsets


def read_head(files: FileSystem, layout: TopicLayout) -> Head:
    """Read the newest manifest."""
    sequences = manifests_of(files, layout)
    if not sequences:
        return Head(manifest=None, sha256=None)
    manifest, sha256 = read_manifest(files, layout, sequences[-1])
    return Head(manifest=manifest, sha256=sha256)


def committed_urls(root: str, topic: str) -> list[str]:
    """Return the URLs of all committed data files, for other programs.

    Files of one topic may have different columns and types; `pipeline.hadoop.table.loaded_table` reads them together.
    """
    return [file_url(root, topic, file) for file in table_of(root, topic).data_files()]


def file_url(root: str, topic: str, file: DataFile) -> str:
    """Return the URL of a file that a manifest of the topic lists."""
    return f"{root.rstrip('/')}/{topic}/{file.path}"


def commit(files: FileSystem, layout: TopicLayout, manifest: Manifest, head: Head) -> None:
    """Publish `manifest` as the successor of `head`.

    Raises CommitConflictError if another run committed first, StorageError if certainly nothing was committed,
    CommitOutcomeUnknownError if the file system does not tell.
    """
    check_follows(manifest, head.manifest, head.sha256)
    temporary = layout.temporary_manifest(manifest.sequence, manifest.run_id)
    try:
        files.publish_exclusive(layout.manifest(manifest.sequence), manifest.encode(), temporary=temporary)
    except StorageError as error:
        _settle(files, layout, manifest, error)
    _check_is_last(files, layout, manifest)


def _check_is_last(files: FileSystem, layout: TopicLayout, manifest: Manifest) -> None:
    """Take the manifest back if its number was free only because the one that had it has expired (step 5).

    Manifests expire in ascending order, so a lawful one that is still there has its successor beside it, if any; and
    the last one has the one before it, unless an older copy of the table came back.
    """
    try:
        sequences = manifests_of(files, layout)
        if manifest.sequence not in sequences:
            return
        if manifest.sequence == sequences[-1]:
            if manifest.sequence == 1 or _has_manifest(files, layout, manifest.sequence - 1, manifest.previous_sha256):
                return
            winner = "an earlier run, before an older copy of the table came back,"
        else:
            if manifest.sequence + 1 in sequences:
                following, _ = read_manifest(files, layout, manifest.sequence + 1)
                if following.previous_sha256 == sha256_of(manifest.encode()):
                    return
            winner = "an earlier run, whose manifest has expired,"
        files.delete(layout.manifest(manifest.sequence))
    except StorageError as error:
        raise CommitOutcomeUnknownError(manifest.topic, manifest.sequence, str(error)) from error
    raise CommitConflictError(manifest.topic, manifest.sequence, winner)


def _has_manifest(files: FileSystem, layout: TopicLayout, sequence: int, sha256: str | None) -> bool:
    try:
        return sha256_of(files.read(layout.manifest(sequence))) == sha256
    except PathNotFoundError:
        return False


def take_back(files: FileSystem, layout: TopicLayout, manifest: Manifest) -> None:
    """Delete a manifest that was just published, and whose files are not there. Raises CommitOutcomeUnknownError."""
    try:
        files.delete(layout.manifest(manifest.sequence))
    except StorageError as error:
        raise CommitOutcomeUnknownError(manifest.topic, manifest.sequence, str(error)) from error


def _settle(files: FileSystem, layout: TopicLayout, manifest: Manifest, cause: StorageError) -> None:
    """Find out whether a publication that raised was carried out (step 4)."""
    path = layout.manifest(manifest.sequence)
    try:
        winner = Manifest.decode(files.read(path), path).run_id
    except PathNotFoundError as error:
        if isinstance(cause, PublicationOpenError):
            raise CommitOutcomeUnknownError(manifest.topic, manifest.sequence, cause.reason) from error
        raise cause from None
    except StorageError as error:
        raise CommitOutcomeUnknownError(manifest.topic, manifest.sequence, str(error)) from error
    if winner != manifest.run_id:
        raise CommitConflictError(manifest.topic, manifest.sequence, winner) from cause
    logger.info("commit_confirmed_by_reading_back", topic=manifest.topic, sequence=manifest.sequence)
