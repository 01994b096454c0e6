"""DescribeConfigs (32), v1 to v4: settings of topics and brokers, and where they come from (KIP-226, KIP-569).

- A broker describes its own settings and those of all brokers (the empty name), not those of other brokers.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from pipeline.broker.failures import failure_of
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns
from pipeline.broker.settings.entries import all_brokers_entries, broker_entries, topic_entries
from pipeline.broker.topics.plan import check_topic_name
from pipeline.coordination.znodes import ALL_BROKERS
from pipeline.errors import PipelineError
from pipeline.net.answers import PendingAnswer
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    ResourceType,
)

RESOURCES_AT_ONCE = 40
"""Some ten milliseconds of work before other requests have a turn."""
RESOURCE_BYTES = 20_000
"""Approximate bytes of one resource in an encoded answer with all details."""

_Entries = Sequence[DescribeConfigsResourceResult]
_Described = dict[tuple[Hashable, Hashable], _Entries]
"""Described settings, by the key that equal settings share and the requested names: most topics have no overrides."""


def handle(
    broker: BrokerContext, request: DescribeConfigsRequest, _version: int, _caller: Caller
) -> DescribeConfigsResponse | PendingAnswer:
    """Answer as this broker sees the cluster; a repeated resource is described once."""
    resources = _each_once(request.resources)
    if len(resources) < RESOURCES_AT_ONCE:
        described: _Described = {}
        return DescribeConfigsResponse(results=[_describe(broker, each, request, described) for each in resources])
    found = sum(_exists(broker, resource) for resource in resources)
    return PendingAnswer(partial(_describe_in_turns, broker, request, resources), found * RESOURCE_BYTES)


def _each_once(resources: Iterable[DescribeConfigsResource]) -> Sequence[DescribeConfigsResource]:
    """Merge repeated resources, so that an answer holds no setting twice."""
    asked: dict[tuple[int, str], dict[str, None] | None] = {}
    for resource in resources:
        name, keys = (resource.resource_type, resource.resource_name), resource.configuration_keys
        if not keys:
            asked[name] = None
        elif (before := asked.setdefault(name, {})) is not None:
            before.update(dict.fromkeys(keys))
    return tuple(
        DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None if keys is None else tuple(keys)
        )
        for (kind, name), keys in asked.items()
    )


def _exists(broker: BrokerContext, resource: DescribeConfigsResource) -> bool:
    is_topic = resource.resource_type == ResourceType.TOPIC
    return not is_topic or broker.view.topic(resource.resource_name) is not None


async def _describe_in_turns(
    broker: BrokerContext, request: DescribeConfigsRequest, resources: Sequence[DescribeConfigsResource]
) -> DescribeConfigsResponse:
    turns = Turns(RESOURCES_AT_ONCE)
    results = []
    described: _Described = {}
    for resource in resources:
        results.append(_describe(broker, resource, request, described))
        await turns.after()
    return DescribeConfigsResponse(results=results)


def _describe(
    broker: BrokerContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest, described: _Described
) -> DescribeConfigsResult:
    try:
        made_by, entries = _entries(broker, resource)
    except PipelineError as error:
        failure = failure_of(error)
        return DescribeConfigsResult(
            error_code=failure.code,
            error_message=failure.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    wanted = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    key = made_by, wanted
    if key not in described:
        described[key] = [
            replace(
                entry,
                synonyms=entry.synonyms if request.include_synonyms else (),
                documentation=entry.documentation if request.include_documentation else None,
            )
            for entry in entries
            if wanted is None or entry.name in wanted
        ]
    return DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=described[key]
    )


def _entries(
    broker: BrokerContext, resource: DescribeConfigsResource
) -> tuple[Hashable, Iterable[DescribeConfigsResourceResult]]:
    """Return a key that equal settings share, and the settings. Raises PipelineError."""
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(name)
            topic = broker.view.topic(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return frozenset(topic.overrides.items()), topic_entries(topic.overrides, broker.settings)
        case ResourceType.BROKER if broker.configs.level_of(name) == ALL_BROKERS:
            return ALL_BROKERS, all_brokers_entries(broker.settings)
        case ResourceType.BROKER:
            return broker.settings.static.broker_id, broker_entries(broker.settings)
        case other:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {other}")
