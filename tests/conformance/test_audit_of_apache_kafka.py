"""A reader counts an Apache Kafka that a mirror copies to our hub: its counts are those of the batches, end to end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from pipeline.audit.counting.mirror_counter import MirrorCounter
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.audit.counting.reader_service import ReaderService
from pipeline.audit.events.tiers import Tier
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS
from pipeline.settings import parse_addresses
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import connected_to, mirror_settings
from tests.support.reported_hours import hours_in, hours_of, read_headers, wait_for_reports

DEADLINE_S = 180
TOPIC = "audited-of-kafka"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(2)]
FIRST_HOUR_MS = clock() // HOUR_MS * HOUR_MS - 3 * HOUR_MS


async def publish_ours(source: Cluster) -> None:
    """Batches of our producer in some codecs."""
    for codec in (Codec.NONE, Codec.GZIP, Codec.ZSTD):
        async with open_producer(source, ProducerConfig(compression=codec), clock=clock, rng=Random(1)) as producer:
            for number in range(300):
                time_ms = FIRST_HOUR_MS + number % 3 * HOUR_MS
                await producer.send(TOPIC, b"value %d" % number, partition=number % 2, timestamp_ms=time_ms)


def publish_foreign(bootstrap: str) -> None:
    """Batches of confluent-kafka, and transactions of which one is aborted."""
    plain = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "log_level": 0})
    for number in range(300):
        plain.produce(TOPIC, b"foreign %d" % number, partition=number % 2, timestamp=FIRST_HOUR_MS)
    assert plain.flush(DEADLINE_S) == 0
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": "audited", "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(DEADLINE_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(20):
            producer.produce(TOPIC, b"transaction %d" % number, partition=number % 2)
        assert producer.flush(DEADLINE_S) == 0
        end(DEADLINE_S)


@asynccontextmanager
async def counted(source: Cluster, bootstrap: str, reports: Cluster) -> AsyncIterator[ReaderService]:
    config = ReaderConfig.from_settings(
        {
            "datacenter": "kafka",
            "bootstrap.servers": bootstrap,
            "topics": [TOPIC],
            "http.listen": "127.0.0.1:0",
            "audit.interval.ms": 100,
            "refresh.interval.ms": 100,
        }
    )
    service = ReaderService(config, source, reports, host="here", clock=clock, rng=Random())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        yield service
        nursery.cancel_scope.cancel()


async def hours_at(cluster: Cluster) -> set[Any]:
    return {hour for each in PARTITIONS for hour in hours_in(each, await read_headers(cluster, each))}


async def test_counts_of_apache_kafka_equal_those_of_its_copies(apache_kafka: str, tmp_path: Path) -> None:
    """By our producer, by confluent-kafka and in transactions; the audit topic is in Apache Kafka."""
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(apache_kafka))) as source,
        serving_cluster(tmp_path) as hub,
    ):
        await create_topics(source, [NewTopic(name=TOPIC, partitions=len(PARTITIONS), replication_factor=1)])
        await publish_ours(source)
        counter = MirrorCounter(instance="m", host="here", window_ms=HOUR_MS // 6, interval_ms=100, clock=clock)
        service = MirrorService(
            MirrorConfig.from_settings({**mirror_settings("kafka"), "topics": [TOPIC]}),
            connected_to({"kafka": source}),
            hub,
            clock=clock,
            rng=Random(1),
            metrics=MirrorMetrics(CollectorRegistry()),
            observer=counter,
        )
        async with counted(source, apache_kafka, source) as reader, trio.open_nursery() as nursery:
            await nursery.start(service.run)
            await trio.to_thread.run_sync(publish_foreign, apache_kafka)
            written = await hours_at(source)
            await wait_for_reports(source, lambda found: hours_of(found, Tier.BROKER) == written, DEADLINE_S)
            with trio.fail_after(DEADLINE_S):
                while reader.trouble() is not None or await hours_at(hub) != written:
                    await trio.sleep(0.1)
            assert {hour.sums[0] for hour in written} != {0}
            copied = await wait_until_counted(counter, written)
            nursery.cancel_scope.cancel()
        assert copied == written


async def wait_until_counted(counter: MirrorCounter, written: set[Any]) -> set[Any]:
    """What the mirror has counted, once that is all."""
    with trio.fail_after(DEADLINE_S):
        while True:
            counter.report_again()
            copied = hours_of(counter.take_reports(), Tier.MIRROR)
            if copied == written:
                return copied
            await trio.sleep(0.1)
