"""Commands that die at one of their requests."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from pipeline.client.cluster.cluster import Cluster, open_cluster


async def dies_at(number: int, hub: Cluster, command: Callable[[Cluster], Awaitable[Any]], *, is_sent: bool) -> bool:
    """Run a command that dies at this request, before it is sent or after it was answered; True if it came so far."""
    requests = 0
    scope = trio.CancelScope()
    async with open_cluster(hub.config) as cluster:
        pool: Any = cluster._pool
        send = pool.request

        async def request(*args: Any, **kwargs: Any) -> Any:
            nonlocal requests
            requests += 1
            if requests == number and is_sent:
                with trio.CancelScope(shield=True):
                    await send(*args, **kwargs)
            if requests >= number:
                scope.cancel()
                await trio.sleep_forever()
            return await send(*args, **kwargs)

        pool.request = request
        with scope:
            await command(cluster)
    return scope.cancelled_caught
