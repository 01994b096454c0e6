"""From a request to the handler of its api key, and how many of each there were and how long they took."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import trio

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.handlers import (
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    fetch,
    init_producer_id,
    list_offsets,
    metadata,
    produce,
)
from pipeline.net.server import Answer, Peer
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import Request
from pipeline.protocol.schema import Message

ApiHandler = Callable[[BrokerContext, Any, int, Caller], Answer | Awaitable[Answer]]
"""Given the request's body, its version and who sent it; answers at once or returns a coroutine that will."""

HANDLERS: Mapping[ApiKey, ApiHandler] = MappingProxyType(
    {
        ApiKey.PRODUCE: produce.handle,
        ApiKey.FETCH: fetch.handle,
        ApiKey.LIST_OFFSETS: list_offsets.handle,
        ApiKey.METADATA: metadata.handle,
        ApiKey.API_VERSIONS: api_versions.handle,
        ApiKey.CREATE_TOPICS: create_topics.handle,
        ApiKey.DELETE_TOPICS: delete_topics.handle,
        ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
        ApiKey.CREATE_PARTITIONS: create_partitions.handle,
    }
)

SERVED: Mapping[int, ApiKey] = MappingProxyType({key.value: key for key in HANDLERS})
"""The api keys that have a handler."""


@dataclass(slots=True)
class ApiStatistics:
    """Requests of one api key: how many were answered, how many failed by a bug or garbage, seconds in all."""

    answered: int = 0
    failed: int = 0
    total_s: float = 0.0


@dataclass(slots=True)
class Dispatcher:
    """The handler that the server calls."""

    broker: BrokerContext
    statistics: Mapping[ApiKey, ApiStatistics] = field(
        default_factory=lambda: {key: ApiStatistics() for key in HANDLERS}
    )

    def handle(self, request: Request[Message], peer: Peer) -> Answer | Awaitable[Answer]:
        """Answer, at once or later."""
        statistics = self.statistics[request.api_key]
        started = trio.current_time()
        caller = Caller(client_id=request.client_id, host=peer.address.host)
        try:
            answer = HANDLERS[request.api_key](self.broker, request.body, request.api_version, caller)
        except BaseException:
            statistics.failed += 1
            raise
        if isinstance(answer, Awaitable):
            return _measured(answer, statistics, started)
        statistics.answered += 1
        statistics.total_s += trio.current_time() - started
        return answer


async def _measured(answer: Awaitable[Answer], statistics: ApiStatistics, started: float) -> Answer:
    try:
        result = await answer
    except BaseException:
        statistics.failed += 1
        raise
    statistics.answered += 1
    statistics.total_s += trio.current_time() - started
    return result
