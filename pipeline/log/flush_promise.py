"""The note that a log acknowledges nothing before it is on the disk (`flush.messages=1`), kept across a loss of power.

Invariants:

- The note is on the disk only after everything that was acknowledged before it is, and goes, for good, before anything
  is acknowledged without a flush. So a log with the note lost nothing acknowledged when its machine lost its power.
- The note says nothing of a disk that damages what it had synced: recovery finds that (`tail-lost`).
"""

from pathlib import Path

from pipeline.log.checkpoint import FLUSHED_FIRST
from pipeline.log.files import Files
from pipeline.log.log_failure import check_online, failing_unless_full
from pipeline.log.unified_log import UnifiedLog


def has_promise(files: Files, directory: Path) -> bool:
    """Return True if the log in this directory has the note. Raises StorageError."""
    return files.exists(directory / FLUSHED_FIRST)


def promise_flushes(log: UnifiedLog, *, is_promised: bool) -> None:
    """Flush and return once the note is on the disk; or, without `is_promised`, once it is gone for good.

    A log that has the note is flushed, too: a killed process may have left unflushed records. The caller flushes before
    it acknowledges from before the call with True until the call with False has returned. Raises StorageError; the log
    is offline then, unless the disk is full.
    """
    if is_promised and (not log.is_flushed_first or log.recovery_point < log.log_end_offset):
        log.flush()
    if is_promised == log.is_flushed_first:
        return
    check_online(log)
    with failing_unless_full(log):
        if is_promised:
            log.files.open(log.directory / FLUSHED_FIRST, create=True).sync()
        else:
            log.files.unlink(log.directory / FLUSHED_FIRST)
        log.files.sync_directory(log.directory)
    log.is_flushed_first = is_promised
