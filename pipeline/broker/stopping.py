"""A stop that comes as a cancellation, and still lets a broker hand over its work.

Invariant: a cancellation calls `relieve` once, and cancels the running tasks when `relieve` has returned.
"""

from collections.abc import Awaitable, Callable

import trio


async def run_until_relieved(run: Callable[[], Awaitable[None]], relieve: Callable[[], Awaitable[None]]) -> None:
    """Run; when cancelled from outside, call `relieve` while `run` continues, then cancel `run`.

    `relieve` must end by itself, and soon: nothing can interrupt it.
    """
    cancelled = trio.Event()
    async with trio.open_nursery() as outside:
        outside.start_soon(_tell_of_cancellation, cancelled)
        with trio.CancelScope(shield=True) as running:
            async with trio.open_nursery() as inside:
                inside.start_soon(_end, cancelled, relieve, running)
                await run()
                inside.cancel_scope.cancel()
        outside.cancel_scope.cancel()


async def _tell_of_cancellation(cancelled: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        cancelled.set()


async def _end(cancelled: trio.Event, relieve: Callable[[], Awaitable[None]], running: trio.CancelScope) -> None:
    await cancelled.wait()
    await relieve()
    running.cancel()
