"""DescribeClientQuotas (48): the quotas that match a filter (KIP-546), from this broker's view of ZooKeeper."""

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.quotas.entities import check_filter, matches, tell_entity
from pipeline.protocol.errors import KafkaError
from pipeline.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntryData,
    ValueData,
)


def handle(
    broker: BrokerContext, request: DescribeClientQuotasRequest, _version: int, _caller: Caller
) -> DescribeClientQuotasResponse:
    """Answers at once."""
    try:
        check_filter(request.components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.detail, entries=None)
    return DescribeClientQuotasResponse(
        entries=tuple(
            EntryData(
                entity=tell_entity(entity),
                values=tuple(ValueData(key=kind.value, value=limit) for kind, limit in quotas.items()),
            )
            for entity, quotas in broker.quotas.table.entities.items()
            if matches(entity, request.components, strict=request.strict)
        )
    )
