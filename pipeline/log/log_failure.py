"""Failures of one log alone: an error that nobody foresaw ends the use of the log that met it, and of nothing else.

Invariants:

- Such a log refuses every call from then on, and the next start recovers it, as after a failure of the disk.
- Its log dir and the other logs there go on: the disk has refused nothing.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import structlog

from pipeline.errors import LogFailedError, PipelineError, StorageError

logger = structlog.get_logger()


class FallibleLog(Protocol):
    """A log that can fail alone."""

    def fail_alone(self, error: Exception) -> LogFailedError:
        """Take the log offline; returns the error that its calls raise from then on."""
        ...


_Log = TypeVar("_Log", bound=FallibleLog)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def fails_alone(method: Callable[Concatenate[_Log, _P], _T]) -> Callable[Concatenate[_Log, _P], _T]:
    """Have a method of a log raise LogFailedError, with the log offline, where it would raise an unforeseen error."""

    @wraps(method)
    def guarded(log: _Log, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(log, *args, **kwargs)
        except PipelineError:
            raise
        except Exception as error:
            raise log.fail_alone(error) from error

    return guarded


def describe_failure(directory: Path, error: Exception) -> LogFailedError:
    """Log the error, with its traceback, and return the one that the calls of the log raise from now on."""
    logger.error("log_failed", topic_partition=directory.name, exc_info=error)
    reason = error.reason if isinstance(error, StorageError) else f"an error that nobody foresaw: {error!r}"
    path = error.path if isinstance(error, StorageError) else str(directory)
    return LogFailedError(path, f"{reason}; this partition is offline until the broker is started again")
