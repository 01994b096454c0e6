"""Ends many logs at once: they wait for the disk, which syncs many files as fast as one."""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import structlog

from pipeline.errors import LogFailedError, StorageError
from pipeline.log.unified_log import UnifiedLog

MAX_CLOSING_THREADS = 16
LOGS_PER_CLOSING_THREAD = 32

_LOGGER = structlog.get_logger()


def close_all(logs: Sequence[UnifiedLog]) -> StorageError | None:
    """Close them, many of them in several threads; return the first error. A log that fails alone is none.

    The threads do not keep a process alive that has waited long enough.
    """
    unclosed = deque(logs)
    errors: list[StorageError] = []

    def close_some() -> None:
        while unclosed:
            with suppress(IndexError):
                log = unclosed.popleft()
                if isinstance(log.failure, LogFailedError):
                    continue
                try:
                    log.close()
                except LogFailedError:
                    continue  # that log says why, and its log dir is closed without it
                except StorageError as error:
                    _LOGGER.exception("log_not_closed", topic_partition=str(log.topic_partition))
                    errors.append(error)

    count = min(len(logs) // LOGS_PER_CLOSING_THREAD, MAX_CLOSING_THREADS)
    threads = [threading.Thread(target=close_some, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    close_some()
    for thread in threads:
        thread.join()
    return errors[0] if errors else None
