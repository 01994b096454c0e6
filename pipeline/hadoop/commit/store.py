"""Destination of commits: one interface for manifests on the file system and for catalogs of other table formats."""

from typing import Protocol

from pipeline.hadoop.commit.manifest import Manifest
from pipeline.hadoop.commit.publication import Head


class CommitStore(Protocol):
    """Commits of one topic. Of several runs that started from one head exactly one commits."""

    def read_head(self) -> Head:
        """Return the last commit, from whose offsets the next load goes on."""

    def commit(self, manifest: Manifest, head: Head, *, orphan_age_ms: int) -> Manifest:
        """Publish `manifest` as the successor of `head`, all or nothing. Return what was committed.

        A destination may let the commit follow a later one that nothing in it touches: its mark then gets
        `orphan_age_ms`. Raises CommitConflictError if another commit came first,
        CommitOutcomeUnknownError if the outcome cannot be known, and other errors if certainly nothing was committed.
        """

    def listed_files(self) -> set[str]:
        """Return the paths, relative to the topic, of all files that are part of the data: no clean-up deletes them."""

    def after_commit(self, sequence: int, run_id: str) -> None:
        """Do the upkeep that is due after a commit. Failures are logged."""
