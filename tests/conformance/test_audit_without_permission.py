"""A reader of an Apache Kafka that lets it read, and not write reports."""

from pathlib import Path
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

from pipeline.audit.events.tiers import AUDIT_TOPIC, Tier
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from pipeline.settings import parse_addresses
from tests.support.brokers import clock
from tests.support.foreign_way import reading
from tests.support.kafka import running_kafka
from tests.support.reported_hours import hours_in, hours_of, read_headers, wait_for_reports

CLICKS = TopicPartition("clicks", 0)
DEADLINE_S = 180
ANYBODY = "User:ANONYMOUS"
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def forbid(bootstrap: str) -> None:
    """Forbid everybody to write, create or describe the audit topic, which nobody has made."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    pattern = (ResourceType.TOPIC, AUDIT_TOPIC, ResourcePatternType.LITERAL, ANYBODY, "*")
    bindings = [AclBinding(*pattern, AclOperation.ALL, AclPermissionType.DENY)]
    for future in admin.create_acls(bindings, request_timeout=60).values():
        future.result(60)


def allow(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    every = AclBindingFilter(
        ResourceType.TOPIC,
        AUDIT_TOPIC,
        ResourcePatternType.LITERAL,
        ANYBODY,
        "*",
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in admin.delete_acls([every], request_timeout=60).values():
        future.result(60)


@pytest.mark.long
async def test_a_reader_that_may_not_report_says_so_and_reports_all_later(tmp_path: Path) -> None:
    with running_kafka(tmp_path, AUTHORIZED) as kafka:
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(kafka.bootstrap))) as cluster:
            await create_topics(cluster, [NewTopic(name=CLICKS.topic, partitions=1, replication_factor=1)])
            await trio.to_thread.run_sync(forbid, kafka.bootstrap)
            async with reading(cluster, cluster) as reader:
                async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
                    for number in range(50):
                        await producer.send(CLICKS.topic, b"%d" % number, partition=0)
                with trio.fail_after(DEADLINE_S):
                    while reader.status()["partitions"] == 0 or reader.status()["lag_ms"] > 5_000:
                        await trio.sleep(0.05)
                    while "not reported" not in (reader.trouble() or ""):
                        await trio.sleep(0.05)
                assert reader.status()["lag_ms"] < 10_000
                await trio.to_thread.run_sync(allow, kafka.bootstrap)
                wanted = hours_in(CLICKS, await read_headers(cluster, CLICKS))
                await wait_for_reports(cluster, lambda found: hours_of(found, Tier.BROKER) == wanted, DEADLINE_S)
