"""Every method of `Admin` on our broker and on Apache Kafka: the same results and the same refusals."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from random import Random
from typing import Any
from uuid import uuid4

import pytest
import trio
from confluent_kafka import Consumer
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.client import (
    ALL_RECORDS,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Admin,
    ClientConfig,
    ClientQuotaEntity,
    CommittedOffset,
    ConfigResource,
    ElectionType,
    ErrorCode,
    KafkaError,
    NewTopic,
    ProducerConfig,
    ResourceType,
    TopicPartition,
    TopicsRefusedError,
    open_cluster,
    open_producer,
    parse_addresses,
)
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import BrokerId
from tests.support.clients import wait_for

DEADLINE_S = 180
FIRST_MS = 1_700_000_000_000
ONE = BrokerId(1)


@pytest.fixture(scope="module", params=["our_broker", "apache_kafka"])
def server(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


@asynccontextmanager
async def administrator(server: str) -> AsyncIterator[tuple[Cluster, Admin]]:
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(server))) as cluster:
        yield cluster, Admin(cluster, timeout_s=DEADLINE_S)


def fresh(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


async def refusal(call: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await call
    return refused.value.code


async def until(read: Callable[[], Awaitable[bool]]) -> None:
    """Brokers of both kinds learn of some changes a moment later."""
    with trio.fail_after(DEADLINE_S):
        while not await read():
            await trio.sleep(0.05)


async def test_topics(server: str) -> None:
    one, two, three = fresh("one"), fresh("two"), fresh("three")
    async with administrator(server) as (_, admin):
        await admin.create_topics([NewTopic(name=one, partitions=2, configs={"retention.ms": "1000"})])
        again = [NewTopic(name=name, partitions=1) for name in (one, two)]
        with pytest.raises(TopicsRefusedError, match=f"{one}.*done: {two}") as partly:
            await admin.create_topics(again)
        assert partly.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert (list(partly.value.refused), partly.value.done) == ([one], [two])
        await admin.create_topics(again, exist_ok=True)
        assert await refusal(admin.create_topics([NewTopic(name="a b")])) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await refusal(admin.create_topics([NewTopic(name="ü" * 249)])) is ErrorCode.INVALID_TOPIC_EXCEPTION
        too_many = NewTopic(name=three, partitions=1, replication_factor=3)
        assert await refusal(admin.create_topics([too_many])) is ErrorCode.INVALID_REPLICATION_FACTOR
        wrong = NewTopic(name=three, partitions=1, configs={"no.such.setting": "1"})
        assert await refusal(admin.create_topics([wrong])) is ErrorCode.INVALID_CONFIG

        described = await admin.describe_topics([one, two])
        assert [sorted(topic.partitions) for topic in described.values()] == [[0, 1], [0]]
        assert described[one].partitions[1].leader == ONE
        assert {one, two} <= (await admin.list_topics()).keys()
        assert await refusal(admin.describe_topics([three])) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        await admin.create_partitions({one: 4})
        assert len((await admin.describe_topics([one]))[one].led_partitions) == 4
        for count in (4, 3):
            assert await refusal(admin.create_partitions({one: count})) is ErrorCode.INVALID_PARTITIONS
        with pytest.raises(TopicsRefusedError, match=f"{three}.*done: {two}"):
            await admin.create_partitions({two: 2, three: 2})

        with pytest.raises(TopicsRefusedError, match=f"{three}.*done: {one}") as partly:
            await admin.delete_topics([three, one])
        assert partly.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await admin.delete_topics([two, two, three], missing_ok=True)

        async def are_gone() -> bool:
            return not {one, two} & (await admin.list_topics()).keys()

        await until(are_gone)


async def test_records_and_offsets(server: str) -> None:
    first = TopicPartition(fresh("records"), 0)
    async with administrator(server) as (cluster, admin):
        await admin.create_topics([NewTopic(name=first.topic, partitions=1, configs={"retention.ms": "-1"})])
        assert (await admin.list_offsets({first: MAX_TIMESTAMP}))[first].offset == -1
        async with open_producer(
            cluster, ProducerConfig(), clock=lambda: time.time_ns() // 1_000_000, rng=Random(1)
        ) as producer:
            for number in (0, 1, 2, 5, 4):
                await producer.send(first.topic, b"value", timestamp_ms=FIRST_MS + number * 1000)
            await producer.flush()

        async def at(position: int) -> tuple[int, int]:
            found = (await admin.list_offsets({first: position}))[first]
            return found.offset, found.timestamp_ms

        assert await at(EARLIEST) == (0, -1)
        assert await at(LATEST) == (5, -1)
        assert await at(MAX_TIMESTAMP) == (3, FIRST_MS + 5000)
        assert await at(FIRST_MS + 1001) == (2, FIRST_MS + 2000)
        assert await at(FIRST_MS + 5001) == (-1, -1)
        assert await admin.delete_records({first: 2}) == {first: 2}
        assert await admin.delete_records({first: 1}) == {first: 2}
        assert await refusal(admin.delete_records({first: 6})) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await admin.delete_records({first: ALL_RECORDS}) == {first: 5}
        assert await at(EARLIEST) == (5, -1)


async def test_settings(server: str) -> None:
    topic = ConfigResource(ResourceType.TOPIC, fresh("settings"))
    broker, default = ConfigResource(ResourceType.BROKER, "1"), ConfigResource(ResourceType.BROKER, "")
    async with administrator(server) as (_, admin):
        await admin.create_topics([NewTopic(name=topic.name, partitions=1)])

        async def shows(resource: ConfigResource, name: str, value: str | None, source: str | None = None) -> None:
            async def read() -> bool:
                entry = (await admin.describe_configs([resource]))[resource].get(name)
                told = None if entry is None else entry.value
                return told == value and source in {None, entry and entry.source.name}

            await until(read)

        await admin.incremental_alter_configs({topic: {"retention.ms": "86400000", "segment.bytes": "2000000"}})
        await shows(topic, "retention.ms", "86400000", "TOPIC")
        await admin.incremental_alter_configs({topic: {"retention.ms": None}})
        await shows(topic, "retention.ms", "604800000", "DEFAULT")
        await shows(topic, "segment.bytes", "2000000", "TOPIC")
        for setting in ({"no.such.setting": "1"}, {"retention.ms": "soon"}):
            assert await refusal(admin.incremental_alter_configs({topic: setting})) is ErrorCode.INVALID_CONFIG
        missing = ConfigResource(ResourceType.TOPIC, "missing")
        assert await refusal(admin.describe_configs([missing])) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        changed = admin.incremental_alter_configs({missing: {"retention.ms": "1"}})
        assert await refusal(changed) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        await admin.incremental_alter_configs({default: {"message.max.bytes": "1500000"}})
        await shows(broker, "message.max.bytes", "1500000")
        await admin.incremental_alter_configs({broker: {"message.max.bytes": "2500000"}})
        await shows(broker, "message.max.bytes", "2500000")
        await shows(topic, "max.message.bytes", "2500000")
        await admin.incremental_alter_configs({each: {"message.max.bytes": None} for each in (broker, default)})
        await shows(default, "message.max.bytes", None)
        assert await refusal(admin.incremental_alter_configs({broker: {"broker.id": "3"}})) is ErrorCode.INVALID_REQUEST
        for name in ("one", "-1", "٣"):
            odd = ConfigResource(ResourceType.BROKER, name)
            assert await refusal(admin.describe_configs([odd])) is ErrorCode.INVALID_REQUEST


async def test_groups_without_members(server: str) -> None:
    group, unknown = fresh("group ü"), fresh("unknown")
    first, second = TopicPartition(fresh("read"), 0), TopicPartition(fresh("read"), 0)
    async with administrator(server) as (_, admin):
        await admin.create_topics([NewTopic(name=each.topic, partitions=1) for each in (first, second)])
        wanted = {first: CommittedOffset(offset=7, metadata="note"), second: CommittedOffset(offset=0)}
        await admin.alter_consumer_group_offsets(group, wanted)
        read = await admin.list_consumer_group_offsets(group)
        assert {each: (found.offset, found.metadata) for each, found in read.items()} == {
            first: (7, "note"), second: (0, ""),
        }  # fmt: skip
        (listed,) = [each for each in await admin.list_consumer_groups() if each.id == group]
        described = await admin.describe_consumer_group(group)
        assert (listed.state, described.state, described.members) == ("Empty", "Empty", ())
        assert listed.coordinator == described.coordinator == ONE

        missing = {TopicPartition("missing", 0): CommittedOffset(offset=1), first: CommittedOffset(offset=9)}
        code = await refusal(admin.alter_consumer_group_offsets(group, missing))
        assert code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await admin.list_consumer_group_offsets(group))[first].offset == 7

        await admin.delete_consumer_group_offsets(group, [first, TopicPartition(second.topic, 0)])
        assert await admin.list_consumer_group_offsets(group) == {}
        for call in (admin.describe_consumer_group, admin.delete_consumer_group):
            assert await refusal(call(unknown)) is ErrorCode.GROUP_ID_NOT_FOUND
        assert await refusal(admin.delete_consumer_group_offsets(unknown, [first])) is ErrorCode.GROUP_ID_NOT_FOUND
        assert await admin.list_consumer_group_offsets(unknown) == {}
        await admin.alter_consumer_group_offsets(group, wanted)
        await admin.delete_consumer_group(group)
        assert group not in {each.id for each in await admin.list_consumer_groups()}
        assert await admin.list_consumer_group_offsets(group) == {}


async def test_a_group_with_members(server: str) -> None:
    group, first = fresh("members"), TopicPartition(fresh("read"), 0)
    settings = {"bootstrap.servers": server, "group.id": group, "client.id": "reader", "session.timeout.ms": 45_000}
    async with administrator(server) as (_, admin):
        await admin.create_topics([NewTopic(name=first.topic, partitions=1)])
        await admin.alter_consumer_group_offsets(group, {first: CommittedOffset(offset=0)})
        with closing(Consumer(settings)) as consumer:
            consumer.subscribe([first.topic])
            await trio.to_thread.run_sync(
                wait_for, "the assignment", lambda: consumer.poll(0.1) is None and bool(consumer.assignment())
            )
            described = await admin.describe_consumer_group(group)
            assert (described.state, described.protocol_type) == ("Stable", "consumer")
            (member,) = described.members
            assert member.client_id == "reader"
            set_offset = admin.alter_consumer_group_offsets(group, {first: CommittedOffset(offset=1)})
            assert await refusal(set_offset) is ErrorCode.UNKNOWN_MEMBER_ID
            assert await refusal(admin.delete_consumer_group(group)) is ErrorCode.NON_EMPTY_GROUP
            deletion = admin.delete_consumer_group_offsets(group, [first])
            assert await refusal(deletion) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        await admin.delete_consumer_group_offsets(group, [first])
        await admin.delete_consumer_group(group)


async def test_quotas(server: str) -> None:
    user, app = fresh("user ü"), fresh("app")
    entities = [
        ClientQuotaEntity(user=user),
        ClientQuotaEntity(client_id=app),
        ClientQuotaEntity(user=user, client_id=app),
        ClientQuotaEntity(user="<default>", client_id=app),
        ClientQuotaEntity(user=user, client_id="<default>"),
    ]
    async with administrator(server) as (_, admin):

        async def shows(entity: ClientQuotaEntity, quotas: dict[str, float] | None) -> None:
            async def read() -> bool:
                return (await admin.describe_client_quotas()).get(entity) == quotas

            await until(read)

        await admin.alter_client_quotas(
            {entity: {"producer_byte_rate": 1e6 + number} for number, entity in enumerate(entities)}
        )
        for number, entity in enumerate(entities):
            await shows(entity, {"producer_byte_rate": 1e6 + number})
        await admin.alter_client_quotas({entities[0]: {"consumer_byte_rate": 5.0, "producer_byte_rate": None}})
        await shows(entities[0], {"consumer_byte_rate": 5.0})
        await admin.alter_client_quotas(
            {entity: {"consumer_byte_rate": None, "producer_byte_rate": None} for entity in entities}
        )
        for entity in entities:
            await shows(entity, None)
        wrong: list[tuple[ClientQuotaEntity, dict[str, float | None]]] = [
            (entities[0], {"nonsense": 1.0}),
            (entities[0], {"producer_byte_rate": -1.0}),
            (entities[0], {"producer_byte_rate": float("nan")}),
            (ClientQuotaEntity(), {"producer_byte_rate": 1.0}),
            (ClientQuotaEntity(user=""), {"producer_byte_rate": 1.0}),
        ]
        for entity, quotas in wrong:
            assert await refusal(admin.alter_client_quotas({entity: quotas})) is ErrorCode.INVALID_REQUEST


async def test_reassignments_and_elections(server: str) -> None:
    first = TopicPartition(fresh("moved"), 0)
    missing = TopicPartition(fresh("missing"), 0)
    async with administrator(server) as (_, admin):
        await admin.create_topics([NewTopic(name=first.topic, partitions=1)])
        assert await admin.alter_partition_reassignments({first: [ONE]}) == {}
        refused = await admin.alter_partition_reassignments({first: [BrokerId(77)], missing: [ONE]})
        assert {each: error.code for each, error in refused.items()} == {
            first: ErrorCode.INVALID_REPLICA_ASSIGNMENT, missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }  # fmt: skip
        refused = await admin.alter_partition_reassignments({first: None})
        assert refused[first].code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert await admin.list_partition_reassignments() == {}
        assert await admin.list_partition_reassignments([first, missing]) == {}
        for kind in ElectionType:
            elected = await admin.elect_leaders(kind, [first, missing])
            assert {each: error and error.code for each, error in elected.items()} == {
                first: ErrorCode.ELECTION_NOT_NEEDED, missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }  # fmt: skip
        assert await admin.elect_leaders(ElectionType.PREFERRED) == {}


async def test_a_group_of_the_newer_protocol_is_not_called_missing(apache_kafka: str) -> None:
    """Its coordinator answers GROUP_ID_NOT_FOUND to a request for groups of the protocol before (KIP-848)."""
    group, first = fresh("newer"), TopicPartition(fresh("read"), 0)
    settings = {"bootstrap.servers": apache_kafka, "group.id": group, "group.protocol": "consumer"}
    async with administrator(apache_kafka) as (_, admin):
        await admin.create_topics([NewTopic(name=first.topic, partitions=1)])
        with closing(Consumer(settings)) as consumer:
            consumer.subscribe([first.topic])
            await trio.to_thread.run_sync(
                wait_for, "the assignment", lambda: consumer.poll(0.1) is None and bool(consumer.assignment())
            )
            with pytest.raises(KafkaError, match="is not a classic group") as refused:
                await admin.describe_consumer_group(group)
            assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
            described = await trio.to_thread.run_sync(
                CliRunner().invoke, app, ["group", "describe", group, "-b", apache_kafka]
            )
        assert described.exit_code == 1
        assert "has the protocol of KIP-848" in described.stderr
