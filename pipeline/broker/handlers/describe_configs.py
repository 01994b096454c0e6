"""DescribeConfigs (32): the settings of topics and of this broker, with where they come from (KIP-226, KIP-569).

A broker tells its own settings, and those that were changed for all brokers (asked for by the empty name).
"""

from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any

import trio

from pipeline.broker.config_changes import ResourceType, level_of
from pipeline.broker.config_entries import all_brokers_entries, broker_entries, topic_entries
from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.broker.topic_plan import check_topic_name
from pipeline.coordination.znodes import ALL_BROKERS
from pipeline.errors import PipelineError
from pipeline.net.answers import LargeAnswer
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

RESOURCES_AT_ONCE = 40
"""Some ten milliseconds of work, before others have their turn."""


def handle(broker: BrokerContext, request: DescribeConfigsRequest, _version: int, _caller: Caller) -> Awaitable[Any]:
    """Answers as this broker sees the cluster, a resource that is asked for again only once."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse | LargeAnswer:
    results = []
    for number, resource in enumerate(dict.fromkeys(request.resources), 1):
        results.append(_describe(broker, resource, request))
        if number % RESOURCES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    response = DescribeConfigsResponse(results=results)
    return response if len(results) < RESOURCES_AT_ONCE else LargeAnswer(response)


def _describe(
    broker: BrokerContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    try:
        entries = _entries(broker, resource)
    except PipelineError as error:
        failure = failure_of(error)
        return DescribeConfigsResult(
            error_code=failure.code,
            error_message=failure.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    wanted = resource.configuration_keys
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            replace(
                entry,
                synonyms=entry.synonyms if request.include_synonyms else (),
                documentation=entry.documentation if request.include_documentation else None,
            )
            for entry in entries
            if not wanted or entry.name in wanted
        ],
    )


def _entries(broker: BrokerContext, resource: DescribeConfigsResource) -> Iterable[DescribeConfigsResourceResult]:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(name)
            topic = broker.view.topic(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return topic_entries(topic.overrides, broker.settings)
        case ResourceType.BROKER if level_of(broker, name) == ALL_BROKERS:
            return all_brokers_entries(broker.settings)
        case ResourceType.BROKER:
            return broker_entries(broker.settings)
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {other}")
