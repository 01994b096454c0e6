"""IncrementalAlterConfigs (44): single settings of topics and brokers set, unset, appended to (KIP-339).

Settings of one broker are changed by that broker.
"""

from collections.abc import Awaitable

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.topics.config_changes import Operation, ResourceChange
from pipeline.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


def handle(
    broker: BrokerContext, request: IncrementalAlterConfigsRequest, _version: int, _caller: Caller
) -> Awaitable[IncrementalAlterConfigsResponse]:
    """Answers when the changes count at this broker."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    changes = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [Operation(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    results = await broker.configs.alter_all(
        changes, AlterConfigsResourceResponse, replace=False, validate_only=request.validate_only
    )
    return IncrementalAlterConfigsResponse(responses=results)
