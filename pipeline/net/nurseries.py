"""Errors out of nurseries, for callers who should not have to know that there is a nursery.

Invariant: `except PipelineError` around `unwrapped_errors` catches every foreseen failure, however many tasks failed at
once and also while they were being cancelled. So no caller needs `except*`.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import trio

from pipeline.errors import PipelineError


@contextmanager
def unwrapped_errors() -> Generator[None]:
    """Put around a nursery: its errors leave as the one that `essential_error` finds, or as the group they are."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = essential_error(group)
        raise error from error.__cause__


def essential_error(error: BaseException) -> BaseException:
    """The one error that stands for a group; the group itself where none does. Changes only the error's notes.

    An error that nobody foresaw stands for foreseen ones (PipelineError), and the first of these for all others, which
    are in its notes. Several unforeseen ones remain a group. A cancellation beside errors is left out: trio repeats it
    at the next checkpoint of whoever catches the error.
    """
    leaves = list(_leaves(error))
    errors = [leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)]
    unforeseen = [leaf for leaf in errors if not isinstance(leaf, PipelineError)]
    if len(unforeseen) > 1 or (not errors and len(leaves) > 1):
        return error
    essential = (unforeseen or errors or leaves)[0]
    for other in errors:
        if other is not essential:
            essential.add_note(f"At the same time: {type(other).__name__}: {other}")
    return essential


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
