"""Files that a log holds open: the one it appends to, files with unsynced data, and files that were read recently."""

from pipeline.log.log_failure import fails_alone
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import Offset


def hold_end_open(log: UnifiedLog) -> None:
    """Hold the file that is appended to open from now on, so that an append waits for its write alone.

    To be called in a thread, before anything is appended. Raises StorageError; nothing has changed then.
    """
    with log.locks.files:
        log.snapshot.segments[-1].prepare()
        log.holds_end = True


def open_for_read(log: UnifiedLog, offset: Offset, max_bytes: int, up_to_offset: Offset, *, is_committed: bool) -> None:
    """Hold open what such a read needs to find its batches, and with `is_committed` keep in memory what tells of its
    aborted transactions, until `release_files`. To be called in a thread. Raises what `UnifiedLog.read` raises.
    """
    found = log.read(offset, max_bytes, up_to_offset, holds=True)
    if is_committed:
        log.aborted.read_between(offset, found.upper_bound())


@fails_alone
def release_files(log: UnifiedLog) -> None:
    """Close all files but those with unsynced data and the one of `hold_end_open`, until they are needed again."""
    log.aborted.forget_read()
    segments = log.snapshot.segments
    held = segments[-1] if log.holds_end else None
    if not any(segment.is_index_open if segment is held else segment.is_open for segment in segments):
        return
    with log.locks.files, log.locks.snapshot:
        is_synced = log.recovery_point == log.log_end_offset
        segments = log.snapshot.segments
        for segment in segments:
            if segment.is_synced or is_synced:
                segment.release(keeps_log=log.holds_end and segment is segments[-1])


def drop_files(log: UnifiedLog) -> None:
    """Close all files of an abandoned log: deleted files take space as long as they are open."""
    with log.locks.files, log.locks.snapshot:
        for segment in log.snapshot.segments:
            segment.release()
