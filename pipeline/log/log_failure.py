"""Failures of a log: with its log dir if the disk refused something, else alone.

Invariants:

- A log that failed refuses every call from then on, and the next start recovers it.
- An unforeseen error, or an odd entry in the directory of a log, takes this log offline alone: the disk has refused
  nothing, so its log dir and the other logs there go on.
- A full disk is no failure if what was begun could be taken back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pipeline.diagnostics import get_logger
from pipeline.errors import DiskFullError, LogFailedError, OddEntryError, PipelineError, StorageError
from pipeline.log.files import Files
from pipeline.log.unsynced import note_failure

logger = get_logger(__name__)


class FallibleLog(Protocol):
    """A log that can fail. `on_failure` is called once, if its disk refused something; `on_full` for lack of room."""

    files: Files
    directory: Path
    failure: StorageError | None
    on_failure: Callable[[StorageError], None]
    on_full: Callable[[DiskFullError], None]


_Log = TypeVar("_Log", bound=FallibleLog)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def fails_alone(function: Callable[Concatenate[_Log, _P], _T]) -> Callable[Concatenate[_Log, _P], _T]:
    """Make a function of a log take it offline and raise LogFailedError instead of an unforeseen error."""

    @wraps(function)
    def guarded(log: _Log, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(log, *args, **kwargs)
        except PipelineError:
            raise
        except Exception as error:
            raise fail_alone(log, error) from error

    return guarded


def check_online(log: FallibleLog) -> None:
    """Raise StorageError if the log has failed, was closed, or was deleted."""
    if log.failure is not None:
        raise StorageError(log.failure.path, log.failure.reason)


def abandon(log: FallibleLog, reason: str) -> None:
    """End all use of a log; nothing is written."""
    log.failure = log.failure or StorageError(str(log.directory), reason)


def fail_alone(log: FallibleLog, error: Exception) -> LogFailedError:
    """Take a log offline, but not its log dir; returns the error that its calls raise from now on."""
    logger.error("log_failed", topic_partition=log.directory.name, exc_info=error)
    reason = error.reason if isinstance(error, StorageError) else f"an error that nobody foresaw: {error!r}"
    path = error.path if isinstance(error, StorageError) else str(log.directory)
    failure = LogFailedError(path, f"{reason}; this partition is offline until the broker is started again")
    note_failure(log.files, log.directory)
    log.failure = log.failure or failure
    return failure


def fail(log: FallibleLog, error: StorageError) -> None:
    """Take a log offline after a refusal of its disk, and notify its log dir."""
    if isinstance(error, OddEntryError):
        fail_alone(log, error)
        return
    note_failure(log.files, log.directory)
    if log.failure is None:
        log.failure = error
        log.on_failure(error)


@contextmanager
def failing_unless_full(log: FallibleLog) -> Iterator[None]:
    """Take a log offline if the disk refuses something for another reason than a lack of space."""
    try:
        yield
    except DiskFullError as error:
        log.on_full(error)
        raise
    except StorageError as error:
        fail(log, error)
        raise


@contextmanager
def failing_half_way(log: FallibleLog) -> Iterator[None]:
    """Take a log offline if a change fails half way; for a lack of space this log alone."""
    try:
        yield
    except StorageError as error:
        if isinstance(error, DiskFullError):
            log.on_full(error)
            fail_alone(log, error)
        else:
            fail(log, error)
        raise
