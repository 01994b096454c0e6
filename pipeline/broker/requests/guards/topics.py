"""Guards of the requests that describe and change topics and settings."""

from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.broker.requests.guards.elements import element_guard
from pipeline.broker.requests.guards.gate import Gate, Passage, Refused
from pipeline.broker.security.acl_table import CLUSTER_NAME
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    describe_topic_partitions,
    incremental_alter_configs,
    metadata,
)
from pipeline.protocol.messages.describe_acls import AclOperation, AclResourceType
from pipeline.protocol.schema import ZERO_UUID, Message

REFUSED_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
REFUSED_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
FIRST_VERSION_OF_TOPIC_IDS = 6
"""Of DeleteTopics."""
FIRST_VERSION_OF_NO_NAME = metadata.FIRST_VERSION_OF_ASKING_BY_ID
TOPIC_SETTINGS = 2
"""Resource type of a topic's settings. All other settings are the cluster's."""


def guard_metadata(gate: Gate, body: metadata.MetadataRequest, version: int) -> Passage | Refused:
    """Ask for DESCRIBE on each topic, and for CREATE before one is created. Topics that were not named stay unseen.

    Brokers are shown to everybody.
    """
    if body.topics is None or (version == 0 and not body.topics):
        return Passage(body, lambda handled: _own_operations(gate, _seen_topics(gate, handled)))
    may_create = body.allow_auto_topic_creation
    refusals = {topic: _refuse_metadata(gate, topic, version, may_create=may_create) for topic in body.topics}
    refused = [refusal for refusal in refusals.values() if refusal is not None]
    passed = tuple(topic for topic in body.topics if refusals[topic] is None)
    if not refused:
        return Passage(body, partial(_own_operations, gate))
    if version == 0 and not passed:  # without topics it would ask for all
        passed = (metadata.MetadataRequestTopic(name=""),)
        is_shown = False
    else:
        is_shown = True

    def merge(handled: metadata.MetadataResponse) -> metadata.MetadataResponse:
        shown = handled.topics if is_shown else ()
        return _own_operations(gate, replace(handled, topics=(*shown, *refused)))

    return Passage(replace(body, topics=passed), merge)


def _seen_topics(gate: Gate, answer: metadata.MetadataResponse) -> metadata.MetadataResponse:
    shown = tuple(topic for topic in answer.topics if gate.sees_topic(topic.name or ""))
    return replace(answer, topics=shown)


def _own_operations(gate: Gate, answer: metadata.MetadataResponse) -> metadata.MetadataResponse:
    every = answer.cluster_authorized_operations
    return replace(
        answer,
        topics=tuple(_own_topic_operations(gate, topic) for topic in answer.topics),
        cluster_authorized_operations=every if every == metadata.NOT_ASKED_FOR else own_cluster_operations(gate, every),
    )


def _own_topic_operations(gate: Gate, topic: Any) -> Any:
    every = topic.topic_authorized_operations
    if every == metadata.NOT_ASKED_FOR:
        return topic
    return replace(topic, topic_authorized_operations=gate.operations(every, AclResourceType.TOPIC, topic.name or ""))


def own_cluster_operations(gate: Gate, every: int) -> int:
    """Return the operations on the cluster that the client may perform; none if it may not even describe it."""
    if not gate.may_with_cluster(AclOperation.DESCRIBE):
        return 0
    return gate.operations(every, AclResourceType.CLUSTER, CLUSTER_NAME)


def _refuse_metadata(gate: Gate, topic: metadata.MetadataRequestTopic, version: int, *, may_create: bool) -> Any:
    name = gate.topic_named(topic.name, topic.topic_id)
    if name is None:
        if version < FIRST_VERSION_OF_NO_NAME or gate.table.is_super_user(gate.actor):
            return None
        return metadata.MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic.topic_id)
    if gate.may_topic(AclOperation.DESCRIBE, name):
        is_missing = topic.topic_id == ZERO_UUID and gate.view.topic(name) is None
        if not (is_missing and may_create and gate.creates_topics) or _may_create(gate, name):
            return None
    nameless = None if version >= FIRST_VERSION_OF_NO_NAME else ""
    shown = topic.name if topic.name and topic.topic_id == ZERO_UUID else nameless  # an id does not tell the name
    return metadata.MetadataResponseTopic(error_code=REFUSED_TOPIC, name=shown, topic_id=topic.topic_id)


def _may_create(gate: Gate, name: str) -> bool:
    return gate.may_with_cluster(AclOperation.CREATE) or gate.may_topic(AclOperation.CREATE, name)


def guard_describe_topic_partitions(
    gate: Gate, body: describe_topic_partitions.DescribeTopicPartitionsRequest, version: int
) -> Passage | Refused:
    """Ask for DESCRIBE on each topic. Topics that were not named stay unseen."""
    outcome = _TOPIC_PARTITIONS(gate, body, version) if body.topics else Passage(body, partial(_seen_pages, gate))
    if isinstance(outcome, Refused):
        return outcome
    inner = outcome.merge

    def merge(handled: Any) -> Message:
        handled = handled if inner is None else inner(handled)
        shown: Message = replace(handled, topics=tuple(_own_topic_operations(gate, each) for each in handled.topics))
        return shown

    return Passage(outcome.body, merge)


def _seen_pages(
    gate: Gate, answer: describe_topic_partitions.DescribeTopicPartitionsResponse
) -> describe_topic_partitions.DescribeTopicPartitionsResponse:
    """Leave out unseen topics. The next page begins with a topic that the client sees, however many lie before it."""
    shown = tuple(topic for topic in answer.topics if gate.sees_topic(topic.name or ""))
    cursor = answer.next_cursor
    if cursor is not None and not gate.sees_topic(cursor.topic_name):
        seen = next(filter(gate.sees_topic, gate.view.names_behind(cursor.topic_name)), None)
        cursor = None if seen is None else replace(cursor, topic_name=seen, partition_index=0)
    return replace(answer, topics=shown, next_cursor=cursor)


def _refuse_partitions(gate: Gate, topic: describe_topic_partitions.TopicRequest, _version: int) -> Any:
    if gate.may_topic(AclOperation.DESCRIBE, topic.name):
        return None
    return describe_topic_partitions.DescribeTopicPartitionsResponseTopic(error_code=REFUSED_TOPIC, name=topic.name)


_TOPIC_PARTITIONS = element_guard(
    "topics", "topics", _refuse_partitions, describe_topic_partitions.DescribeTopicPartitionsResponse
)


def guard_create_topics(gate: Gate, body: create_topics.CreateTopicsRequest, version: int) -> Passage | Refused:
    """Ask for CREATE on the cluster or on each topic. Its settings are shown to who has DESCRIBE_CONFIGS on it."""
    outcome = Passage(body) if gate.may_with_cluster(AclOperation.CREATE) else _CREATE_TOPICS(gate, body, version)
    if isinstance(outcome, Refused):
        return outcome
    inner = outcome.merge

    def merge(handled: create_topics.CreateTopicsResponse) -> Message:
        hidden = replace(handled, topics=tuple(_without_settings(gate, topic) for topic in handled.topics))
        return hidden if inner is None else inner(hidden)

    return Passage(outcome.body, merge)


def _without_settings(gate: Gate, topic: create_topics.CreatableTopicResult) -> create_topics.CreatableTopicResult:
    if topic.error_code or gate.may_or_else(AclOperation.DESCRIBE_CONFIGS, AclResourceType.TOPIC, topic.name):
        return topic
    return replace(topic, topic_config_error_code=REFUSED_TOPIC, num_partitions=-1, replication_factor=-1, configs=None)


def _refuse_creation(gate: Gate, topic: create_topics.CreatableTopic, _version: int) -> Any:
    if gate.may_topic(AclOperation.CREATE, topic.name):
        return None
    return create_topics.CreatableTopicResult(
        name=topic.name, error_code=REFUSED_TOPIC, error_message=REFUSED_TOPIC.message
    )


_CREATE_TOPICS = element_guard("topics", "topics", _refuse_creation, create_topics.CreateTopicsResponse)


def guard_delete_topics(gate: Gate, body: delete_topics.DeleteTopicsRequest, version: int) -> Passage | Refused:
    """Ask for DELETE on the cluster or on each topic. Who names an id and lacks DESCRIBE does not learn the name."""
    if gate.may_cluster(AclOperation.DELETE):
        return Passage(body)
    return (_DELETE_STATES if version >= FIRST_VERSION_OF_TOPIC_IDS else _DELETE_NAMES)(gate, body, version)


def _refuse_topic_name(gate: Gate, name: str, _version: int) -> Any:
    if gate.may_topic(AclOperation.DELETE, name):
        return None
    # who may describe it learns that it is missing; the guard says so, as it may have been created since
    is_missing = gate.view.topic(name) is None and gate.sees_topic(name)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_missing else REFUSED_TOPIC
    return delete_topics.DeletableTopicResult(name=name, error_code=code, error_message=code.message)


def _refuse_topic_state(gate: Gate, topic: delete_topics.DeleteTopicState, version: int) -> Any:
    if topic.topic_id == ZERO_UUID:
        return _refuse_topic_name(gate, topic.name or "", version)
    name = gate.topic_named(topic.name, topic.topic_id)
    if name is None or gate.may_topic(AclOperation.DELETE, name):
        return None
    return delete_topics.DeletableTopicResult(
        name=name if gate.sees_topic(name) else None,
        topic_id=topic.topic_id,
        error_code=REFUSED_TOPIC,
        error_message=REFUSED_TOPIC.message,
    )


_DELETE_NAMES = element_guard("topic_names", "responses", _refuse_topic_name, delete_topics.DeleteTopicsResponse)
_DELETE_STATES = element_guard("topics", "responses", _refuse_topic_state, delete_topics.DeleteTopicsResponse)


def _refuse_growth(gate: Gate, topic: create_partitions.CreatePartitionsTopic, _version: int) -> Any:
    if gate.may_topic(AclOperation.ALTER, topic.name):
        return None
    return create_partitions.CreatePartitionsTopicResult(
        name=topic.name, error_code=REFUSED_TOPIC, error_message=REFUSED_TOPIC.message
    )


GUARD_CREATE_PARTITIONS = element_guard("topics", "results", _refuse_growth, create_partitions.CreatePartitionsResponse)


def _code_of_settings(gate: Gate, operation: AclOperation, resource: Any) -> ErrorCode | None:
    """Return the error code for settings that the client may not touch."""
    if resource.resource_type == TOPIC_SETTINGS:
        return None if gate.may(operation, AclResourceType.TOPIC, resource.resource_name) else REFUSED_TOPIC
    return None if gate.may_cluster(operation) else REFUSED_CLUSTER


def _refuse_settings(gate: Gate, resource: describe_configs.DescribeConfigsResource, _version: int) -> Any:
    code = _code_of_settings(gate, AclOperation.DESCRIBE_CONFIGS, resource)
    if code is None:
        return None
    return describe_configs.DescribeConfigsResult(
        error_code=code,
        error_message=code.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


GUARD_DESCRIBE_CONFIGS = element_guard(
    "resources", "results", _refuse_settings, describe_configs.DescribeConfigsResponse
)


def _refuse_changes(gate: Gate, resource: Any, _version: int) -> Any:
    code = _code_of_settings(gate, AclOperation.ALTER_CONFIGS, resource)
    if code is None:
        return None
    return alter_configs.AlterConfigsResourceResponse(
        error_code=code,
        error_message=code.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


GUARD_ALTER_CONFIGS = element_guard("resources", "responses", _refuse_changes, alter_configs.AlterConfigsResponse)
GUARD_INCREMENTAL_ALTER_CONFIGS = element_guard(
    "resources", "responses", _refuse_changes, incremental_alter_configs.IncrementalAlterConfigsResponse
)
