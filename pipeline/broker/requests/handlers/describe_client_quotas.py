"""DescribeClientQuotas (48), v0 to v1: the quotas that match a filter, as this broker sees them (KIP-546)."""

from collections.abc import Mapping
from functools import partial

from pipeline.broker.quotas.entities import check_filter, entity_data, matches
from pipeline.broker.quotas.table import QuotaKind
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.coordination.quota_znodes import QuotaEntity
from pipeline.net.answers import PendingAnswer
from pipeline.protocol.errors import KafkaError
from pipeline.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntryData,
    ValueData,
)

ENTITIES_AT_ONCE = 500
"""Entities that are described before other requests have a turn."""
ENTITY_BYTES = 800
"""Approximate bytes of an entity in an answer, built and encoded, without its names."""


def handle(
    broker: BrokerContext, request: DescribeClientQuotasRequest, _version: int, _caller: Caller
) -> DescribeClientQuotasResponse | PendingAnswer:
    """Answer at once, unless there are very many quotas."""
    try:
        check_filter(request.components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.detail, entries=None)
    entities = broker.quotas.table.entities
    if len(entities) > ENTITIES_AT_ONCE:
        return PendingAnswer(partial(_describe_in_turns, broker, request), sum(map(_size_of, entities)))
    found = [(entity, quotas) for entity, quotas in entities.items() if _is_wanted(entity, request)]
    return DescribeClientQuotasResponse(entries=[_described(entity, quotas) for entity, quotas in found])


async def _describe_in_turns(
    broker: BrokerContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    turns = Turns(ENTITIES_AT_ONCE)
    entries = []
    for entity, quotas in list(broker.quotas.table.entities.items()):
        if _is_wanted(entity, request):
            entries.append(_described(entity, quotas))
        await turns.after()
    return DescribeClientQuotasResponse(entries=entries)


def _is_wanted(entity: QuotaEntity, request: DescribeClientQuotasRequest) -> bool:
    return matches(entity, request.components, strict=request.strict)


def _described(entity: QuotaEntity, quotas: Mapping[QuotaKind, float]) -> EntryData:
    values = tuple(ValueData(key=kind.value, value=limit) for kind, limit in quotas.items())
    return EntryData(entity=entity_data(entity), values=values)


def _size_of(entity: QuotaEntity) -> int:
    return ENTITY_BYTES + sum(len(name) for name in (entity.user, entity.client_id) if isinstance(name, str))
