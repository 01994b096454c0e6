"""Commits as manifests on the file system of the data."""

from dataclasses import dataclass

from pipeline.hadoop.commit.checkpoints import checkpoint_if_due, reachable_files, read_history
from pipeline.hadoop.commit.layout import TopicLayout
from pipeline.hadoop.commit.manifest import Manifest
from pipeline.hadoop.commit.publication import Head, read_head
from pipeline.hadoop.commit.rebase import commit_rebasing
from pipeline.hadoop.files.doors import FileSystem


@dataclass(frozen=True, slots=True)
class ManifestStore:
    """Manifests on the file system of the data (`publication`), an implementation of CommitStore."""

    files: FileSystem
    layout: TopicLayout

    def read_head(self) -> Head:
        """See CommitStore."""
        return read_head(self.files, self.layout)

    def commit(self, manifest: Manifest, head: Head, *, orphan_age_ms: int) -> Manifest:
        """See CommitStore, and `commit_rebasing`."""
        return commit_rebasing(self.files, self.layout, manifest, head, orphan_age_ms=orphan_age_ms)

    def listed_files(self) -> set[str]:
        """See CommitStore."""
        return reachable_files(*read_history(self.files, self.layout))

    def after_commit(self, sequence: int, run_id: str) -> None:
        """Write a checkpoint now and then."""
        checkpoint_if_due(self.files, self.layout, sequence, run_id)
