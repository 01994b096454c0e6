"""A mirror whose source is Apache Kafka: the hub holds the same batches at the same offsets."""

from pathlib import Path
from random import Random

import trio
from prometheus_client import CollectorRegistry

from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses
from tests.support.brokers import clock, serving_cluster
from tests.support.copies import read_logs

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
            service = MirrorService(config, {"kafka": source}, hub, clock=clock, rng=Random(1), metrics=metrics)
            written = await read_logs(source, PARTITIONS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(service.run)
                with trio.fail_after(DEADLINE_S):
                    while sum(line["lag"] == 0 for line in service.status()["sources"][0]["partitions"]) < 2:
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            assert await read_logs(hub, PARTITIONS) == written
