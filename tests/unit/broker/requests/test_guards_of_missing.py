"""What who may do only some of it learns of topics and groups that are missing: as Apache Kafka 4.1.1 tells it.

`tests/conformance/test_acl_matrix.py` compares all of it with Apache Kafka itself.
"""

import uuid
from typing import Any

import pytest

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.requests.guards.gate import Gate, Passage, Refused
from pipeline.broker.requests.guards.table import NEEDS
from pipeline.broker.security.acl_table import AclTable, Actor
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.protocol.api import ApiKey
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from pipeline.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic

CLUSTER = AclResourceType.CLUSTER, "kafka-cluster"
TOPICS = AclResourceType.TOPIC, "*"
GROUPS = AclResourceType.GROUP, "*"
Right = tuple[tuple[AclResourceType, str], AclOperation]


def pass_gate(body: Any, version: int, *rights: Right) -> Passage | Refused:
    """Ask the guard of a request for a user with these rights; there are no topics, and the broker creates some."""
    table = AclTable()
    for (kind, name), operation in rights:
        pattern = AclPattern(kind, AclPatternType.LITERAL, name)
        rule = AclRule("User:alice", "*", operation, AclPermission.ALLOW)
        table.set(pattern, [*table.rules(pattern), rule])
    gate = Gate(
        actor=Actor("alice", "10.0.0.1"),
        table=table,
        view=ClusterView("cluster"),
        creates_topics=True,
    )
    guard = NEEDS[ApiKey(body.API_KEY)].guard
    assert guard is not None
    return guard(gate, body, version)


@pytest.mark.parametrize(
    ("right", "code"),
    [
        ((TOPICS, AclOperation.DESCRIBE), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((TOPICS, AclOperation.READ), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((TOPICS, AclOperation.CREATE), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ((CLUSTER, AclOperation.ALTER), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_who_may_describe_a_topic_learns_that_it_is_missing_when_deleting_it(right: Right, code: ErrorCode) -> None:
    for body, version in (
        (DeleteTopicsRequest(topic_names=["missing"]), 1),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name="missing")]), 6),
    ):
        outcome = pass_gate(body, version, right)
        assert isinstance(outcome, Refused), "it may be created before the handler looks"
        answer: Any = outcome.answer
        assert [(topic.name, topic.error_code) for topic in answer.responses] == [("missing", code)]


@pytest.mark.parametrize("operation", [AclOperation.DELETE, AclOperation.ALL])
def test_who_may_delete_on_the_cluster_deletes_any_topic(operation: AclOperation) -> None:
    body = DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), DeleteTopicState(topic_id=uuid.UUID(int=7))])
    assert pass_gate(body, 6, (CLUSTER, operation)) == Passage(body)


def test_only_a_request_that_may_create_a_topic_needs_the_right_to() -> None:
    named = [MetadataRequestTopic(name="missing")]
    reader = (TOPICS, AclOperation.READ)
    asking = MetadataRequest(topics=named, allow_auto_topic_creation=False)
    outcome = pass_gate(asking, 12, reader)
    assert isinstance(outcome, Passage)
    assert outcome.body == asking
    creating = pass_gate(MetadataRequest(topics=named, allow_auto_topic_creation=True), 12, reader)
    assert isinstance(creating, Passage)
    assert creating.body == MetadataRequest(topics=(), allow_auto_topic_creation=True)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND])
def test_what_is_wrong_with_a_group_comes_before_refused_topics(code: ErrorCode) -> None:
    topic = OffsetDeleteRequestTopic(name="clicks", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    outcome = pass_gate(OffsetDeleteRequest(group_id="g", topics=[topic]), 0, (GROUPS, AclOperation.DELETE))
    assert isinstance(outcome, Passage)
    assert outcome.body == OffsetDeleteRequest(group_id="g", topics=())
    assert outcome.merge is not None
    answer: Any = outcome.merge(OffsetDeleteResponse(error_code=code))
    refused = [part.error_code for each in answer.topics for part in each.partitions]
    assert (answer.error_code, refused) == (code, [] if code else [ErrorCode.TOPIC_AUTHORIZATION_FAILED])


@pytest.mark.parametrize(("version", "topics"), [(1, 1), (2, 0), (7, 0)])
def test_a_refused_group_bears_the_error_itself_as_soon_as_it_can(version: int, topics: int) -> None:
    asked = [OffsetFetchRequestTopic(name="clicks", partition_indexes=[0])]
    outcome = pass_gate(OffsetFetchRequest(group_id="g", topics=asked), version)
    assert isinstance(outcome, Refused)
    answer: Any = outcome.answer
    assert (answer.error_code, len(answer.topics)) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, topics)
