"""Commits of loads that an Iceberg table still knows: what `load status`, `load verify` and the audit's reports show.

Invariant: commits are those among the ancestors of the current snapshot, so what was taken back is not reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from pipeline.hadoop.commit.manifest import Manifest
from pipeline.hadoop.commit.table_state import TableState
from pipeline.hadoop.iceberg.snapshot_properties import SEQUENCE
from pipeline.hadoop.iceberg.store import IcebergStore, ancestors_of, is_of_a_load, snapshot_commits, totals_by_window
from pipeline.hadoop.iceberg.window_totals import WindowTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A live data file: its URL, its size, and whether rows of it were deleted without writing it again."""

    url: str
    records: int
    bytes: int
    has_deletes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergHistory:
    """A table, and its commits that have not expired, oldest first.

    state: the last commit and the sums of `totals`; its files are those of the quarantine that the commits name.
    added: records and files of each commit, by its number.
    removals: snapshots of other writers that may have removed rows, by id.
    """

    table: Table
    state: TableState
    commits: Sequence[Manifest]
    added: Mapping[int, tuple[int, int]]
    totals: WindowTotals
    removals: Sequence[int]

    @property
    def expired(self) -> int:
        """Number of commits whose snapshots have expired."""
        return self.state.sequence - len(self.commits)

    def files(self) -> list[TableFile]:
        """Return the data files of the current snapshot."""
        if self.table.current_snapshot() is None:
            return []
        return [
            TableFile(
                url=task.file.file_path,
                records=task.file.record_count,
                bytes=task.file.file_size_in_bytes,
                has_deletes=bool(task.delete_files),
            )
            for task in self.table.scan().plan_files()
        ]


def read_iceberg_history(store: IcebergStore) -> IcebergHistory | None:
    """Return the commits of a topic; None if it has none. Raises IcebergError, SnapshotPropertyError."""
    table, head = store.read()
    if table is None or head.manifest is None:
        return None
    commits = snapshot_commits(table)
    totals = totals_by_window(table, head)
    quarantined = {file.path: file for commit in commits for file in commit.files}
    return IcebergHistory(
        table=table,
        state=TableState(
            last=head.manifest, sha256=head.sha256, files=quarantined, counts=totals.counts, sums=totals.sums
        ),
        commits=commits,
        added=dict(_added(snapshot) for snapshot in ancestors_of(table) if is_of_a_load(snapshot)),
        totals=totals,
        removals=[
            snapshot.snapshot_id
            for snapshot in ancestors_of(table)
            if not is_of_a_load(snapshot)
            and (snapshot.summary is None or snapshot.summary.operation in {Operation.DELETE, Operation.OVERWRITE})
        ],
    )


def _added(snapshot: Snapshot) -> tuple[int, tuple[int, int]]:
    assert snapshot.summary is not None
    given = snapshot.summary.additional_properties
    return int(given[SEQUENCE]), (int(given.get("added-records", 0)), int(given.get("added-data-files", 0)))
