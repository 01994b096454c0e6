"""Errors out of nurseries, for callers who should not have to know that there is a nursery."""

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def unwrapped_errors() -> Generator[None]:
    """Put around a nursery: an error that came alone leaves as itself, several leave as the group they are."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from error.__cause__
