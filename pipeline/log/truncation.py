"""Truncates a log at the offset where it differs from its leader's (KIP-101), or removes all its records.

Invariants:

- A log is truncated between batches: the batch that holds the offset is removed as a whole.
- After a crash at any step the log is a prefix of what it was, at least up to the offset, by the order of the steps.
  First go the records about the removed part, which a start rebuilds from the batches: checkpoints, leader epochs,
  later producer snapshots, the index of aborted transactions. Then the batches, the last segment first, which is on
  the disk before anything can be appended.
- No byte is overwritten: a truncated segment is closed, and the next append goes to a new file. A reader of the old
  snapshot gets the old bytes, or the end of the file, never other bytes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import StorageError
from pipeline.log.checkpoint import replace_file
from pipeline.log.files import Files
from pipeline.log.leader_epochs import LEADER_EPOCHS, LeaderEpochs
from pipeline.log.log_failure import check_online, failing_half_way, failing_unless_full, fails_alone
from pipeline.log.log_snapshot import LogSnapshot, segment_number
from pipeline.log.producer_snapshots import rebuild_producers, remove_snapshots_behind
from pipeline.log.segment import Segment
from pipeline.log.segment_files import remove_segment, truncate_segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset


class TruncationPlan(NamedTuple):
    """The part of a log that stays: the `kept` segments, then the first `size_bytes` of `split`, up to `end_offset`."""

    kept: tuple[Segment, ...]
    split: Segment | None
    size_bytes: int
    end_offset: Offset


def plan_truncation(segments: Sequence[Segment], offset: Offset) -> TruncationPlan:
    """Plan to truncate before the batch that holds `offset`, or in a gap before the next one. Raises StorageError."""
    number = segment_number(segments, offset)
    place = segments[number].locate(offset)
    if place is None:
        number += 1
    elif place.position:
        split = segments[number]
        return TruncationPlan(tuple(segments[:number]), split, place.position, _end_of(split, place.position))
    while number and not segments[number - 1].size_bytes:
        number -= 1
    kept = tuple(segments[:number])
    end_offset = _end_of(kept[-1], kept[-1].size_bytes) if kept else Offset(segments[0].base_offset)
    return TruncationPlan(kept, None, 0, end_offset)


def plan_removal(offset: Offset) -> TruncationPlan:
    """Plan to remove all records; the log goes on at `offset`."""
    return TruncationPlan((), None, 0, offset)


def _end_of(segment: Segment, size_bytes: int) -> Offset:
    end_offset = segment.find_end(size_bytes)
    if end_offset is None:
        raise StorageError(str(segment.path), f"no batch ends at position {size_bytes}")
    return Offset(end_offset)


def hold_open_behind(segments: Sequence[Segment], plan: TruncationPlan) -> None:
    """Open the segments to be truncated: a lack of descriptors shows before any change. Raises StorageError."""
    for segment in segments[len(plan.kept) :]:
        segment.hold_open()


def truncate_files(
    files: Files, directory: Path, segments: Sequence[Segment], plan: TruncationPlan
) -> tuple[Segment, ...]:
    """Carry out the plan, for good, on files that `hold_open_behind` has opened. Raises StorageError."""
    behind = segments[len(plan.kept) :]
    removed = behind if plan.split is None else behind[1:]
    for segment in reversed(removed):
        remove_segment(segment)
    if removed:
        files.sync_directory(directory)
    return plan.kept if plan.split is None else (*plan.kept, truncate_segment(plan.split, plan.size_bytes))


@fails_alone
def truncate_to(log: UnifiedLog, offset: Offset) -> bool:
    """Remove the batch that holds this offset and all batches behind it; False if there is none. Called in a thread.

    The log may end before `offset` then, and is empty if it would end before the log start offset. Raises
    StorageError: the log is offline then; DiskFullError: to be called again.
    """
    with log.locks.change, log.flusher.lock, log.locks.files:
        check_online(log)
        if offset >= log.log_end_offset:
            return False
        log_start_offset = Offset(min(log.log_start_offset, offset))
        plan = plan_truncation(log.snapshot.segments, offset)
        if plan.end_offset <= log_start_offset:
            plan = plan_removal(log_start_offset)
        _truncate(log, plan, log_start_offset)
        return True


@fails_alone
def restart_at(log: UnifiedLog, offset: Offset) -> None:
    """Remove all records; the log starts and ends at this offset then. Called and raises as `truncate_to`."""
    with log.locks.change, log.flusher.lock, log.locks.files:
        check_online(log)
        _truncate(log, plan_removal(offset), offset)


def _truncate(log: UnifiedLog, plan: TruncationPlan, log_start_offset: Offset) -> None:
    end_offset, segments, known = plan.end_offset, log.snapshot.segments, log.snapshot.epochs
    log.is_changed = True
    log.flusher.recovery_point = min(log.flusher.recovery_point, end_offset)
    if log.clean_offset is not None:
        log.clean_offset = min(log.clean_offset, end_offset)
    epochs = LeaderEpochs(known.entries if plan.kept or plan.split else ())
    epochs.truncate_from_end(end_offset)
    epochs.is_changed = known.is_changed
    with failing_unless_full(log):
        log.on_moving_back(log)
        if epochs.entries != known.entries:
            replace_file(log.files, log.directory / LEADER_EPOCHS, epochs.encode())
            epochs.is_changed = False
        remove_snapshots_behind(log.files, log.directory, end_offset)
        hold_open_behind(segments, plan)
    log.is_truncating = True
    log.truncations += 1
    try:
        with failing_half_way(log):
            log.aborted.forget_from(end_offset)
            log.aborted.sync()
            kept = truncate_files(log.files, log.directory, segments, plan)
            row = kept or (log.create_segment(end_offset, segments[-1].created_ms),)
            with log.locks.snapshot:
                log.snapshot = LogSnapshot(row, log_start_offset, end_offset, epochs)
            log.truncations += 1
            log.producers = rebuild_producers(
                log.files, log.directory, log.producers, log.config, log.snapshot, log.aborted
            )
            log.on_moving_back(log)  # the first call came before the log end offset moved
    finally:
        log.is_truncating = False
    try:
        if kept:  # nothing is appended to a truncated segment
            log.add_segment(end_offset, segments[-1].created_ms)
    except StorageError:
        kept[-1].is_synced = False
        raise
