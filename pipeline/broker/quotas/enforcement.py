"""Stands between a request and its handler: counts the bytes that a client with a quota sends and reads.

A Produce request counts by its size, a Fetch request by the records in its answer. Fetches of followers do not count;
the dispatcher recognizes them. An answer tells the client for how long it was or will be throttled.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from pipeline.broker.quotas.keeper import QuotaClient, QuotaKeeper
from pipeline.broker.quotas.table import QuotaKind
from pipeline.model import BrokerId
from pipeline.net.answers import Answer, HandlerResult, Throttled
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import Request
from pipeline.protocol.messages.fetch import FetchRequest, FetchResponse
from pipeline.protocol.messages.produce import ProduceResponse
from pipeline.protocol.primitives import payload_size
from pipeline.protocol.schema import Message

LIMITED: Mapping[ApiKey, QuotaKind] = MappingProxyType(
    {ApiKey.PRODUCE: QuotaKind.PRODUCE, ApiKey.FETCH: QuotaKind.FETCH}
)
"""Api keys whose bytes count, with their kinds of quotas."""

_Handle = Callable[[Any], Any]
"""A handler of Produce or Fetch, which returns an answer or an awaitable of one."""


def is_limited(keeper: QuotaKeeper, api_key: ApiKey, client: QuotaClient) -> bool:
    """True if a quota applies to the client's requests of this api key."""
    return api_key in LIMITED and keeper.table.find(LIMITED[api_key], *client) is not None


def replica_of(body: FetchRequest) -> tuple[BrokerId, int]:
    """Return the broker id and broker epoch of the sender of a Fetch request; -1 for a consumer."""
    return BrokerId(max(body.replica_id, body.replica_state.replica_id)), body.replica_state.replica_epoch


def handle_within(
    keeper: QuotaKeeper, client: QuotaClient, request: Request[Message], handle: _Handle
) -> HandlerResult | Awaitable[HandlerResult]:
    """Handle the body of a request with a quota, and throttle its client as the quota demands."""
    if isinstance(request.body, FetchRequest):
        return _fetch(keeper, client, request.body, handle)
    answer = handle(request.body)
    if isinstance(answer, Awaitable):
        return _charge_later(keeper, client, request.size_bytes, answer)
    return _charge(keeper, client, request.size_bytes, answer)


async def _charge_later(
    keeper: QuotaKeeper, client: QuotaClient, size_bytes: int, answer: Awaitable[Answer]
) -> HandlerResult:
    return _charge(keeper, client, size_bytes, await answer)


def _charge(keeper: QuotaKeeper, client: QuotaClient, size_bytes: int, answer: Answer) -> HandlerResult:
    delay_s = keeper.charge(QuotaKind.PRODUCE, client, size_bytes)
    if delay_s <= 0:
        return answer
    if isinstance(answer, ProduceResponse):
        answer = replace(answer, throttle_time_ms=_milliseconds(delay_s))
    return _throttled(keeper, QuotaKind.PRODUCE, client, answer, delay_s)


def _throttled(keeper: QuotaKeeper, kind: QuotaKind, client: QuotaClient, answer: Answer, delay_s: float) -> Throttled:
    return Throttled(answer, delay_s, partial(keeper.owed, kind, client), keeper.window_s)


async def _fetch(keeper: QuotaKeeper, client: QuotaClient, body: Any, handle: _Handle) -> HandlerResult:
    """Wait for the client's turn, read at most its share, and charge it before the next client's turn."""
    waited_s, max_bytes = await keeper.wait_for_turn(QuotaKind.FETCH, client)
    asked: FetchRequest = body
    answer = handle(replace(asked, max_bytes=min(asked.max_bytes, max_bytes)))
    if isinstance(answer, Awaitable):
        answer = await answer
    if not isinstance(answer, FetchResponse):
        other: Answer = answer
        return other
    delay_s = keeper.charge(QuotaKind.FETCH, client, _records_bytes(answer))
    throttled_s = waited_s + delay_s
    if throttled_s > 0:
        answer = replace(answer, throttle_time_ms=_milliseconds(throttled_s))
    return _throttled(keeper, QuotaKind.FETCH, client, answer, delay_s) if delay_s > 0 else answer


def _records_bytes(answer: FetchResponse) -> int:
    return sum(
        payload_size(data.records)
        for topic in answer.responses
        for data in topic.partitions
        if data.records is not None
    )


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1000) + 1, 2**31 - 1)
