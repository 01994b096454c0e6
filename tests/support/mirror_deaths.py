"""Mirrors in this process that die after a request that changed the hub."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from pipeline.protocol.messages.create_partitions import CreatePartitionsRequest
from pipeline.protocol.messages.create_topics import CreateTopicsRequest
from pipeline.protocol.messages.produce import ProduceRequest

CHANGES = (CreateTopicsRequest, CreatePartitionsRequest, ProduceRequest)


class Death:
    """Stops the mirror after the n-th change of the hub, until the mirror is cancelled; the answer is lost."""

    def __init__(self, request: Callable[..., Awaitable[Any]], number: int) -> None:
        self._request = request
        self._number = number
        self.came = False

    async def request(self, broker: Any, message: Any, **settings: Any) -> Any:
        if self.came:
            await trio.sleep_forever()
        if isinstance(message, CHANGES):
            self._number -= 1
            if self._number == 0:
                await self._request(broker, message, **settings)
                self.came = True
                await trio.sleep_forever()
        return await self._request(broker, message, **settings)
