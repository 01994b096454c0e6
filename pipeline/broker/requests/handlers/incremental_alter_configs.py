"""IncrementalAlterConfigs (44), v0 to v1: set, unset or append to single settings of topics and brokers (KIP-339).

- Only the broker itself changes the settings of one broker.
"""

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    broker: BrokerContext, request: IncrementalAlterConfigsRequest, _version: int, _caller: Caller
) -> IncrementalAlterConfigsResponse:
    """Answer when the changes count at this broker."""
    results = await broker.configs.alter_all(request.resources, replace=False, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(responses=results)
