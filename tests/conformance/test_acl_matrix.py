"""Every api key, allowed and denied, asked of our broker and of Apache Kafka: equal error codes and operations.

Each user has other ACLs (`acl_users`), and sends the same requests to both (`acl_requests`).
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from pipeline.broker.requests.guards.table import NEEDS
from pipeline.processes import free_port
from pipeline.protocol.api import API, ApiKey
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.api_versions import ApiVersionsRequest
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest
from pipeline.protocol.messages.metadata import MetadataRequest
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from pipeline.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.integration.test_secured_listeners import running
from tests.support.acl_answers import told
from tests.support.acl_requests import BUILDERS, GROUPS, NEWEST_ALONE, TOPICS, Build, own_topic
from tests.support.acl_transactions import FIRST_VERSION, PASSED, TRANSACTIONAL_BUILDERS, by_rights_alone
from tests.support.acl_users import ADMIN, RULES, create_request, jaas_config
from tests.support.blocking_client import BlockingClient
from tests.support.clients import wait_until_true
from tests.support.kafka import running_kafka

LISTENER = "SASL_PLAINTEXT"
ANSWER_S = 20.0
UNAUTHENTICATED = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS})
"""Keys without rights: every connection of the matrix uses them."""

OLDEST = {ApiKey.PRODUCE: 3}
"""Older versions are announced for the sake of clients, and served by neither."""


def without_users(answer: dict[str, Any]) -> dict[str, Any]:
    """Apache Kafka leaves out the names of the users whose description it refuses."""
    results = [{**result, "user": ""} for result in answer.get("results", ())]
    return {**answer, "results": results}


def made_at_some_time(answer: dict[str, Any]) -> dict[str, Any]:
    """Our broker answers when a topic has been created by asking for it; Apache Kafka says that it is unknown first.

    Apache Kafka alone has a topic of transactions.
    """
    topics = [
        {"name": topic["name"], "operations": topic["topic_authorized_operations"]}
        if str(topic["name"]).startswith("made-")
        and topic["error_code"] in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else topic
        for topic in answer.get("topics", ())
        if topic["name"] != "__transaction_state"
    ]
    return {**answer, "topics": topics}


BETWEEN = {ApiKey.METADATA: {10}, ApiKey.OFFSET_FETCH: {7}}
"""Further versions: the last with operations on the cluster, and the last of a single group."""

Alike = Callable[[dict[str, Any]], dict[str, Any]]
DIFFERENCES: Mapping[ApiKey, Alike] = {
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: without_users,
    ApiKey.METADATA: made_at_some_time,
}
"""Where answers differ, what is left of them for the comparison; the function says why."""


def logged_in(bootstrap: str, user: str) -> BlockingClient:
    host, port = bootstrap.rsplit(":", 1)
    client = BlockingClient((host, int(port)))
    handshake: Any = client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert handshake.error_code == 0
    answer: Any = client.ask(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}".encode()), 2)
    assert answer.error_code == 0, answer
    return client


@dataclass
class Side:
    """One of the two clusters."""

    bootstrap: str
    versions: Mapping[int, tuple[int, int]]
    ids: dict[str, UUID]

    def answer_to(self, user: str, request: Any, version: int) -> Any:
        with logged_in(self.bootstrap, user) as client:
            client.send(request, version)
            client.connection.settimeout(ANSWER_S)
            try:
                answer = client.receive()
            except (AssertionError, OSError) as error:
                return f"no answer: {error}"
        return told(answer, {topic_id: name for name, topic_id in self.ids.items()})


def prepare(bootstrap: str) -> Side:
    """Topics, groups and ACLs, in force."""
    with logged_in(bootstrap, ADMIN) as admin:
        side = prepared_by(admin, bootstrap)
    with logged_in(bootstrap, list(RULES)[-1]) as last:

        def in_force() -> None:
            configs: Any = last.ask(BUILDERS[ApiKey.DESCRIBE_CONFIGS](4, "", {})[0], 4)
            assert configs.results[0].error_code == 0

        wait_until_true(in_force)
    return side


def prepared_by(admin: BlockingClient, bootstrap: str) -> Side:
    """As `prepare`, but the ACLs may not be in force yet."""
    versions: Any = admin.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    names = [*TOPICS, *map(own_topic, (*RULES, ADMIN))]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    created: Any = admin.ask(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 5)
    assert {topic.error_code for topic in created.topics} == {0}
    ids: dict[str, UUID] = {}

    def all_led() -> None:
        known: Any = admin.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
        ids.update({topic.name: topic.topic_id for topic in known.topics})
        assert set(names) <= set(ids)
        assert all(part.leader_id >= 0 and not part.error_code for each in known.topics for part in each.partitions)

    def committed() -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        for group in GROUPS:
            answer: Any = admin.ask(
                OffsetCommitRequest(
                    group_id=group,
                    topics=[OffsetCommitRequestTopic(name=name, partitions=[partition]) for name in TOPICS],
                ),
                8,
            )
            assert {part.error_code for each in answer.topics for part in each.partitions} == {0}

    wait_until_true(all_led)
    admin.ask(FindCoordinatorRequest(coordinator_keys=GROUPS), 4)
    wait_until_true(committed)
    wait_until_true(all_led)
    wait_until_true(partial(hands_out_ids, admin))
    wait_until_true(partial(looks_at_transactions, admin))
    acls: Any = admin.ask(create_request(), 3)
    assert {result.error_code for result in acls.results} == {0}
    ranges = {each.api_key: (each.min_version, each.max_version) for each in versions.api_keys}
    return Side(bootstrap, ranges, ids)


@contextmanager
def apache(directory: Path) -> Iterator[str]:
    """Apache Kafka with its own authorizer."""
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": jaas_config(),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
        "auto.create.topics.enable": "true",
        "offsets.topic.num.partitions": 2,
        "group.initial.rebalance.delay.ms": 0,
        "log.retention.ms": -1,  # records have fixed times of the past; it deletes old ones 30 s after its start
    }
    port = free_port()
    with running_kafka(directory, settings, listeners={LISTENER: port}):
        yield f"127.0.0.1:{port}"


def hands_out_ids(admin: BlockingClient) -> None:
    answer: Any = admin.ask(InitProducerIdRequest(), 1)
    assert answer.error_code == 0


def looks_at_transactions(admin: BlockingClient) -> None:
    """A coordinator of transactions is there, or none is needed."""
    for request in TRANSACTIONAL_BUILDERS[ApiKey.FIND_COORDINATOR](1, ADMIN, {}):
        admin.ask(request, 1)  # the first one makes Apache Kafka create the topic of its coordinators
    for request in TRANSACTIONAL_BUILDERS[ApiKey.INIT_PRODUCER_ID](1, ADMIN, {}):
        answer: Any = admin.ask(request, 1)
        assert answer.error_code in {ErrorCode.NONE, ErrorCode.INVALID_REQUEST}


Answers = dict[tuple[ApiKey, int], list[Any]]
Versions = Mapping[ApiKey, set[int]]


def answers_of(builders: Mapping[ApiKey, Build], side: Side, user: str, versions: Versions) -> Answers:
    """Answers to all requests, by api key and version."""
    found: Answers = {}
    for key, build in builders.items():
        for version in versions[key]:
            requests = build(version, user, side.ids)
            found[key, version] = [side.answer_to(user, request, version) for request in requests]
    return found


def versions_of(builders: Mapping[ApiKey, Build], oldest: Mapping[ApiKey, int], *sides: Side) -> Versions:
    """Oldest and newest version of each api key that all know."""
    found = {}
    for key in builders:
        ranges = [API[key].request.VERSIONS, *(side.versions[key] for side in sides)]
        low, high = max(each[0] for each in ranges), min(each[1] for each in ranges)
        low = max(low, oldest.get(key, 0))
        found[key] = {high} if key in NEWEST_ALONE else {low, high} | BETWEEN.get(key, set())
    return found


def differences(user: str, ours: Answers, theirs: Answers, alike: Mapping[ApiKey, Alike]) -> list[str]:
    """Answers that differ, each in a few lines."""
    found = []
    for (key, version), answers in ours.items():
        left = alike.get(key, dict)
        for answer, other in zip(answers, theirs[key, version], strict=True):
            if answer != other and (isinstance(other, str) or left(answer) != left(other)):
                found.append(f"{key.name} v{version} {user}:\n  ours   {answer}\n  theirs {other}")
    return found


def test_every_api_key_is_asked() -> None:
    assert set(BUILDERS) | UNAUTHENTICATED == set(NEEDS)


@asynccontextmanager
async def both_sides(directory: Path) -> AsyncIterator[tuple[Side, Side]]:
    """Our broker and Apache Kafka, with the same topics, groups and ACLs."""
    more = {
        "sasl_enabled_mechanisms": "PLAIN",
        "plain_sasl_jaas_config": jaas_config(),
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": f"User:{ADMIN};User:ANONYMOUS",
    }
    with apache(directory / "apache") as bootstrap:
        async with running(directory, **more) as addresses:
            ours = await trio.to_thread.run_sync(prepare, addresses[LISTENER])
            theirs = await trio.to_thread.run_sync(prepare, bootstrap)
            yield ours, theirs


@pytest.mark.long
async def test_rights_are_those_of_apache_kafka(tmp_path: Path) -> None:
    found: list[str] = []
    reached = dict.fromkeys(TRANSACTIONAL_BUILDERS, frozenset[bool]())
    async with both_sides(tmp_path) as sides:
        versions = versions_of(BUILDERS, OLDEST, *sides)
        of_transactions = versions_of(TRANSACTIONAL_BUILDERS, OLDEST | FIRST_VERSION, *sides)
        for user in (*RULES, ADMIN):
            for builders, asked, alike in (
                (BUILDERS, versions, DIFFERENCES),
                (TRANSACTIONAL_BUILDERS, of_transactions, dict.fromkeys(TRANSACTIONAL_BUILDERS, by_rights_alone)),
            ):
                ours, theirs = [
                    await trio.to_thread.run_sync(answers_of, builders, side, user, asked) for side in sides
                ]
                found += differences(user, ours, theirs, alike)
            for (key, _), answers in theirs.items():
                reached[key] |= {PASSED in repr(by_rights_alone(answer)) for answer in answers}
    assert found == [], "\n".join(found)
    assert set(reached.values()) == {frozenset({True, False})}, "each key must be allowed to some and denied to others"
