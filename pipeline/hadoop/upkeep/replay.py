"""Replays an hour: reads its offsets from the topic again, and puts the files in the place of the hour's files."""

from dataclasses import dataclass, replace

from pipeline.errors import PipelineError
from pipeline.hadoop.commit.layout import TaskAttempt
from pipeline.hadoop.commit.manifest import Manifest, Operation
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.upkeep.quarantined_offsets import QuarantinedOffsets
from pipeline.hadoop.upkeep.rewriting import FileCluster, rewrite
from pipeline.hadoop.upkeep.table import Table, commit_rearrangement, marked_run
from pipeline.model import Clock


class NoSuchHourError(PipelineError):
    """The table has no files of the hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedHour:
    """A committed replay, and how many of its files have the same bytes as the ones before."""

    manifest: Manifest
    same_bytes: int


def replay_hour(table: Table, config: LoadConfig, hour_ms: int, *, clock: Clock) -> ReplayedHour:
    """Write the files of an hour again and commit them.

    Raises NoSuchHourError; DataLossError and TopicChangedError if the topic does not hold the same records any more;
    CommitConflictError if another run removed the hour's files; each with nothing committed.
    """
    state = table.state()
    removed = [file for file in state.data_files() if file.hour_ms == hour_ms]
    if state.last is None or not removed:
        raise NoSuchHourError(f"{table.topic}: the table has no files of this hour")
    partitions = {file.partition for file in removed}
    quarantined = (file for file in state.data_files(quarantined=True) if file.partition in partitions)
    aside = QuarantinedOffsets.of(table, quarantined)
    path_format = config.path_format or state.last.path_format
    with marked_run(table, state, config.orphan_age_ms) as run_id:
        pairs = []
        for number, cluster in enumerate(FileCluster.all_of(removed)):
            attempt = TaskAttempt(run_id=run_id, task=number, attempt=0)
            pairs += rewrite(table.files, table.layout, config, cluster, attempt, path_format=path_format, aside=aside)
        added = [replace(new, record_type=old.record_type, schema_id=old.schema_id) for (old, *_), new in pairs]
        manifest = commit_rearrangement(
            table,
            state,
            Operation.REPLAY,
            run_id=run_id,
            added=added,
            removed=removed,
            created_ms=clock(),
            orphan_age_ms=config.orphan_age_ms,
        )
    same = sum([(old.bytes, old.crc32c) for old in before] == [(new.bytes, new.crc32c)] for before, new in pairs)
    return ReplayedHour(manifest=manifest, same_bytes=same)
