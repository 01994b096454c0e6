"""The audit log of the authorizer: what a request's decisions become."""

import logging
from typing import Any

import pytest
import structlog

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.requests.guards.gate import Gate
from pipeline.broker.requests.guards.table import NEEDS
from pipeline.broker.security.acl_table import AclTable, Actor
from pipeline.broker.security.decisions import AUTHORIZER_LOGGER, AclDecision, AuthorizerLog, AuthorizerLogLevel
from pipeline.coordination.acl_znodes import AclPattern, AclRule
from pipeline.protocol.api import ApiKey
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.describe_acls import AclOperation, AclPatternType, AclPermission, AclResourceType
from pipeline.protocol.messages.list_groups import ListGroupsRequest
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

ALICE = Actor("alice", "10.0.0.1")
READ, WRITE, TOPIC = AclOperation.READ, AclOperation.WRITE, AclResourceType.TOPIC


@pytest.fixture
def lines() -> Any:
    """Events that the process, configured as services are, would write."""
    written: list[dict[str, Any]] = []

    def keep(_logger: Any, method: str, event: Any) -> Any:
        written.append({"level": method, **event})
        raise structlog.DropEvent

    structlog.configure(processors=[keep], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield written
    structlog.reset_defaults()


def decided(log: AuthorizerLog, *decisions: AclDecision) -> None:
    log.write(ALICE, "CLIENT", "app", ApiKey.PRODUCE, decisions)


def test_a_line_says_who_did_what_to_what_from_where(lines: list[dict[str, Any]]) -> None:
    decided(AuthorizerLog(), *(AclDecision(WRITE, TOPIC, name, is_allowed=False) for name in ("a", "b")))
    assert lines == [
        {
            "level": "info",
            "event": "authorization_denied",
            "logger": AUTHORIZER_LOGGER,
            "principal": "User:alice",
            "host": "10.0.0.1",
            "listener": "CLIENT",
            "client_id": "app",
            "request": "Produce",
            "operation": "Write",
            "resource_type": "Topic",
            "resources": ["a", "b"],
            "resource_count": 2,
            "allowed": False,
        }
    ]


def test_what_is_allowed_is_written_at_debug_though_the_process_logs_from_info_on(lines: list[dict[str, Any]]) -> None:
    log = AuthorizerLog(AuthorizerLogLevel.DEBUG)
    assert log.takes_allowed and not AuthorizerLog().takes_allowed
    decided(log, AclDecision(WRITE, TOPIC, "a", is_allowed=True), AclDecision(READ, TOPIC, "b", is_allowed=False))
    assert [(line["level"], line["event"], line["resources"]) for line in lines] == [
        ("debug", "authorization_allowed", ["a"]),
        ("info", "authorization_denied", ["b"]),
    ]


def test_a_hostile_request_fills_no_log(lines: list[dict[str, Any]]) -> None:
    log = AuthorizerLog()
    decided(log, *(AclDecision(READ, TOPIC, f"{number:*>5000}", is_allowed=False) for number in range(5000)))
    (line,) = lines
    assert (len(line["resources"]), line["resource_count"]) == (1000, 5000)
    assert {len(name) for name in line["resources"]} == {250}
    assert log.denied == {(READ, TOPIC): 5000}


def test_off_counts_and_writes_nothing(lines: list[dict[str, Any]]) -> None:
    log = AuthorizerLog(AuthorizerLogLevel.OFF)
    decided(log, AclDecision(READ, TOPIC, "a", is_allowed=False))
    assert not lines
    assert log.denied == {(READ, TOPIC): 1}


def test_programs_that_configured_nothing_get_it_through_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, AUTHORIZER_LOGGER):
        decided(AuthorizerLog(), AclDecision(READ, TOPIC, "a", is_allowed=False))
    assert [record.name for record in caplog.records] == [AUTHORIZER_LOGGER]
    assert "principal='User:alice'" in caplog.text


def gate(table: AclTable, *, notes_allowed: bool = False) -> Gate:
    view = ClusterView("cluster")
    return Gate(actor=ALICE, table=table, view=view, creates_topics=True, notes_allowed=notes_allowed)


def guard(opened: Gate, body: Any, version: int) -> list[AclDecision]:
    check = NEEDS[ApiKey(body.API_KEY)].guard
    assert check is not None
    check(opened, body, version)
    return opened.decisions


def test_refusals_are_noted_and_not_what_another_right_may_replace() -> None:
    """A user who may create one topic asks in vain for the right on the cluster, and nothing is refused."""
    table = AclTable()
    rule = AclRule("User:alice", "*", AclOperation.CREATE, AclPermission.ALLOW)
    table.set(AclPattern(TOPIC, AclPatternType.LITERAL, "mine"), {rule})
    creation = CreateTopicsRequest(topics=[CreatableTopic(name="mine"), CreatableTopic(name="other")])
    assert guard(gate(table), creation, 7) == [AclDecision(AclOperation.CREATE, TOPIC, "other", is_allowed=False)]
    assert guard(gate(table), ListGroupsRequest(), 4) == []
    assert guard(gate(table), MetadataRequest(topics=None), 12) == []
    named = MetadataRequest(topics=[MetadataRequestTopic(name="other")])
    assert guard(gate(table), named, 12) == [AclDecision(AclOperation.DESCRIBE, TOPIC, "other", is_allowed=False)]


def test_allowed_decisions_are_noted_where_they_are_asked_for() -> None:
    table = AclTable({"User:alice"})
    named = MetadataRequest(topics=[MetadataRequestTopic(name="any")])
    assert guard(gate(table), named, 12) == []
    noted = guard(gate(table, notes_allowed=True), named, 12)
    assert AclDecision(AclOperation.DESCRIBE, TOPIC, "any", is_allowed=True) in noted
    assert all(decision.is_allowed for decision in noted)
