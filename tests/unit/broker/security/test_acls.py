"""ACLs of running brokers: changed by requests, in force on all brokers, and by what ZooKeeper holds."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio

from pipeline.broker.security import acl_watcher
from pipeline.coordination.acl_znodes import LITERAL_CHANGES, AclPattern, AclRule, encode_rules
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from pipeline.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from pipeline.protocol.messages.describe_acls import (
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    DescribeAclsRequest,
)
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.metadata import MetadataRequest
from tests.support.broker_in_process import Broker, Start, batch

ANONYMOUS = "User:ANONYMOUS"
WITH_ACLS = {"authorizer_class_name": "kafka.security.authorizer.AclAuthorizer"}
TOPIC, CLUSTER = AclResourceType.TOPIC, AclResourceType.CLUSTER


def creation(operation: AclOperation, name: str, kind: AclResourceType = TOPIC, **fields: Any) -> AclCreation:
    given = {"principal": ANONYMOUS, "host": "*", "permission_type": AclPermission.ALLOW, **fields}
    return AclCreation(resource_type=kind, resource_name=name, operation=operation, **given)


@asynccontextmanager
async def opened(start: Start, *, brokers: int = 1) -> AsyncIterator[list[Broker]]:
    """Brokers on which ANONYMOUS may at first change and create everything, since ZooKeeper says so."""
    async with AsyncExitStack() as stack:
        started = []
        for number in range(brokers):
            broker = await stack.enter_async_context(start(number + 1, **WITH_ACLS))
            if not number:
                await allow_all_of_cluster(broker)
            started.append(broker)
        for broker in started:
            await until_allowed(broker, AclOperation.ALTER)
        yield started


async def allow_all_of_cluster(broker: Broker) -> None:
    pattern = AclPattern(CLUSTER, AclPatternType.LITERAL, "kafka-cluster")
    rule = AclRule(ANONYMOUS, "*", AclOperation.ALL, AclPermission.ALLOW)
    await broker.zookeeper.create(pattern.path, encode_rules([rule]))
    await broker.zookeeper.create(pattern.change_path, pattern.encode_change(), sequential=True)


async def until_allowed(broker: Broker, operation: AclOperation) -> None:
    with trio.fail_after(60):
        while (
            await broker.ask(
                DescribeAclsRequest(
                    resource_type_filter=1,
                    pattern_type_filter=1,
                    operation=1,
                    permission_type=1,
                    resource_name_filter=None,
                    principal_filter=None,
                    host_filter=None,
                )
            )
        ).error_code:
            await trio.sleep(0.01)


async def add(broker: Broker, *creations: AclCreation) -> list[int]:
    answer = await broker.ask(CreateAclsRequest(creations=creations))
    return [result.error_code for result in answer.results]


async def remove_all(broker: Broker, name: str) -> Sequence[Any]:
    asked = DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter=name,
        pattern_type_filter=AclPatternType.LITERAL,
        principal_filter=None,
        host_filter=None,
        operation=AclOperation.ANY,
        permission_type=AclPermission.ANY,
    )
    answer = await broker.ask(DeleteAclsRequest(filters=(asked,)))
    matching: Sequence[Any] = answer.filter_results[0].matching_acls
    return matching


async def names_seen(broker: Broker) -> set[str]:
    answer = await broker.ask(MetadataRequest(topics=None))
    return {topic.name for topic in answer.topics}


async def test_without_an_authorizer_there_are_no_acls(start: Start) -> None:
    async with start() as broker:
        assert await add(broker, creation(AclOperation.READ, "t")) == [ErrorCode.SECURITY_DISABLED]
        answer = await broker.ask(DescribeAclsRequest())
        assert answer.error_code == ErrorCode.SECURITY_DISABLED


async def test_a_user_does_what_acls_allow_and_no_more(start: Start) -> None:
    async with opened(start) as (broker,):
        await broker.create("clicks")
        assert await names_seen(broker) == set()
        assert await add(broker, creation(AclOperation.WRITE, "clicks")) == [0]
        assert (await broker.produce("clicks", batch(b"a"))).error_code == 0
        assert (await broker.fetch("clicks", 0)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await add(broker, creation(AclOperation.READ, "cl", resource_pattern_type=4)) == [0]
        read = await broker.fetch("clicks", 0)
        assert (read.error_code, bool(read.records)) == (0, True)
        assert len(await remove_all(broker, "clicks")) == 1
        assert (await broker.produce("clicks", batch(b"b"))).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await broker.fetch("clicks", 0)).error_code == 0


async def test_a_fetch_session_ends_with_the_rule_that_allowed_it(start: Start) -> None:
    async with opened(start) as (broker,):
        await broker.create("clicks")
        rules = creation(AclOperation.READ, "clicks"), creation(AclOperation.WRITE, "clicks")
        assert await add(broker, *rules) == [0, 0]
        topics = [await broker.named(FetchTopic, "clicks", partitions=[FetchPartition(partition=0)])]
        first = await broker.ask(FetchRequest(topics=topics, session_epoch=0, max_wait_ms=0))
        assert first.session_id
        await broker.produce("clicks", batch(b"secret"))
        await remove_all(broker, "clicks")
        again = await broker.ask(FetchRequest(session_id=first.session_id, session_epoch=1, max_wait_ms=0))
        assert again.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert not again.responses


async def test_a_change_is_in_force_on_all_brokers_within_a_second(start: Start) -> None:
    async with opened(start, brokers=2) as (first, second):
        await first.create("clicks")
        for changes in range(3):
            begun = trio.current_time()
            assert await add(first, creation(AclOperation.DESCRIBE, "clicks")) == [0]
            while await names_seen(second) != {"clicks"}:
                await trio.sleep(0.01)
            await remove_all(first, "clicks")
            while await names_seen(second):
                await trio.sleep(0.01)
            assert trio.current_time() - begun < 2, changes


async def test_rules_that_nobody_understands_close_their_resource(start: Start) -> None:
    async with opened(start) as (broker,):
        await broker.create("clicks")
        await add(broker, creation(AclOperation.DESCRIBE, "clicks"))
        assert await names_seen(broker) == {"clicks"}
        pattern = AclPattern(TOPIC, AclPatternType.LITERAL, "clicks")
        await broker.zookeeper.set(pattern.path, b'{"version":2,"acls":[{"who":"knows"}]}')
        await broker.zookeeper.create(pattern.change_path, pattern.encode_change(), sequential=True)
        with trio.fail_after(60):
            while await names_seen(broker):
                await trio.sleep(0.01)


async def test_all_rules_are_read_again_where_changes_are_missing(start: Start) -> None:
    async with opened(start) as (broker,):
        await broker.create("clicks")
        pattern = AclPattern(TOPIC, AclPatternType.LITERAL, "clicks")
        rule = AclRule(ANONYMOUS, "*", AclOperation.DESCRIBE, AclPermission.ALLOW)
        await broker.zookeeper.create(pattern.path, encode_rules([rule]))
        other = AclPattern(TOPIC, AclPatternType.LITERAL, "other")
        lost = await broker.zookeeper.create(other.change_path, other.encode_change(), sequential=True)
        await broker.zookeeper.delete(lost)
        await broker.zookeeper.create(other.change_path, other.encode_change(), sequential=True)
        with trio.fail_after(60):
            while await names_seen(broker) != {"clicks"}:
                await trio.sleep(0.01)


async def test_old_changes_are_removed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_watcher, "KEPT_CHANGES", 3)
    async with opened(start) as (broker,):
        for number in range(6):
            assert await add(broker, creation(AclOperation.READ, f"topic-{number}")) == [0]
        with trio.fail_after(60):
            while len(await broker.zookeeper.children(LITERAL_CHANGES)) > 3:
                await trio.sleep(0.01)
        answer = await broker.ask(
            DescribeAclsRequest(
                resource_type_filter=TOPIC,
                resource_name_filter=None,
                pattern_type_filter=AclPatternType.ANY,
                principal_filter=ANONYMOUS,
                host_filter=None,
                operation=AclOperation.ANY,
                permission_type=AclPermission.ANY,
            )
        )
        assert {resource.resource_name for resource in answer.resources} == {f"topic-{n}" for n in range(6)}


@pytest.mark.parametrize(
    "asked",
    [
        creation(AclOperation.READ, ""),
        creation(AclOperation.READ, "a/b", AclResourceType.GROUP),
        creation(AclOperation.READ, ".."),
        creation(AclOperation.READ, "other-cluster", CLUSTER),
        creation(AclOperation.ANY, "t"),
        creation(AclOperation.UNKNOWN, "t"),
        creation(AclOperation.READ, "t", AclResourceType.ANY),
        creation(AclOperation.READ, "t", permission_type=AclPermission.ANY),
        creation(AclOperation.READ, "t", resource_pattern_type=AclPatternType.MATCH),
        creation(AclOperation.READ, "t", resource_pattern_type=99),
        creation(AclOperation.READ, "t", principal="alice"),
        creation(AclOperation.READ, "t", principal="User:"),
        creation(AclOperation.READ, "t", host=""),
        creation(AclOperation.READ, "t" * 2000),
    ],
    ids=str,
)
async def test_rules_that_make_no_sense_are_refused_and_others_of_the_request_are_not(
    start: Start, asked: AclCreation
) -> None:
    async with opened(start) as (broker,):
        codes = await add(broker, asked, creation(AclOperation.READ, "good"))
        assert codes == [ErrorCode.INVALID_REQUEST, 0]
