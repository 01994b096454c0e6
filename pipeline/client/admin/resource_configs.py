"""Settings of topics and brokers, read and changed: DescribeConfigs (KIP-226), IncrementalAlterConfigs (KIP-339)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.model import BrokerId
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import (
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    ResourceType,
)
from pipeline.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    OperationType,
)
from pipeline.protocol.schema import Message
from pipeline.settings import MAX_INT32

_TOPICS_PER_REQUEST = 500


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic by name or a broker by id; the empty name stands for all brokers."""

    kind: ResourceType
    name: str

    @property
    def broker(self) -> BrokerId | None:
        """The only broker that can answer; None if any can. Raises KafkaError (INVALID_REQUEST) for a name that is no
        broker id.
        """
        if self.kind is not ResourceType.BROKER or not self.name:
            return None
        if not re.fullmatch("[0-9]{1,10}", self.name) or int(self.name) > MAX_INT32:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{self}: a broker is named by its id")
        return BrokerId(int(self.name))

    def __str__(self) -> str:
        return f"{self.kind.name.lower()} {self.name or '(all)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting in effect. `value` is None if there is none, or if it is a secret."""

    value: str | None
    source: ConfigSource
    is_read_only: bool
    documentation: str | None


async def describe_configs(
    cluster: Cluster, resources: Sequence[ConfigResource], *, timeout_s: float
) -> dict[ConfigResource, dict[str, ConfigEntry]]:
    """Return all settings of these topics and brokers, by name. Raises KafkaError for the first that is refused."""
    found = {}
    for resource in resources:
        asked = DescribeConfigsResource(
            resource_type=resource.kind, resource_name=resource.name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=(asked,), include_documentation=True)
        response: DescribeConfigsResponse = await _ask(cluster, resource, request, timeout_s)
        (result,) = response.results
        _check(resource, result.error_code, result.error_message)
        found[resource] = {entry.name: _entry(entry) for entry in result.configs}
    return found


async def describe_many_topics(
    cluster: Cluster, topics: Sequence[str], names: Sequence[str], *, timeout_s: float
) -> dict[str, dict[str, ConfigEntry] | KafkaError]:
    """Return these settings of each topic, or the refusal. Documentations are left out. Many topics take few requests.

    Raises KafkaError, NetworkError.
    """
    found: dict[str, dict[str, ConfigEntry] | KafkaError] = {}
    for first in range(0, len(topics), _TOPICS_PER_REQUEST):
        asked = tuple(
            DescribeConfigsResource(
                resource_type=ResourceType.TOPIC, resource_name=topic, configuration_keys=tuple(names)
            )
            for topic in topics[first : first + _TOPICS_PER_REQUEST]
        )
        response: DescribeConfigsResponse = await cluster.request_any(
            DescribeConfigsRequest(resources=asked), timeout_s=timeout_s
        )
        for result in response.results:
            if result.error_code != ErrorCode.NONE:
                reason = f"topic {result.resource_name}: {result.error_message or 'refused'}"
                found[result.resource_name] = KafkaError(result.error_code, reason)
            else:
                found[result.resource_name] = {entry.name: _entry(entry) for entry in result.configs}
    return found


async def describe_topic_settings(
    cluster: Cluster, topics: Sequence[str], names: Sequence[str], *, timeout_s: float
) -> dict[str, dict[str, str]]:
    """Return these settings of each topic, without topics that were deleted meanwhile.

    Raises KafkaError for the first other refusal.
    """
    found: dict[str, dict[str, str]] = {}
    for topic, result in (await describe_many_topics(cluster, topics, names, timeout_s=timeout_s)).items():
        if not isinstance(result, KafkaError):
            found[topic] = {name: entry.value or "" for name, entry in result.items()}
        elif result.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise result
    return found


async def describe_topic_settings_at(
    cluster: Cluster, broker: BrokerId | None, topic: str, names: Sequence[str], *, timeout_s: float
) -> dict[str, str]:
    """Return these settings of a topic as this broker, or any broker (None), sees them. Raises KafkaError."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    asked = DescribeConfigsResource(resource_type=resource.kind, resource_name=topic, configuration_keys=tuple(names))
    request = DescribeConfigsRequest(resources=(asked,))
    response: DescribeConfigsResponse
    if broker is None:
        response = await cluster.request_any(request, timeout_s=timeout_s)
    else:
        response = await cluster.request(broker, request, timeout_s=timeout_s)
    (result,) = response.results
    _check(resource, result.error_code, result.error_message)
    return {entry.name: entry.value or "" for entry in result.configs}


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    *,
    timeout_s: float,
    validate_only: bool = False,
) -> None:
    """Set settings of topics and brokers; None removes an override. Other settings stay.

    Raises KafkaError for the first that is refused. A request whose answer was lost may have been done, and is safe to
    repeat.
    """
    for resource, settings in changes.items():
        configs = tuple(
            AlterableConfig(
                name=name, config_operation=OperationType.DELETE if value is None else OperationType.SET, value=value
            )
            for name, value in settings.items()
        )
        asked = AlterConfigsResource(resource_type=resource.kind, resource_name=resource.name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=(asked,), validate_only=validate_only)
        response: IncrementalAlterConfigsResponse = await _ask(cluster, resource, request, timeout_s)
        (result,) = response.responses
        _check(resource, result.error_code, result.error_message)


async def _ask(cluster: Cluster, resource: ConfigResource, request: Message, timeout_s: float) -> Any:
    broker = resource.broker
    if broker is None:
        is_read = isinstance(request, DescribeConfigsRequest)
        return await cluster.request_any(request, timeout_s=timeout_s, is_answered_at_once=is_read)
    deadline = trio.current_time() + timeout_s
    failures = 0
    while True:
        left_s = deadline - trio.current_time()
        try:
            if failures or broker not in cluster.view.brokers:
                await cluster.refresh(timeout_s=left_s)
            return await cluster.request(broker, request, timeout_s=left_s)
        except UNREACHABLE:
            failures += 1
            if not await cluster.back_off(failures, deadline):
                raise


def _check(resource: ConfigResource, code: int, message: str | None) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(code, f"{resource}: {message or 'refused'}")


def _entry(told: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        value=told.value,
        source=_source(told.config_source),
        is_read_only=told.read_only,
        documentation=told.documentation or None,
    )


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN
