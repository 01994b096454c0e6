"""Closes logs, many at once: a disk syncs many files as fast as one."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pipeline.diagnostics import get_logger
from pipeline.errors import LogFailedError, StorageError
from pipeline.log.held_files import release_files
from pipeline.log.log_failure import abandon, check_online, failing_unless_full, fails_alone
from pipeline.log.producer_snapshots import write_snapshot
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import TopicPartition

MAX_CLOSING_THREADS = 16
LOGS_PER_CLOSING_THREAD = 32

logger = get_logger(__name__)


@dataclass(slots=True)
class CloseResult:
    """The logs that are not wholly on the disk, and the first error (None: all are)."""

    unclosed: set[TopicPartition] = field(default_factory=set)
    error: StorageError | None = None


@fails_alone
def close_log(log: UnifiedLog) -> None:
    """Bring a log to disk so that the next start trusts it, and end its use. Raises StorageError."""
    check_online(log)
    if log.is_changed:
        try:
            with failing_unless_full(log):
                last = log.snapshot.segments[-1]
                last.seal()
                last.sync(with_indexes=True)
                log.aborted.sync()
                write_snapshot(log.files, log.directory, log.log_end_offset, log.producers, durable=True)
                log.flusher.has_new_names = True
                log.flush()
        except StorageError as error:
            abandon(log, f"the log had no room to be closed: {error}")
            raise
        log.holds_end = False
        release_files(log)
    abandon(log, "the log is closed")


def close_all(logs: Sequence[UnifiedLog], timeout_s: float) -> CloseResult:
    """Close logs, many of them in several threads; logs that are not closed by the timeout are unclosed."""
    waiting, closed = deque(logs), set[TopicPartition]()
    errors: list[StorageError] = []

    def close_some() -> None:
        while waiting and time.monotonic() < deadline_s:
            with suppress(IndexError):
                log = waiting.popleft()
                if log.failure is not None:
                    continue  # logged when it failed
                try:
                    close_log(log)
                    closed.add(log.topic_partition)
                except LogFailedError:
                    continue  # that log says why, and its log dir is closed without it
                except StorageError as error:
                    logger.exception("log_not_closed", topic_partition=str(log.topic_partition))
                    errors.append(error)

    deadline_s = time.monotonic() + timeout_s
    count = min(len(logs) // LOGS_PER_CLOSING_THREAD, MAX_CLOSING_THREADS)
    # daemons: late threads do not keep the process alive
    threads = [threading.Thread(target=close_some, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    close_some()
    for thread in threads:
        thread.join(max(deadline_s - time.monotonic(), 0))
    late = {log.topic_partition for log in logs if log.failure is None}
    error = errors[0] if errors else None
    if late and error is None:
        reason = f"the disk took longer than {timeout_s:g} s for {len(late)} of {len(logs)} logs"
        error = StorageError(str(logs[0].directory.parent), reason)
    unclosed = {log.topic_partition for log in logs} - closed.copy()
    return CloseResult(unclosed, error)
