"""Tasks that live as long as a block does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from pipeline.net.nurseries import unwrapped_errors


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled when the block ends. One exception leaves it, see `unwrapped_errors`."""
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
