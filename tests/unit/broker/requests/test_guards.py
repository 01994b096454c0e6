"""Guards of all api keys: nothing passes a closed gate unseen, everything passes an open one unchanged."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.requests.guards.gate import Gate, Passage, Refused, answered_with
from pipeline.broker.requests.guards.table import NEEDS
from pipeline.broker.security.acl_table import AclTable, Actor
from pipeline.errors import ProtocolError
from pipeline.net.answers import LargeAnswer, PendingAnswer, Throttled
from pipeline.net.owed import Owed
from pipeline.protocol.api import ApiKey
from pipeline.protocol.codec import encode
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pipeline.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from pipeline.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from pipeline.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from pipeline.protocol.messages.describe_groups import DescribeGroupsResponse
from pipeline.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from pipeline.protocol.messages.produce import ProduceRequest
from pipeline.protocol.schema import Message
from tests.support.protocol_messages import messages_of

ROOT = Path(__file__).parents[4]
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
GUARDED = [
    pytest.param(key, version, marks=() if version in (key.min_version, key.max_version) else pytest.mark.long)
    for key in ApiKey
    for version in range(key.min_version, key.max_version + 1)
    if NEEDS[key].guard is not None
]
bounded = settings(max_examples=5, suppress_health_check=list(HealthCheck))


def gate(table: AclTable) -> Gate:
    return Gate(
        actor=Actor("alice", "10.0.0.1"),
        table=table,
        view=ClusterView("cluster"),
        creates_topics=True,
    )


def test_every_api_key_has_a_need() -> None:
    assert NEEDS.keys() == set(ApiKey)


@pytest.mark.parametrize(("key", "version"), GUARDED, ids=str)
def test_a_closed_gate_lets_nothing_pass_that_names_a_resource(key: ApiKey, version: int) -> None:
    guard = NEEDS[key].guard
    assert guard is not None

    @bounded
    @given(messages_of(key.request, version, own_fields=False))
    def check(body: Any) -> None:
        try:
            outcome = guard(gate(AclTable()), body, version)
        except ProtocolError:
            assert isinstance(body, ProduceRequest) and body.acks == 0
            return
        if isinstance(outcome, Refused):
            answer = outcome.answer
        else:
            assert names(outcome.body) == set()
            answer = key.response() if outcome.merge is None else outcome.merge(key.response())
        assert isinstance(answer, key.response)
        assert encode(answer, version)
        if names(body) or elements(body):
            assert REFUSALS & set(error_codes(answer)) or not in_answers(key, version)

    check()


def elements(body: Any) -> int:
    """Return how many elements a request has that each get an error, and no name of a topic or group."""
    return sum(
        len(getattr(body, field, ())) for field in ("creations", "filters", "entries", "deletions", "upsertions")
    )


def names(body: Any) -> set[str]:
    """Return the names of the topics and groups of a request."""
    found = set()
    for field in ("topics", "topic_data", "topic_names", "groups", "groups_names", "coordinator_keys", "resources"):
        for element in getattr(body, field, None) or ():
            if isinstance(element, str):
                found.add(element)
            elif getattr(element, "topic_id", uuid.UUID(int=0)).int == 0:
                found |= {str(value) for name in ("name", "topic") if (value := getattr(element, name, None))}
    return found


def in_answers(key: ApiKey, version: int) -> bool:
    """True if the answer has error codes in this version; DescribeLogDirs has one since version 3."""
    return (key, version) not in {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}


def error_codes(value: Any) -> Iterator[int]:
    """Yield all error codes of an answer, and a refusal for an element without parts, which needs none."""
    for name in getattr(value, "__dataclass_fields__", ()):
        field = getattr(value, name)
        if name == "error_code":
            yield field
        elif isinstance(field, tuple) and field:
            for element in field:
                yield from error_codes(element)
        elif field == () and name in {"partitions", "partition_responses", "partition_result"}:
            yield ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_each_element_of_a_refused_request_gets_an_error() -> None:
    """Clients look there, and not beside: an empty list looks like success."""
    rule, topic = AclCreation(), "clicks"
    asked: list[Any] = [
        CreateAclsRequest(creations=[rule, rule]),
        DeleteAclsRequest(filters=[DeleteAclsFilter(), DeleteAclsFilter()]),
        AlterClientQuotasRequest(entries=[EntryData(), EntryData()]),
        AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name="a"), ScramCredentialDeletion(name="b")]
        ),
        ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=topic, partitions=[0, 1])]),
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[ReassignablePartition(), ReassignablePartition()])]
        ),
    ]
    for body in asked:
        guard = NEEDS[ApiKey(body.API_KEY)].guard
        assert guard is not None
        outcome = guard(gate(AclTable()), body, body.VERSIONS[1])
        assert isinstance(outcome, Refused)
        codes = list(error_codes(outcome.answer))
        assert codes.count(ErrorCode.CLUSTER_AUTHORIZATION_FAILED) >= 2, body
        assert set(codes) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


@pytest.mark.parametrize(("key", "version"), GUARDED, ids=str)
def test_an_open_gate_lets_everything_pass_unchanged(key: ApiKey, version: int) -> None:
    guard = NEEDS[key].guard
    assert guard is not None

    @bounded
    @given(messages_of(key.request, version, own_fields=False), messages_of(key.response, version, own_fields=False))
    def check(body: Any, answer: Any) -> None:
        outcome = guard(gate(AclTable(["User:alice"])), body, version)
        assert isinstance(outcome, Passage)
        assert outcome.body == body
        assert outcome.merge is None or outcome.merge(answer) == answer

    check()


async def test_every_kind_of_outcome_is_merged() -> None:
    answer, other = DescribeGroupsResponse(), DescribeGroupsResponse(throttle_time_ms=1)

    def merge(handled: Message) -> Message:
        assert handled is answer
        return other

    async def build() -> Message:
        return answer

    async def later() -> Message:
        return answer

    assert answered_with(answer, merge) is other
    assert answered_with(None, merge) is None
    assert answered_with(Throttled(answer, 1.0), merge) == Throttled(other, 1.0)
    assert answered_with(LargeAnswer(answer, 7), merge) == LargeAnswer(other, 7)
    pending = answered_with(PendingAnswer(build, 5), merge)
    assert isinstance(pending, PendingAnswer)
    assert await pending.build() is other
    assert await answered_with(later(), merge) is other  # type: ignore[misc]
    owed = answered_with(Owed((), 0.0, lambda: answer), merge)
    assert isinstance(owed, Owed)
    assert await owed is other


def test_the_page_says_what_each_request_needs() -> None:
    rows = re.findall(r"^\| (\w+) \| (.+) \|$", (ROOT / "docs" / "security.md").read_text(), re.MULTILINE)
    needs = {key.name.title().replace("_", ""): need.text for key, need in NEEDS.items()}
    assert dict(rows).items() >= needs.items()
