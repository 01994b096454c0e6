"""Our audited producer, and the counter of confluent-kafka's, against Apache Kafka 4, which knows no marks."""

from collections.abc import AsyncIterator
from random import SystemRandom

import pytest
import trio
from confluent_kafka import Producer

from pipeline.audit.confluent import count_deliveries
from pipeline.audit.counting.audit_topic import SETTINGS
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.client.admin.resource_configs import ConfigResource, alter_configs, describe_topic_settings_at
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.settings import parse_addresses
from tests.support.audit_reports import hours_of, last_signs, read_reports
from tests.support.brokers import clock

TIMEOUT_S = 60.0
HOUR = 1_700_002_800_000


@pytest.fixture
async def cluster(apache_kafka: str) -> AsyncIterator[Cluster]:
    async with open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as opened:
        yield opened


async def test_producers_are_counted_without_marks_and_the_audit_topic_is_set_right(
    cluster: Cluster, apache_kafka: str
) -> None:
    await create_topics(cluster, [NewTopic(name="audited", partitions=1, replication_factor=1)])
    await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=1, replication_factor=1)], exist_ok=True)
    topic = ConfigResource(ResourceType.TOPIC, AUDIT_TOPIC)
    wrong = {"cleanup.policy": "compact", "retention.bytes": "10000", "message.timestamp.type": "CreateTime"}
    await alter_configs(cluster, {topic: wrong}, timeout_s=TIMEOUT_S)

    def publish() -> None:
        with count_deliveries(apache_kafka, datacenter="east", topics=["audited"]) as counted:
            producer = Producer({"bootstrap.servers": apache_kafka, "on_delivery": counted.on_delivery})
            for _ in range(7):
                producer.produce("audited", b"x", timestamp=HOUR)
            assert producer.flush(TIMEOUT_S) == 0

    ahead_ms = 2 * 86_400_000  # Kafka refuses records that are more than an hour ahead, and reports are not refused
    async with open_audited_producer(
        cluster,
        ProducerConfig(),
        datacenter="east",
        host="h",
        clock=lambda: clock() + ahead_ms,
        rng=SystemRandom(),
    ) as producer:
        await producer.send_many("audited", [b"x"] * 5, timestamp_ms=HOUR)
    await trio.to_thread.run_sync(publish)
    found = await describe_topic_settings_at(cluster, None, AUDIT_TOPIC, tuple(SETTINGS), timeout_s=TIMEOUT_S)
    assert found == SETTINGS
    reports = [report for report in await read_reports(cluster) if any(name == "audited" for name, _ in report.topics)]
    rows = sorted(hours_of(reports).values())
    assert [(row.records, row.marked_records, row.by_record, row.last_offset) for row in rows] == [
        (5, 0, 0, 4),
        (7, 0, 1, 11),
    ]
    assert all(last.life is not None and last.life.is_ended for last in last_signs(reports).values())
