"""Between a request and its handler: what a client with a quota sends and reads is counted, and its answer tells it for
how long it was or will be throttled.

A Produce request counts with the bytes of the request, a Fetch with the bytes of the records in its answer. What other
brokers fetch as followers does not count.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pipeline.broker.quotas.keeper import QuotaKeeper
from pipeline.broker.quotas.table import Quota, QuotaKind
from pipeline.net.server import Answer, Outcome, Throttled
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import Request
from pipeline.protocol.messages.fetch import FetchRequest, FetchResponse
from pipeline.protocol.messages.produce import ProduceResponse
from pipeline.protocol.primitives import payload_size
from pipeline.protocol.schema import Message

LIMITED: Mapping[ApiKey, QuotaKind] = MappingProxyType(
    {ApiKey.PRODUCE: QuotaKind.PRODUCE, ApiKey.FETCH: QuotaKind.FETCH}
)
"""The api keys whose bytes count, and as what."""

_Handle = Callable[[Any], Answer | Awaitable[Answer]]


def find_quota(keeper: QuotaKeeper, api_key: ApiKey, user: str, client_id: str | None) -> Quota | None:
    """The quota that holds for a request, None where nothing limits it."""
    if keeper.table.is_empty or api_key not in LIMITED:
        return None
    return keeper.table.find(LIMITED[api_key], user, client_id or "")


def handle_within(
    keeper: QuotaKeeper, quota: Quota, request: Request[Message], handle: _Handle
) -> Outcome | Awaitable[Outcome]:
    """Have the request's body handled, and its client throttled as the quota demands."""
    if isinstance(request.body, FetchRequest):
        if request.body.replica_id >= 0 or request.body.replica_state.replica_id >= 0:
            return handle(request.body)
        return _fetch(keeper, quota, request.body, handle)
    answer = handle(request.body)
    if isinstance(answer, Awaitable):
        return _charge_later(keeper, quota, request.size_bytes, answer)
    return _charge(keeper, quota, request.size_bytes, answer)


async def _charge_later(keeper: QuotaKeeper, quota: Quota, size_bytes: int, answer: Awaitable[Answer]) -> Outcome:
    return _charge(keeper, quota, size_bytes, await answer)


def _charge(keeper: QuotaKeeper, quota: Quota, size_bytes: int, answer: Answer) -> Outcome:
    delay_s = keeper.charge(QuotaKind.PRODUCE, quota, size_bytes)
    if delay_s <= 0:
        return answer
    if isinstance(answer, ProduceResponse):
        answer = replace(answer, throttle_time_ms=_milliseconds(delay_s))
    return Throttled(answer, delay_s)


async def _fetch(keeper: QuotaKeeper, quota: Quota, body: Any, handle: _Handle) -> Outcome:
    """Wait for the turn, then read no more than the share; what was read is paid for before anybody else's turn."""
    waited_s, max_bytes = await keeper.wait_for_turn(QuotaKind.FETCH, quota)
    asked: FetchRequest = body
    answer = handle(replace(asked, max_bytes=min(asked.max_bytes, max_bytes)))
    if isinstance(answer, Awaitable):
        answer = await answer
    if not isinstance(answer, FetchResponse):
        return answer
    delay_s = keeper.charge(QuotaKind.FETCH, quota, _records_bytes(answer))
    throttled_s = waited_s + delay_s
    if throttled_s > 0:
        answer = replace(answer, throttle_time_ms=_milliseconds(throttled_s))
    return Throttled(answer, delay_s) if delay_s > 0 else answer


def _records_bytes(answer: FetchResponse) -> int:
    return sum(
        payload_size(data.records)
        for topic in answer.responses
        for data in topic.partitions
        if data.records is not None
    )


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1000) + 1, 2**31 - 1)
