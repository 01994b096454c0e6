"""Deletes what no reader can ask for any more: the shell of `cleaning_plan.py`.

Order: checkpoints that take the place of manifests are written and read back first; then manifests go, oldest first,
then older checkpoints, then files, and the marks of dead runs at last. A crash between any two steps leaves a table
that can be read, and the next clean-up goes on.
"""

import secrets
from dataclasses import dataclass

from pipeline.diagnostics import get_logger
from pipeline.hadoop.commit.checkpoints import (
    manifests_of,
    reachable_files,
    read_checkpoint,
    read_following,
    read_history,
    read_state,
    write_checkpoint,
)
from pipeline.hadoop.commit.layout import checkpoint_sequences, manifest_sequences
from pipeline.hadoop.commit.manifest import ManifestError
from pipeline.hadoop.commit.runs import RunMark, claim_dead_runs, delete_marks, filesystem_now_ms, read_marks
from pipeline.hadoop.files.doors import FileInfo
from pipeline.hadoop.upkeep.cleaning_plan import Deletion, choose_base, expired, old_clocks, unlisted_files
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.table import Table

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """List of what a clean-up deletes, in this order. `base` is the oldest commit that can be read afterwards."""

    base: int
    head: int
    manifests: list[Deletion]
    checkpoints: list[Deletion]
    files: list[Deletion]
    dead: list[RunMark]

    @property
    def deletions(self) -> list[Deletion]:
        """All files to delete, in their order."""
        return [*self.manifests, *self.checkpoints, *self.files]


def clean_table(table: Table, config: UpkeepConfig, *, dry_run: bool) -> Cleaning:
    """Delete orphans of dead runs, files that no readable commit lists, and expired manifests. Return the list.

    dry_run: nothing is deleted, and no dead run is held back from going on.
    Raises ManifestError if the table cannot be read; StorageError.
    """
    run_id = secrets.token_hex(8)
    cleaning = _plan(table, config, run_id, dry_run=dry_run)
    if dry_run:
        return cleaning
    if cleaning.manifests:
        _write_checkpoints(table, cleaning, run_id)
    for deletion in cleaning.deletions:
        table.files.delete(deletion.path)
    for mark in cleaning.dead:
        delete_marks(table.files, table.layout, mark)
    logger.info("table_cleaned", topic=table.topic, base=cleaning.base, files=len(cleaning.deletions))
    return cleaning


def _plan(table: Table, config: UpkeepConfig, run_id: str, *, dry_run: bool) -> Cleaning:
    files, layout = table.files, table.layout
    written = _list(table)  # before marks and manifests: invariant C
    now_ms = filesystem_now_ms(files, layout, run_id)
    marks = read_marks(files, layout)
    head = max(manifests_of(files, layout), default=0)
    if not head:  # nobody knows which files were committed: those of an Iceberg table, or of manifests that were lost
        return Cleaning(base=0, head=0, manifests=[], checkpoints=[], files=[], dead=[])
    dead = [mark for mark in marks if mark.is_dead(head, now_ms)]
    if not dry_run:
        dead = claim_dead_runs(files, layout, dead)
    dead_runs = {mark.run_id for mark in dead}
    oldest, _ = read_history(files, layout)
    committed = files.list_files(layout.commits)
    by_number = {manifest_sequences([info.path])[0]: info for info in committed if manifest_sequences([info.path])}
    times_ms = {number: info.modified_ms for number, info in by_number.items()}
    base = choose_base(times_ms, oldest.sequence, now_ms, config.manifest_retention_ms)
    state = read_state(files, layout, up_to=base)
    following = read_following(files, layout, state, max([base, *by_number]))
    reachable = {layout.absolute(path) for path in reachable_files(state, following)}
    saved = files.list_files(layout.checkpoints)
    old = [(checkpoint_sequences([info.path]), info) for info in saved]
    # The last manifest stays even if no commit before it can be read: by it readers find the table.
    last_expired = min(base, head - 1)
    return Cleaning(
        base=base,
        head=max([base, *by_number]),
        manifests=expired(((number, info.path, info.size_bytes) for number, info in by_number.items()), last_expired),
        checkpoints=expired(((found[0], info.path, info.size_bytes) for found, info in old if found), base - 1),
        files=unlisted_files(
            {info.path: info.size_bytes for info in written},
            reachable,
            {mark.run_id for mark in marks} - dead_runs,
            dead_runs,
        )
        + old_clocks(files.list_files(layout.runs), now_ms - config.orphan_age_ms),
        dead=dead,
    )


def _list(table: Table) -> list[FileInfo]:
    files, layout = table.files, table.layout
    return [
        *(info for folder in layout.data_folders for info in files.list_files(folder, recursive=True)),
        *files.list_files(f"{layout.topic_root}/quarantine"),
        *files.list_files(layout.commits),
        *files.list_files(layout.checkpoints),
    ]


def _write_checkpoints(table: Table, cleaning: Cleaning, run_id: str) -> None:
    """Make sure that the base and a later commit have whole checkpoints, so that one damaged file loses nothing."""
    for number in sorted({cleaning.base, cleaning.head}):
        expected = read_state(table.files, table.layout, up_to=number)
        write_checkpoint(table.files, table.layout, number, run_id)
        try:
            state = read_checkpoint(table.files, table.layout, number)
        except ManifestError:  # an older, damaged one took the name
            table.files.delete(table.layout.checkpoint(number))
            write_checkpoint(table.files, table.layout, number, run_id)
            state = read_checkpoint(table.files, table.layout, number)
        if state.sha256 != expected.sha256 or state.files != expected.files:
            raise ManifestError(table.layout.checkpoint(number), "is not what the manifests add up to")
