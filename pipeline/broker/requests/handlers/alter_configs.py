"""AlterConfigs (33), v0 to v2: replace all settings of topics and brokers (KIP-133).

A setting that the request does not name falls back to its default. Newer clients send IncrementalAlterConfigs.
"""

from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from pipeline.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, OperationType


async def handle(
    broker: BrokerContext, request: AlterConfigsRequest, _version: int, _caller: Caller
) -> AlterConfigsResponse:
    """Answer when the changes count at this broker."""
    changes = [
        AlterConfigsResource(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[
                AlterableConfig(name=config.name, config_operation=OperationType.SET, value=config.value)
                for config in resource.configs
            ],
        )
        for resource in request.resources
    ]
    results = await broker.configs.alter_all(changes, replace=True, validate_only=request.validate_only)
    return AlterConfigsResponse(responses=results)
