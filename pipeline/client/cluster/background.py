"""Background tasks of a block."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from pipeline.net.nurseries import unwrapped_errors


@asynccontextmanager
async def background_tasks() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose tasks are cancelled when the block ends. See `unwrapped_errors`."""
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
