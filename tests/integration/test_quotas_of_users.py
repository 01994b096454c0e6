"""Quotas of users that have logged in: all eight levels, and one user's quota is not another's."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.server import BrokerHandle
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.terminal.connect import wall_clock
from pipeline.client.admin.client_quotas import (
    DEFAULT_NAME,
    ClientQuotaEntity,
    alter_client_quotas,
    describe_client_quotas,
)
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.producer import open_producer
from pipeline.model import HostPort, TopicPartition
from pipeline.net.security.client_security import ClientSecurity
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.serving_broker import serving_broker

LEVELS = (
    ClientQuotaEntity(user="alice", client_id="app"),
    ClientQuotaEntity(user="alice", client_id=DEFAULT_NAME),
    ClientQuotaEntity(user="alice"),
    ClientQuotaEntity(user=DEFAULT_NAME, client_id="app"),
    ClientQuotaEntity(user=DEFAULT_NAME, client_id=DEFAULT_NAME),
    ClientQuotaEntity(user=DEFAULT_NAME),
    ClientQuotaEntity(client_id="app"),
    ClientQuotaEntity(client_id=DEFAULT_NAME),
)
"""Quotas that may hold for the client `app` of alice, the most specific first (Kafka 0.10 design, 4.9)."""
TIGHT, WIDE = 30_000.0, 1e9
LEAST_S = 0.1
"""More than a debt takes that a wide quota has left of a tight one."""
RECORD = random.Random(1).randbytes(100_000)
JAAS = 'x required username="admin" password="a" user_admin="a" user_alice="b" user_bob="c";'
PASSWORDS = {"admin": "a", "alice": "b", "bob": "c"}


@dataclass(frozen=True, slots=True)
class Site:
    """A broker with users, and its metrics."""

    address: HostPort
    metrics: CollectorRegistry
    handle: BrokerHandle

    @asynccontextmanager
    async def client(self, user: str, client_id: str = "app") -> AsyncIterator[Cluster]:
        """Open the cluster as a user."""
        security = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }
        config = ClientConfig(
            bootstrap=(self.address,), client_id=client_id, security=ClientSecurity.from_settings(security)
        )
        async with open_cluster(config) as cluster:
            yield cluster

    async def set_quotas(self, kind: str, quotas: Mapping[ClientQuotaEntity, float | None]) -> None:
        """Set quotas, and wait until the broker has them."""
        async with self.client("admin", "admin") as admin:
            changes = {entity: {kind: value} for entity, value in quotas.items()}
            await alter_client_quotas(admin, changes, timeout_s=60)
            wanted = {entity: value for entity, value in quotas.items() if value is not None}
            removed = quotas.keys() - wanted.keys()
            with trio.fail_after(60):
                while True:
                    found = await describe_client_quotas(admin, timeout_s=60)
                    present = {entity: values[kind] for entity, values in found.items() if kind in values}
                    if wanted.items() <= present.items() and not removed & present.keys():
                        return
                    await trio.sleep(0.01)

    def throttled(self, kind: str) -> dict[tuple[str, str], float]:
        """Seconds for which clients were throttled, by user and client id."""
        name = f"kafka_server_{kind}_throttle_time_seconds_total"
        return {
            (sample.labels["user"], sample.labels["client_id"]): sample.value
            for family in self.metrics.collect()
            for sample in family.samples
            if sample.name == name and sample.value
        }

    async def produce(self, user: str, client_id: str = "app") -> bool:
        """Publish a record; True if the client is throttled for it."""
        before = sum(self.throttled("produce").values())
        with trio.fail_after(60):
            async with (
                self.client(user, client_id) as cluster,
                open_producer(cluster, ProducerConfig(), clock=wall_clock, rng=random.Random(1)) as producer,
            ):
                delivery = await producer.send("clicks", RECORD)
                await delivery.wait()
                return sum(self.throttled("produce").values()) > before + LEAST_S


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    config = BrokerConfig.from_settings(
        {
            "broker.id": 1,
            "log.dirs": str(tmp_path / "logs"),
            "zookeeper.connect": "memory:0",
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": JAAS,
            "quota.window.num": 2,
        }
    )
    metrics = CollectorRegistry()
    async with MemoryZooKeeper().open() as zookeeper, serving_broker(config, zookeeper, metrics) as handle:
        opened = Site(handle.address, metrics, handle)
        async with opened.client("admin") as admin:
            await create_topics(admin, [NewTopic(name="clicks", partitions=1, replication_factor=1)])
        yield opened


async def test_each_of_the_eight_levels_counts_before_those_below(site: Site) -> None:
    kind = "producer_byte_rate"
    for number, level in enumerate(LEVELS):
        below = LEVELS[number + 1 :]
        await site.set_quotas(kind, {level: TIGHT, **dict.fromkeys(below, WIDE)})
        assert await site.produce("alice"), f"the quota of {level} holds"
        await site.set_quotas(kind, {level: WIDE, **dict.fromkeys(below, TIGHT)})
        assert not await site.produce("alice"), f"the quota of {level} counts, and none below"
        await site.set_quotas(kind, {level: None})


async def test_a_quota_of_a_user_is_not_that_of_another(site: Site) -> None:
    """A login decides whose quota counts; no client id changes it."""
    await site.set_quotas("producer_byte_rate", {ClientQuotaEntity(user="alice"): TIGHT})
    assert not await site.produce("bob")
    assert await site.produce("alice", "one")
    assert await site.produce("alice", "two"), "both share the quota of the user"
    assert site.throttled("produce").keys() == {("alice", "")}


async def test_each_user_has_the_default_for_itself(site: Site) -> None:
    await site.set_quotas("producer_byte_rate", {ClientQuotaEntity(user=DEFAULT_NAME): TIGHT})
    assert await site.produce("alice")
    assert await site.produce("bob")
    assert site.throttled("produce").keys() == {("alice", ""), ("bob", "")}


async def test_fetches_of_a_user_wait_for_their_turn(site: Site) -> None:
    assert not await site.produce("alice")
    await site.set_quotas("consumer_byte_rate", {ClientQuotaEntity(user="bob", client_id="app"): TIGHT})
    with trio.fail_after(60):
        for user in ("alice", "bob"):
            for _ in range(2):
                async with site.client(user) as cluster, open_consumer(cluster, ConsumerConfig()) as consumer:
                    consumer.assign({TopicPartition("clicks", 0): 0})
                    async for record in consumer.records():
                        assert record.value == RECORD
                        break
    assert site.throttled("fetch").keys() == {("bob", "app")}
