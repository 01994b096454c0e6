"""Errors of nurseries, for callers that should not have to know that there is a nursery.

Invariant: `except PipelineError` around `unwrapped_errors` catches every foreseen failure, however many tasks failed at
once, even while they were cancelled. So no caller needs `except*`.
"""

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from pipeline.errors import PipelineError


@asynccontextmanager
async def lasting_nursery() -> AsyncGenerator[trio.Nursery]:
    """Open a nursery whose tasks go on while a cancelled block unwinds, and are cancelled when it has ended.

    So what the block has opened can be closed in order, in a shielded scope of its own.
    """
    async with trio.open_nursery() as around:
        nursery, scope = await around.start(_keep_open)
        try:
            yield nursery
        finally:
            scope.cancel()


async def _keep_open(*, task_status: trio.TaskStatus[tuple[trio.Nursery, trio.CancelScope]]) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            task_status.started((nursery, scope))
            await trio.lowlevel.checkpoint_if_cancelled()  # a cancelled start waits for the end of this task
            scope.shield = True
            await trio.sleep_forever()


@contextmanager
def unwrapped_errors() -> Generator[None]:
    """Raise the essential error of a nursery inside the context (see `essential_error`), or its group of errors."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = essential_error(group)
        raise error from error.__cause__


def essential_error(error: BaseException) -> BaseException:
    """Return the error that stands for a group, with the others as notes; the group itself if several are unforeseen.

    An unforeseen error stands for foreseen ones (PipelineError), else the first foreseen one for all. A cancellation
    beside errors is left out: trio repeats it at the next checkpoint of the task that catches the error.
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
