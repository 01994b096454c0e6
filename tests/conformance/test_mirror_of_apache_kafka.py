"""A mirror whose source is Apache Kafka: the hub holds the same batches at the same offsets, and groups go on there."""

import uuid
from pathlib import Path
from random import Random

import pytest
import trio
from confluent_kafka import Consumer
from prometheus_client import CollectorRegistry

from pipeline.client.admin.groups import CommittedOffset, commit_offsets
from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses
from tests.support.brokers import clock, serving_cluster
from tests.support.clients import wait_for
from tests.support.copies import read_logs
from tests.support.mirrors import connected_to, mirroring_of, settings_of, until

DEADLINE_S = 180
PARTITIONS = [TopicPartition("mirrored", number) for number in range(2)]


async def publish(source: Cluster, codec: Codec) -> None:
    async with open_producer(source, ProducerConfig(compression=codec), clock=clock, rng=Random(1)) as producer:
        for number in range(500):
            await producer.send("mirrored", b"value %d" % number, key=b"%d" % number)


async def test_a_mirror_copies_batches_of_apache_kafka(apache_kafka: str, tmp_path: Path) -> None:
    settings = {
        "destination.bootstrap.servers": "given:1",
        "sources": [{"name": "kafka", "bootstrap.servers": apache_kafka}],
        "topics": ["mirrored"],
        "http.listen": "127.0.0.1:0",
        "refresh.interval.ms": 100,
    }
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as source,
        serving_cluster(tmp_path) as hub,
    ):
        await create_topics(source, [NewTopic(name="mirrored", partitions=len(PARTITIONS), replication_factor=1)])
        for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD):
            await publish(source, codec)
            metrics = MirrorMetrics(CollectorRegistry())
            config = MirrorConfig.from_settings(settings)
            service = MirrorService(
                config, connected_to({"kafka": source}), hub, clock=clock, rng=Random(1), metrics=metrics
            )
            written = await read_logs(source, PARTITIONS)
            async with trio.open_nursery() as nursery:
                await nursery.start(service.run)
                with trio.fail_after(DEADLINE_S):
                    while sum(line["lag"] == 0 for line in service.status()["sources"][0]["partitions"]) < 2:
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            assert await read_logs(hub, PARTITIONS) == written


async def test_a_replica_follows_the_settings_of_a_topic_of_apache_kafka(apache_kafka: str, tmp_path: Path) -> None:
    own = {"cleanup.policy": "compact", "retention.ms": "-1", "preallocate": "true"}
    topic = ConfigResource(ResourceType.TOPIC, "configured")
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as source,
        serving_cluster(tmp_path) as hub,
    ):
        await create_topics(source, [NewTopic(name=topic.name, partitions=1, replication_factor=1, configs=own)])
        settings = {"topics": [topic.name], "topic.settings": list(own)}
        async with mirroring_of(hub, None, settings, kafka=source) as service:
            await until(lambda: any("preallocate=true" in each["problems"][0] for each in service.status()["topics"]))
            found = await settings_of(hub, topic.name)
            assert (found["cleanup.policy"], found["retention.ms"]) == ("compact", "-1")
            await alter_configs(source, {topic: {"cleanup.policy": None, "retention.ms": "5000"}}, timeout_s=DEADLINE_S)
            with trio.fail_after(DEADLINE_S):
                while "cleanup.policy" in (found := await settings_of(hub, topic.name)):
                    await trio.sleep(0.05)
            assert found["retention.ms"] == "5000"


def read_as_member(bootstrap: str, group: str, count: int, protocol: str = "classic") -> list[bytes | None]:
    """Read so many records of `moved` as a member of the group, and leave after the commit."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["moved"])
    values: list[bytes | None] = []

    def poll() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(message.value())
            if len(values) == count:
                consumer.commit(message=message, asynchronous=False)
        return len(values) >= count

    wait_for("records", poll)
    consumer.close()
    return values


async def test_groups_of_apache_kafka_go_on_at_the_hub(apache_kafka: str, tmp_path: Path) -> None:
    """A group of the classic protocol, and a group of the consumer protocol (KIP-848)."""
    values = [b"%d" % number for number in range(30)]
    settings = {
        "destination.bootstrap.servers": "given:1",
        "sources": [{"name": "kafka", "bootstrap.servers": apache_kafka}],
        "topics": ["moved"],
        "http.listen": "127.0.0.1:0",
        "refresh.interval.ms": 100,
        "group.offsets.enabled": True,
        "group.offsets.interval.ms": 100,
        "groups": ["moving-.*"],
    }
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as source,
        serving_cluster(tmp_path) as hub,
    ):
        await create_topics(source, [NewTopic(name="moved", partitions=1, replication_factor=1)])
        async with open_producer(source, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            for value in values:
                await producer.send("moved", value)
        groups = {f"moving-{protocol}": protocol for protocol in ("classic", "consumer")}
        first = {
            group: await trio.to_thread.run_sync(read_as_member, apache_kafka, group, 12, protocol)
            for group, protocol in groups.items()
        }
        config = MirrorConfig.from_settings(settings)
        metrics = MirrorMetrics(CollectorRegistry())
        service = MirrorService(
            config, connected_to({"kafka": source}), hub, clock=clock, rng=Random(1), metrics=metrics
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            with trio.fail_after(DEADLINE_S):
                while service.status()["sources"][0]["groups"]["copied"] < len(groups):
                    await trio.sleep(0.05)
            nursery.cancel_scope.cancel()
        bootstrap = ",".join(str(broker.address) for broker in hub.view.brokers.values())
        for group in groups:
            rest = await trio.to_thread.run_sync(read_as_member, bootstrap, group, len(values) - 12)
            assert [*first[group], *rest] == values


@pytest.mark.parametrize("server", ["our_broker", "apache_kafka"])
async def test_a_coordinator_refuses_offsets_of_a_group_that_has_members(
    server: str, request: pytest.FixtureRequest
) -> None:
    bootstrap = request.getfixturevalue(server)
    topic = f"joined-{uuid.uuid4().hex}"
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster:
        await create_topics(cluster, [NewTopic(name=topic, partitions=1, replication_factor=1)])
        offsets = {TopicPartition(topic, 0): CommittedOffset(offset=0)}
        await commit_offsets(cluster, topic, offsets)
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0})
        try:
            consumer.subscribe([topic])
            with trio.fail_after(DEADLINE_S):
                while not consumer.assignment():
                    await trio.to_thread.run_sync(consumer.poll, 0.1)
            with pytest.raises(KafkaError) as caught:
                await commit_offsets(cluster, topic, offsets)
            assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
        finally:
            await trio.to_thread.run_sync(consumer.close)
        await commit_offsets(cluster, topic, offsets)
