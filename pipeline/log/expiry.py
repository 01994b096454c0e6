"""Removes expired segments (`retention`) from their log, then renames their files."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import RollDueError
from pipeline.log.log_failure import check_online, failing_unless_full, fails_alone
from pipeline.log.retention import count_expired, facts_of
from pipeline.log.segment import Segment
from pipeline.log.segment_files import retire_segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset


@fails_alone
def take_expired(
    log: UnifiedLog, high_watermark: Offset, now_ms: int, *, keeps_last: bool = False
) -> Sequence[Segment]:
    """Take expired segments out of a log, with `keeps_last` only closed ones; the log start offset moves behind them.

    The caller gives them to `delete_segments` once the log start offset is checkpointed. Nothing is taken during a roll
    or a truncation: the next retention check decides anew. Raises StorageError, RollDueError.
    """
    check_online(log)
    if not log.locks.change.acquire(blocking=False):
        return ()  # without waiting: the event loop must not wait for the disk
    try:
        log.producers.forget_silent(now_ms)
        segments, log_start_offset, log_end_offset, epochs = log.snapshot
        count = count_expired(
            facts_of(segments, log_end_offset),
            log.config,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )
        if keeps_last:
            count = min(count, len(segments) - 1)
        elif count == len(segments):
            if not log.waits_for_disk:
                raise RollDueError(log_end_offset, None if log.is_rolling else log_end_offset)
            log.add_segment(log_end_offset, now_ms)
        with log.locks.snapshot:
            present = log.snapshot
            if present.segments[:count] != segments[:count]:
                return ()  # a cleaned segment has replaced some: the next check decides anew
            left = present.segments[count:]
            start_offset = Offset(max(present.start_offset, left[0].base_offset))
            log.snapshot = present._replace(segments=left, start_offset=start_offset)
        epochs.truncate_from_start(start_offset)
    finally:
        log.locks.change.release()
    return segments[:count]


@fails_alone
def delete_segments(log: UnifiedLog, segments: Sequence[Segment], *, for_good: bool = False) -> list[Path]:
    """Rename the files of segments that left a log; returns their names, to be unlinked later. With `for_good` the
    names would survive a crash.

    Regions that were handed out stay readable. Raises StorageError: the log is offline then; DiskFullError: to be
    called again.
    """
    with failing_unless_full(log), log.locks.files:
        retired = [path for segment in segments for path in retire_segment(segment)]
        if for_good:
            log.files.sync_directory(log.directory)
        return retired
