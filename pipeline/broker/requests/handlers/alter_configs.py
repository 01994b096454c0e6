"""AlterConfigs (33): all settings of a topic or broker replaced at once; what is not named falls back (KIP-133).

Superseded by IncrementalAlterConfigs, still asked by older clients.
"""

from collections.abc import Awaitable

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.topics.config_changes import Operation, ResourceChange
from pipeline.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from pipeline.protocol.messages.incremental_alter_configs import OperationType


def handle(
    broker: BrokerContext, request: AlterConfigsRequest, _version: int, _caller: Caller
) -> Awaitable[AlterConfigsResponse]:
    """Answers when the changes count at this broker."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    changes = [
        ResourceChange(
            resource.resource_type,
            resource.resource_name,
            [Operation(config.name, OperationType.SET, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    results = await broker.configs.alter_all(
        changes, AlterConfigsResourceResponse, replace=True, validate_only=request.validate_only
    )
    return AlterConfigsResponse(responses=results)
