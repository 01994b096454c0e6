"""Commits a load atomically on a Hadoop file system, and reads commits.

The 2011 paper asks for data and offsets together or not at all; a rename gives that, in these steps:

1. the run leaves a mark, reads the last manifest and fixes its plan;
2. tasks write files under names of their own, which no reader looks at;
3. the manifest (ranges, files, counts, run id) is written under a temporary name and closed;
4. it is renamed to the next number, which fails if that exists: the only point of decision. Of several runs that
   started from one manifest exactly one finds the number free, and the others are fenced off;
5. after any error of the rename the temporary name is deleted first, so that a late rename cannot happen any more, and
   then the number is read back: the manifest there, and its run id, are the outcome;
6. readers follow manifests only; clean-up deletes only files that no manifest lists.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from pipeline.errors import PipelineError, StorageError
from pipeline.hadoop.commit.layout import TopicLayout, manifest_sequences, run_of, topic_layout
from pipeline.hadoop.commit.manifest import DataFile, Manifest, ManifestError, check_follows, committed_files, sha256_of
from pipeline.hadoop.files.filesystem import FileSystem, PathNotFoundError, open_filesystem

logger = structlog.get_logger()


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
    sequences = _sequences(files, layout)
    if not sequences:
        return Head(manifest=None, sha256=None)
    path = layout.manifest(sequences[-1])
    encoded = files.read(path)
    return Head(manifest=Manifest.decode(encoded, path), sha256=sha256_of(encoded))


def read_manifests(root: str, topic: str) -> list[Manifest]:
    """Return all manifests of a topic below the root URL of a load, oldest first. Raises as `read_chain`."""
    files, path = open_filesystem(root)
    return read_chain(files, topic_layout(path, topic))


def read_chain(files: FileSystem, layout: TopicLayout) -> list[Manifest]:
    """Do the same on an open file system. Raises ManifestError if the chain of manifests is broken."""
    manifests: list[Manifest] = []
    previous: Manifest | None = None
    checksum: str | None = None
    for sequence in _sequences(files, layout):
        path = layout.manifest(sequence)
        encoded = files.read(path)
        manifest = Manifest.decode(encoded, path)
        if manifest.sequence != sequence:
            raise ManifestError(path, f"holds the number {manifest.sequence}")
        check_follows(manifest, previous, checksum)
        manifests.append(manifest)
        previous, checksum = manifest, sha256_of(encoded)
    return manifests


def committed_urls(root: str, topic: str) -> list[str]:
    """Return the URLs of all committed data files, for `spark.read.parquet(*urls)` and similar calls."""
    return [file_url(root, topic, file) for file in committed_files(read_manifests(root, topic))]


def file_url(root: str, topic: str, file: DataFile) -> str:
    """Return the URL of a file that a manifest of the topic lists."""
    return f"{root.rstrip('/')}/{topic}/{file.path}"


def mark_run(files: FileSystem, layout: TopicLayout, run_id: str) -> None:
    """Leave a mark, by which a later run finds the files of this run if it dies."""
    with files.create(layout.run(run_id)) as mark:
        mark.write(run_id.encode())


def commit(files: FileSystem, layout: TopicLayout, manifest: Manifest, head: Head) -> None:
    """Publish `manifest` as the successor of `head`.

    Raises CommitConflictError if another run committed first, StorageError if certainly nothing was committed,
    CommitOutcomeUnknownError if the file system does not tell.
    """
    check_follows(manifest, head.manifest, head.sha256)
    temporary = layout.temporary_manifest(manifest.sequence, manifest.run_id)
    with files.create(temporary) as file:
        file.write(manifest.encode())
    try:
        files.rename_exclusive(temporary, layout.manifest(manifest.sequence))
    except StorageError as error:
        _settle(files, layout, manifest, error)


def _settle(files: FileSystem, layout: TopicLayout, manifest: Manifest, cause: StorageError) -> None:
    """Find out whether a rename that raised was carried out (step 5)."""
    path = layout.manifest(manifest.sequence)
    try:
        files.delete(layout.temporary_manifest(manifest.sequence, manifest.run_id))
        winner = Manifest.decode(files.read(path), path).run_id
    except PathNotFoundError:
        raise cause from None
    except StorageError as error:
        raise CommitOutcomeUnknownError(manifest.topic, manifest.sequence, str(error)) from error
    if winner != manifest.run_id:
        raise CommitConflictError(manifest.topic, manifest.sequence, winner) from cause
    logger.info("commit_confirmed_by_reading_back", topic=manifest.topic, sequence=manifest.sequence)


def clean_up(files: FileSystem, layout: TopicLayout, run_id: str, *, started_before_ms: int) -> int:
    """Delete files of `run_id`, and of runs whose mark is older than the bound, that no manifest lists.

    Returns the number of deleted files. Safe because a run whose mark is older than the bound refuses to commit, and
    because manifests are read after files were listed. Files of unknown names are left alone. The mark of `run_id`
    stays, since its tasks may still run somewhere; it is deleted when it is old, with the files that they left.
    """
    marks = {info.path.rsplit("/", 1)[-1]: info for info in files.list_files(layout.runs)}
    ended = {name for name, info in marks.items() if name == run_id or info.modified_ms < started_before_ms}
    if not ended:
        return 0
    written = [info.path for info in files.list_files(f"{layout.topic_root}/hourly", recursive=True)]
    written += [info.path for info in files.list_files(f"{layout.topic_root}/quarantine")]
    listed = {layout.absolute(file.path) for manifest in read_chain(files, layout) for file in manifest.files}
    orphans = [path for path in written if path not in listed and run_of(path) in ended]
    orphans += [
        info.path
        for info in files.list_files(layout.commits)
        if info.path.rsplit("/", 1)[-1].startswith(".") and info.path.rsplit(".", 1)[-1] in ended
    ]
    deleted = sum(files.delete(path) for path in orphans)
    for name in ended:
        if marks[name].modified_ms < started_before_ms:
            files.delete(layout.run(name))
    logger.info("load_cleaned_up", topic_root=layout.topic_root, runs=sorted(ended), files=deleted)
    return deleted


def end_run(files: FileSystem, layout: TopicLayout, run_id: str) -> None:
    """Delete the mark of a run whose tasks all ended at their first attempt, so that it left nothing to clean up."""
    files.delete(layout.run(run_id))


def _sequences(files: FileSystem, layout: TopicLayout) -> list[int]:
    return manifest_sequences([info.path for info in files.list_files(layout.commits)])
