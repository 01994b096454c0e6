"""The audit of an Apache Kafka that a mirror copies to our hub, end to end: a reader counts it, the judge compares."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from confluent_kafka import Producer

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.events.tiers import Tier
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS
from pipeline.settings import parse_addresses
from tests.support.brokers import clock
from tests.support.foreign_way import INTERVAL_S, LIVE, ForeignWay, counted_mirror, counting_hub, reading
from tests.support.reported_hours import hours_in, hours_of, read_headers, wait_for_reports

DEADLINE_S = 180
FIRST_HOUR_MS = clock() // HOUR_MS * HOUR_MS - 3 * HOUR_MS


async def publish_ours(source: Cluster, topic: str) -> None:
    """Batches of our producer that counts, in some codecs."""
    for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD):
        async with open_audited_producer(
            source,
            ProducerConfig(compression=codec),
            datacenter=LIVE,
            host="web-1",
            clock=clock,
            rng=Random(),
            interval_s=INTERVAL_S,
        ) as producer:
            for number in range(300):
                time_ms = FIRST_HOUR_MS + number % 2 * HOUR_MS
                await producer.send(topic, b"value %d" % number, partition=number // 2 % 2, timestamp_ms=time_ms)


def publish_foreign(bootstrap: str, topic: str) -> None:
    """Batches of confluent-kafka, and transactions of which one is aborted."""
    plain = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "log_level": 0})
    for number in range(300):
        plain.produce(topic, b"foreign %d" % number, partition=number % 2, timestamp=FIRST_HOUR_MS)
    assert plain.flush(DEADLINE_S) == 0
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(DEADLINE_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(20):
            producer.produce(topic, b"transaction %d" % number, partition=number % 2, timestamp=FIRST_HOUR_MS)
        assert producer.flush(DEADLINE_S) == 0
        end(DEADLINE_S)


@pytest.mark.parametrize("is_foreign", [False, True])
async def test_a_topic_of_apache_kafka_is_exact_at_every_stage(
    apache_kafka: str, tmp_path: Path, *, is_foreign: bool
) -> None:
    """By our producer, which counts; and by confluent-kafka, which does not, with a transaction that is aborted."""
    topic = "audited-of-kafka-foreign" if is_foreign else "audited-of-kafka"
    partitions = [TopicPartition(topic, number) for number in range(2)]
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as source,
        counting_hub(tmp_path) as hub,
    ):
        await create_topics(source, [NewTopic(name=topic, partitions=len(partitions), replication_factor=1)])
        way = ForeignWay(source, hub, partitions)
        async with reading(source, source, [topic]) as reader, counted_mirror(source, hub, [topic]):
            if is_foreign:
                await trio.to_thread.run_sync(publish_foreign, apache_kafka, topic)
            else:
                await publish_ours(source, topic)
            stages = ("live", "mirrored", "replica")
            expected = [dict.fromkeys(stages, 340)] if is_foreign else [dict.fromkeys(("produced", *stages), 450)] * 2
            counts: list[dict[str, int]] = []
            with trio.move_on_after(DEADLINE_S):  # a part may be exact everywhere before the rest is published
                while counts != expected:
                    hours = await way.wait_for("exact", len(expected))
                    counts = [
                        {str(stage): each.records for stage, each in hour.stages.items()} for hour in hours.values()
                    ]
            assert counts == expected
            with trio.fail_after(DEADLINE_S):
                while reader.trouble() is not None:
                    await trio.sleep(0.05)
        written = {hour for each in partitions for hour in hours_in(each, await read_headers(source, each))}

        def is_all(found: Any) -> bool:
            return {hour for hour in hours_of(found, Tier.BROKER) if hour.partition in partitions} == written

        await wait_for_reports(source, is_all, DEADLINE_S)
