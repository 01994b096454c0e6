"""Removes old hours of a table, in one commit. The files stay until no manifest that is kept lists them."""

from collections.abc import Iterable

from pipeline.errors import ConfigurationError
from pipeline.hadoop.commit.manifest import DataFile, Manifest, Operation
from pipeline.hadoop.commit.runs import filesystem_now_ms
from pipeline.hadoop.upkeep.config import UpkeepConfig
from pipeline.hadoop.upkeep.table import Table, commit_rearrangement, marked_run
from pipeline.model import Clock
from pipeline.records.tally import HOUR_MS


def expired_files(files: Iterable[DataFile], before_ms: int) -> list[DataFile]:
    """Return files of hours that ended before a time. Files of the quarantine have no hour, and stay."""
    return [file for file in files if file.hour_ms is not None and file.hour_ms + HOUR_MS <= before_ms]


def expire_hours(table: Table, config: UpkeepConfig, *, clock: Clock) -> Manifest | None:
    """Remove hours that are older than `retention.ms`, by the time of the file system. Return None if there are none.

    Raises ConfigurationError without that setting; CommitConflictError if another run removed some of the files.
    """
    if config.retention_ms is None:
        raise ConfigurationError("retention.ms", "is missing: give the age at which hours are removed")
    state = table.state()
    if state.last is None:
        return None
    with marked_run(table, state, config.orphan_age_ms) as run_id:
        now_ms = filesystem_now_ms(table.files, table.layout, run_id)
        removed = expired_files(state.files.values(), now_ms - config.retention_ms)
        if not removed:
            return None
        return commit_rearrangement(
            table,
            state,
            Operation.EXPIRE,
            run_id=run_id,
            added=(),
            removed=removed,
            created_ms=clock(),
            orphan_age_ms=config.orphan_age_ms,
        )
