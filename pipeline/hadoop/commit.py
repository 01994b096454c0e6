"""The atomic commit of a load on a Hadoop file system, and the reading of what is committed.

Steps, as the 2011 paper asks (data and offsets together or not at all) and a rename can give:

1. the run leaves a mark, reads the last manifest and fixes its plan;
2. tasks write files under names of their own, which no reader looks at;
3. the manifest (ranges, files, counts, who wrote it) is written under a temporary name and closed;
4. it is renamed to the next number, which fails if that exists: the only point of decision. Of several runs that
   started from one manifest exactly one finds the number free, and the others are fenced off;
5. after any error of the rename the temporary name is deleted first, so that a late rename cannot happen any more, and
   then the number is read back: what is there, and who wrote it, is the outcome;
6. readers follow manifests only; clean-up deletes only what no manifest lists.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from pipeline.errors import PipelineError, StorageError
from pipeline.hadoop.filesystem import FileSystem, PathNotFoundError, open_filesystem
from pipeline.hadoop.layout import TopicLayout, manifest_sequences, run_of, topic_layout
from pipeline.hadoop.manifest import DataFile, Manifest, ManifestError, check_follows, committed_files, sha256_of

logger = structlog.get_logger()


class CommitConflictError(PipelineError):
    """Another run committed first; nothing of this one counts. Run again to load what is new since then."""

    def __init__(self, topic: str, sequence: int, winner: str) -> None:
        super().__init__(f"{topic}: commit {sequence} was made by run {winner} meanwhile; nothing was committed here")
        self.topic = topic
        self.sequence = sequence
        self.winner = winner


class CommitOutcomeUnknownError(PipelineError):
    """The file system failed in the very moment of the commit and after it. The next run finds out by reading."""

    def __init__(self, topic: str, sequence: int, reason: str) -> None:
        super().__init__(
            f"{topic}: whether commit {sequence} took place is not known ({reason}). "
            "Nothing is deleted; run again, the next run goes on from whichever is true"
        )
        self.topic = topic
        self.sequence = sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest manifest of a topic, and the checksum that its successor carries. Both None before the first."""

    manifest: Manifest | None
    sha256: str | None

    @property
    def next_sequence(self) -> int:
        """The number of the next manifest."""
        return 1 if self.manifest is None else self.manifest.sequence + 1

    @property
    def offsets(self) -> Mapping[int, int]:
        """Where the next load starts, by partition."""
        return {} if self.manifest is None else self.manifest.offsets


def read_head(files: FileSystem, layout: TopicLayout) -> Head:
    """The newest manifest, read afresh."""
    sequences = _sequences(files, layout)
    if not sequences:
        return Head(manifest=None, sha256=None)
    path = layout.manifest(sequences[-1])
    encoded = files.read(path)
    return Head(manifest=Manifest.decode(encoded, path), sha256=sha256_of(encoded))


def read_manifests(root: str, topic: str) -> list[Manifest]:
    """All manifests of a topic below the root URL of a load, oldest first, checked to be an unbroken chain."""
    files, path = open_filesystem(root)
    return read_chain(files, topic_layout(path, topic))


def read_chain(files: FileSystem, layout: TopicLayout) -> list[Manifest]:
    """As read_manifests, on a file system that is open. Raises ManifestError for a broken chain."""
    manifests: list[Manifest] = []
    previous: Manifest | None = None
    checksum: str | None = None
    for sequence in _sequences(files, layout):
        path = layout.manifest(sequence)
        encoded = files.read(path)
        manifest = Manifest.decode(encoded, path)
        if manifest.sequence != sequence:
            raise ManifestError(path, f"says that it is number {manifest.sequence}")
        check_follows(manifest, previous, checksum)
        manifests.append(manifest)
        previous, checksum = manifest, sha256_of(encoded)
    return manifests


def committed_urls(root: str, topic: str) -> list[str]:
    """URLs of all data files that readers may read, for `spark.read.parquet(*urls)` and its like."""
    return [file_url(root, topic, file) for file in committed_files(read_manifests(root, topic))]


def file_url(root: str, topic: str, file: DataFile) -> str:
    """URL of a file that a manifest of the topic lists."""
    return f"{root.rstrip('/')}/{topic}/{file.path}"


def mark_run(files: FileSystem, layout: TopicLayout, run_id: str) -> None:
    """Leaves the mark by which a later run finds the files of this one, should it die."""
    with files.create(layout.run(run_id)) as mark:
        mark.write(run_id.encode())


def commit(files: FileSystem, layout: TopicLayout, manifest: Manifest, head: Head) -> None:
    """Publishes `manifest` as the successor of `head`, or raises.

    Raises CommitConflictError if another run came first, StorageError if certainly nothing was committed,
    CommitOutcomeUnknownError if the file system would not say.
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
    """Finds out what a rename that raised has done (step 5)."""
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
    """Deletes what `run_id` wrote and no manifest lists, and the same of runs whose mark is older than the bound.

    Returns how many files were deleted. Safe because a run whose mark is older than the bound refuses to commit, and
    because manifests are read after files were listed. Files of unknown names are left alone. The mark of `run_id`
    stays, for its tasks may still be ending somewhere; it goes when it is old, with what they left.
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
    """Takes the mark of a run away whose tasks all ended at their first attempt: nothing of it is left to clean up."""
    files.delete(layout.run(run_id))


def _sequences(files: FileSystem, layout: TopicLayout) -> list[int]:
    return manifest_sequences([info.path for info in files.list_files(layout.commits)])
