"""Services of secured clusters, as processes, with no more rights than their users have: nothing is refused to them."""

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.counting.load_rows import CommittedCounts, load_report
from pipeline.audit.counting.publisher import publish_reports
from pipeline.audit.events.tiers import Tier
from pipeline.cli.child_services import ServiceUnit
from pipeline.cli.foreground import read_json
from pipeline.cli.secured.local_security import LocalSecurity
from pipeline.cli.terminal.client_config import read_client_config
from pipeline.cli.terminal.connect import randomness, wall_clock
from pipeline.client.admin.groups import CommittedOffset, commit_offsets
from pipeline.client.admin.topics import NewTopic, create_topics, list_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig, ProducerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.producer.producer import open_producer
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.hadoop.load.many import plan_loads
from pipeline.model import TopicPartition
from pipeline.processes import free_port
from pipeline.settings import parse_addresses
from tests.support.secured_path import BrokersHere

RECORDS = 20
DEADLINE_S = 60
SCHEMA = '{"type": "record", "name": "Visit", "fields": [{"name": "page", "type": "string"}]}'


class Site:
    """Two clusters in this process, east and hub, with one authority and the same users."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.directory = directory
        self.security = LocalSecurity(directory / "security")
        self.security.prepare(["east", "hub"], randomness())
        self.ports = {name: free_port() for name in ("east", "hub")}
        self.clusters = {name: BrokersHere(directory / name, nursery) for name in self.ports}

    async def start(self) -> None:
        """Start the brokers, with the users in ZooKeeper before."""
        for name, brokers in self.clusters.items():
            async with brokers.zookeeper.open() as zookeeper:
                await self.security.seed(zookeeper, randomness())
            settings = {"offsets.topic.replication.factor": 1, "auto.create.topics.enable": False}
            await brokers.start(1, {**settings, **self.security.broker_settings(name, self.ports[name])})

    def contact(self, name: str, user: str) -> dict[str, Any]:
        """Return the settings of a service that comes as a user."""
        return {"bootstrap.servers": f"127.0.0.1:{self.ports[name]}", **self.security.client_settings(user)}

    def opened(self, name: str, user: str) -> Any:
        """Open a cluster as a user."""
        protection = read_client_config(self.security.client_file(user))
        return open_cluster(
            ClientConfig(bootstrap=parse_addresses(f"127.0.0.1:{self.ports[name]}"), security=protection)
        )

    def unit(self, noun: str, settings: dict[str, Any]) -> ServiceUnit:
        """Return a service that is not running yet."""
        return ServiceUnit(noun, noun, self.directory / noun, settings)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with trio.open_nursery() as nursery:
        made = Site(tmp_path, nursery)
        await made.start()
        yield made
        nursery.cancel_scope.cancel()


async def publish(cluster: Cluster, topic: str) -> None:
    async with open_producer(cluster, ProducerConfig(), clock=wall_clock, rng=randomness()) as producer:
        for number in range(RECORDS):
            await producer.send(topic, b"%d" % number)


async def test_mirror_audit_and_registry_do_with_the_rights_of_their_users(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    live = [{"name": "east", **site.contact("east", "mirror")}]
    destination = {f"destination.{key}": value for key, value in site.contact("hub", "mirror").items()}
    mirror = site.unit("mirror", {**destination, "topics": ["clicks"], "groups": ["readers"], "sources": live,
                                  "refresh.interval.ms": 200, "retry.backoff.ms": 100})  # fmt: skip
    audit = site.unit("audit", {"live": [{"name": "east", **site.contact("east", "audit")}],
                                "replica": [{"name": "hub", **site.contact("hub", "audit")}]})  # fmt: skip
    registry = site.unit("registry", {**site.contact("hub", "registry"), "kafkastore.topic.replication.factor": 1})
    async with site.opened("east", "app") as east, site.opened("hub", "admin") as hub:
        await create_topics(east, [NewTopic(name="clicks", partitions=2)])
        await publish(east, "clicks")
        await commit_offsets(east, "readers", {TopicPartition("clicks", 0): CommittedOffset(offset=1)}, timeout_s=60)
        units = (mirror, audit, registry)
        try:
            async with trio.open_nursery() as starting:
                for unit in units:
                    starting.start_soon(unit.start)
            await wait_until_copied(mirror)
            await trio.to_thread.run_sync(register, registry, site.directory / "visit.avsc")
            statuses = await trio.to_thread.run_sync(read_json, f"{audit.url}/v1/status")
            topics = await list_topics(hub)
        finally:
            for unit in units:
                await unit.stop()
    assert {"clicks", "_schemas", "_mirror_partitions"} <= topics.keys()
    assert statuses
    refused = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    assert refused == []


async def wait_until_copied(mirror: ServiceUnit) -> None:
    with trio.fail_after(DEADLINE_S):
        while True:
            status = await trio.to_thread.run_sync(read_json, f"{mirror.url}/v1/status")
            partitions = [partition for source in status["sources"] for partition in source["partitions"]]
            if sum(partition["position"] or 0 for partition in partitions) == RECORDS:
                return
            await trio.sleep(0.1)


def register(registry: ServiceUnit, schema: Path) -> None:
    schema.write_text(SCHEMA)
    command = [sys.executable, "-m", "pipeline", "schema", "register", "clicks-value", str(schema), "--registry"]
    done = subprocess.run([*command, registry.url, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["id"] == 1


async def test_producers_are_audited_and_loads_plan_read_and_report_with_the_rights_of_their_users(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """All that a load asks of brokers, without Spark: what to read, the records, and its report to the audit."""
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    async with site.opened("hub", "broker") as broker:
        await publish_reports(broker, [], clock=wall_clock, rng=randomness())  # brokers create the topic _audit
    async with (
        site.opened("hub", "app") as app,
        open_audited_producer(
            app, ProducerConfig(), datacenter="hub", host="frontend", clock=wall_clock, rng=randomness()
        ) as producer,
    ):
        await create_topics(app, [NewTopic(name="clicks", partitions=2)])
        for number in range(RECORDS):
            await producer.send("clicks", b"%d" % number)
    settings = {**site.contact("hub", "load"), "topic": "clicks", "root": f"file://{site.directory}/lake",
                "value.format": "binary"}  # fmt: skip
    config = LoadsConfig.from_settings(settings, {})
    planned = await trio.to_thread.run_sync(partial(plan_loads, config, clock=wall_clock))
    assert [(plan.error, plan.lag) for plan in planned] == [(None, RECORDS)]
    async with site.opened("hub", "load") as load:
        report = load_report(
            CommittedCounts(counts={}, changed=(), offsets={}),
            tier=Tier.LOAD,
            datacenter="hub",
            root="file:///lake",
            topic="clicks",
            window_ms=60_000,
            now_ms=wall_clock(),
        )
        await publish_reports(load, [report], clock=wall_clock, rng=randomness())
        async with open_consumer(load, ConsumerConfig()) as consumer:
            consumer.assign({TopicPartition("clicks", number): 0 for number in (0, 1)})
            read = 0
            with trio.fail_after(DEADLINE_S):
                async for _ in consumer.records():
                    read += 1
                    if read == RECORDS:
                        break
    refused = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    assert refused == []
