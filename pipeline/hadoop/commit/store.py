"""Destination of commits: one interface for manifests on the file system and for catalogs of other table formats."""

from dataclasses import dataclass
from typing import Protocol

from pipeline.hadoop.commit.checkpoints import checkpoint_if_due, read_state
from pipeline.hadoop.commit.layout import TopicLayout
from pipeline.hadoop.commit.manifest import Manifest
from pipeline.hadoop.commit.publication import Head, commit, read_head
from pipeline.hadoop.files.filesystem import FileSystem


class CommitStore(Protocol):
    """Commits of one topic. Of several runs that started from one head exactly one commits."""

    def read_head(self) -> Head:
        """Return the last commit, from whose offsets the next load goes on."""

    def commit(self, manifest: Manifest, head: Head) -> None:
        """Publish `manifest` as the successor of `head`, all or nothing.

        Raises CommitConflictError if another commit came first, CommitOutcomeUnknownError if the outcome cannot be
        known, and other errors if certainly nothing was committed.
        """

    def listed_files(self) -> set[str]:
        """Return the paths, relative to the topic, of all files that are part of the data: no clean-up deletes them."""

    def after_commit(self, sequence: int, run_id: str) -> None:
        """Do the upkeep that is due after a commit. Failures are logged."""


@dataclass(frozen=True, slots=True)
class ManifestStore:
    """Manifests on the file system of the data (`publication`)."""

    files: FileSystem
    layout: TopicLayout

    def read_head(self) -> Head:
        """See CommitStore."""
        return read_head(self.files, self.layout)

    def commit(self, manifest: Manifest, head: Head) -> None:
        """See CommitStore."""
        commit(self.files, self.layout, manifest, head)

    def listed_files(self) -> set[str]:
        """See CommitStore."""
        return set(read_state(self.files, self.layout).files)

    def after_commit(self, sequence: int, run_id: str) -> None:
        """Write a checkpoint now and then."""
        checkpoint_if_due(self.files, self.layout, sequence, run_id)
