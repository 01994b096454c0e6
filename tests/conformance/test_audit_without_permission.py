"""The audit of an Apache Kafka whose ACLs refuse that `_audit` is read or written, until they allow it."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from random import Random

import pytest
import trio
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, Stage, Status
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.batches import DeliveryError
from pipeline.client.producer.producer import Producer
from pipeline.records.tally import HOUR_MS
from pipeline.settings import parse_addresses
from tests.support.brokers import clock
from tests.support.foreign_way import INTERVAL_S, LIVE, reading
from tests.support.kafka import running_kafka

DEADLINE_S = 180
HOUR = clock() // HOUR_MS * HOUR_MS - 3 * HOUR_MS
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
ANONYMOUS = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of an Apache Kafka with an authorizer."""
    with running_kafka(tmp_path_factory.mktemp("guarded"), AUTHORIZER) as kafka:
        yield kafka.bootstrap


def rule(operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, AUDIT_TOPIC, ResourcePatternType.LITERAL, ANONYMOUS, "*", operation, permission
    )


@contextmanager
def refused(bootstrap: str, operation: AclOperation) -> Iterator[None]:
    """Refuse one operation on the audit topic, and allow all others, until the block ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    rules = [rule(operation, AclPermissionType.DENY), rule(AclOperation.ALL, AclPermissionType.ALLOW)]
    for future in admin.create_acls(rules, request_timeout=DEADLINE_S).values():
        future.result(DEADLINE_S)
    try:
        yield
    finally:
        every = AclBindingFilter(
            ResourceType.TOPIC, AUDIT_TOPIC, ResourcePatternType.LITERAL, ANONYMOUS, "*", AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        for future in admin.delete_acls([every], request_timeout=DEADLINE_S).values():
            future.result(DEADLINE_S)


@asynccontextmanager
async def counting_producer(cluster: Cluster) -> AsyncIterator[Producer]:
    async with open_audited_producer(
        cluster, ProducerConfig(), datacenter=LIVE, host="web-1", clock=clock, rng=Random(), interval_s=INTERVAL_S
    ) as producer:
        yield producer


async def send(producer: Producer, topic: str, records: int, hour_ms: int) -> None:
    for number in range(records):
        await producer.send(topic, b"%d" % number, partition=0, timestamp_ms=hour_ms)
    await producer.flush()


@asynccontextmanager
async def collecting(cluster: Cluster) -> AsyncIterator[EventCollector]:
    collector = EventCollector({LIVE: cluster}, retry_backoff_s=0.5, clock=clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collector.run)
        yield collector
        nursery.cancel_scope.cancel()


async def judged(collector: EventCollector, topic: str, *, later_ms: int = 0) -> dict[int, AuditedHour]:
    """The verdict on each hour of a topic. `later_ms`: at a later time, if nothing more came until then."""
    async with collector.turn:
        expected = Expectations(
            live_clusters=[LIVE],
            replica_cluster=None,
            partitions={(LIVE, topic): 1},
            described=frozenset([LIVE]),
            read_to_ms={name: read_ms + later_ms for name, read_ms in collector.read_to_ms.items()},
            losses=collector.losses,
        )
        judgement = Judge(collector.ledger, grace_ms=0, pending_max_ms=HOUR_MS).judge(expected, clock() + later_ms)
        return {hour.hour_ms: hour for hour in judgement.hours(topic)}


async def until(condition: Callable[[], object], told: Callable[[], object]) -> None:
    try:
        with trio.fail_after(DEADLINE_S):
            while not condition():
                await trio.sleep(0.02)
    except trio.TooSlowError:
        raise AssertionError(told()) from None


async def until_counted(collector: EventCollector, topic: str, expected: Mapping[int, tuple[str, int]]) -> None:
    """Wait until these hours of a topic, and no others, have these statuses and records at the broker."""
    live = Stage(tier="live")
    hours: dict[int, AuditedHour] = {}
    found: dict[int, tuple[str, int]] = {}
    with trio.move_on_after(DEADLINE_S):
        while found != expected:
            await trio.sleep(0.02)
            hours = await judged(collector, topic)
            found = {at: (str(one.status), one.stages[live].records) for at, one in hours.items() if live in one.stages}
    assert found == expected, (hours, collector.states)


@asynccontextmanager
async def topic_of(bootstrap: str, topic: str) -> AsyncIterator[Cluster]:
    config = ClientConfig(bootstrap=parse_addresses(bootstrap), retry_backoff_ms=20, retry_backoff_max_ms=200)
    async with open_cluster(config) as cluster:
        await create_topics(cluster, [NewTopic(name=topic, partitions=1, replication_factor=1)])
        yield cluster


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.DESCRIBE])
async def test_an_audit_that_may_not_read_knows_nothing_later_and_goes_on_once_it_may(
    guarded: str, operation: AclOperation
) -> None:
    topic = f"guarded-{operation.name}".lower()
    async with (
        topic_of(guarded, topic) as cluster,
        reading(cluster, cluster, [topic]),
        counting_producer(cluster) as producer,
        collecting(cluster) as collector,
    ):
        await send(producer, topic, 10, HOUR)
        await until_counted(collector, topic, {HOUR: ("exact", 10)})
        state = collector.states[LIVE]
        with refused(guarded, operation):
            await until(lambda: "AUTHORIZATION" in (state.error or ""), lambda: state)
            read_to_ms = state.read_to_ms
            await send(producer, topic, 7, HOUR + HOUR_MS)
            async with collecting(cluster) as fresh:
                mine = fresh.states[LIVE]
                await until(lambda: "AUTHORIZATION" in (mine.error or ""), lambda: mine)
                assert mine.read_to_ms is None and mine.problem is not None
                assert not any(hour.status is Status.EXACT for hour in (await judged(fresh, topic)).values())
            assert state.read_to_ms == read_to_ms
            assert state.problem is not None  # so no report is exact
            assert {at: one.status for at, one in (await judged(collector, topic)).items()} == {HOUR: Status.EXACT}
        await until_counted(collector, topic, {HOUR: ("exact", 10), HOUR + HOUR_MS: ("exact", 7)})
        await until(lambda: state.problem is None, lambda: state)
        assert collector.losses == []


async def test_hours_of_counters_that_may_not_report_are_unknown_until_they_may(guarded: str) -> None:
    topic = "guarded-write"
    now_ms = clock() // HOUR_MS * HOUR_MS
    async with (
        topic_of(guarded, topic) as cluster,
        reading(cluster, cluster, [topic]),
        counting_producer(cluster) as producer,
        collecting(cluster) as collector,
    ):
        await send(producer, topic, 10, HOUR)
        await send(producer, topic, 5, clock())
        await until_counted(collector, topic, {HOUR: ("exact", 10), now_ms: ("pending", 5)})
        with refused(guarded, AclOperation.WRITE):
            with pytest.raises(DeliveryError, match="TOPIC_AUTHORIZATION_FAILED"):
                async with counting_producer(cluster):
                    pass
            await send(producer, topic, 7, clock())
            hour = (await judged(collector, topic, later_ms=2 * HOUR_MS))[now_ms]
            assert hour.status is Status.UNKNOWN
            names = " ".join(witness.name for witness in hour.missing_witnesses)
            assert f"the broker of {LIVE} that leads {topic}-0" in names
            assert "producer" in names
            assert collector.states[LIVE].problem is None
        await until_counted(collector, topic, {HOUR: ("exact", 10), now_ms: ("pending", 12)})
