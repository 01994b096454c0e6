"""The audit of batches that a mirror or a live broker recompressed: no tier calls them changed."""

from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from pipeline.audit.broker_counter import BrokerCounter
from pipeline.audit.checkpoints import PartitionCheckpoints
from pipeline.audit.older_ledger import Ledger
from pipeline.audit.producer_counter import ProducerCounter
from pipeline.audit.reconcile import HourReport, Route, Stage, Status, reconcile
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.batches import DeliveredBatch
from pipeline.client.producer.producer import open_producer
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import CLICKS, make, mirroring_of, until_copied

WINDOW_MS = 600_000
VALUES = [b"GET /pages/%d HTTP/1.1 " % number * 40 for number in range(6)]


def counter_of(directory: Path, cluster: str) -> BrokerCounter:
    return BrokerCounter(cluster, WINDOW_MS, PartitionCheckpoints([directory], DiskFiles()), clock)


async def publish(cluster: Cluster, counter: ProducerCounter, codec: Codec) -> None:
    def delivered(batch: DeliveredBatch) -> None:
        counter.delivered(batch.topic_partition, batch.header)

    config = ProducerConfig(compression=codec, linger_ms=5, window_ms=WINDOW_MS)
    async with open_producer(cluster, config, clock=clock, rng=Random(1), on_delivered=delivered) as producer:
        for number, value in enumerate(VALUES):
            await producer.send(CLICKS.topic, value, partition=0)
            if number % 2:
                await producer.flush()


def judged(counters: list[BrokerCounter | ProducerCounter]) -> list[HourReport]:
    ledger = Ledger()
    for counter in counters:
        for event in counter.take_events():
            ledger.apply(event)
    return reconcile(
        ledger,
        live_clusters=["east"],
        replica_cluster="hub",
        routes=[Route(cluster="east", source=CLICKS, replica=CLICKS)],
        now_ms=clock() + 3_600_000,
        grace_ms=0,
        pending_max_ms=None,
    )


@pytest.mark.parametrize(
    ("at_source", "of_mirror", "codec", "stage"),
    [
        ("producer", "producer", Codec.LZ4, None),
        ("producer", "zstd", Codec.NONE, Stage.REPLICA),
        ("producer", "zstd", Codec.LZ4, Stage.REPLICA),
        ("producer", "zstd", Codec.ZSTD, None),
        ("zstd", "producer", Codec.NONE, Stage.LIVE),
        ("gzip", "producer", Codec.ZSTD, Stage.LIVE),
    ],
)
async def test_recompressed_batches_are_told_apart_from_changed_ones(
    tmp_path: Path, at_source: str, of_mirror: str, codec: Codec, stage: Stage | None
) -> None:
    brokers = {name: counter_of(tmp_path / name, name) for name in ("east", "hub")}
    producer = ProducerCounter("east", "p1", WINDOW_MS, clock)
    async with AsyncExitStack() as stack:
        east, hub = [
            await stack.enter_async_context(serving_cluster(tmp_path / name, observer=counter))
            for name, counter in brokers.items()
        ]
        await make(east, compression_type=at_source)
        await publish(east, producer, codec)
        settings = {"compression_type": of_mirror}
        async with mirroring_of(hub, None, settings, east=east):
            await until_copied(hub, TopicPartition(CLICKS.topic, 0), *VALUES)
        hours = judged([producer, *brokers.values()])
    assert sum(hour.stages[Stage.REPLICA].records for hour in hours) == len(VALUES)
    for hour in hours:
        assert [finding.at for finding in hour.findings] == ([] if stage is None else [stage])
        assert hour.status is (Status.EXACT if stage is None else Status.RECOMPRESSED)
