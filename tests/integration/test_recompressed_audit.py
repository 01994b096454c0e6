"""The audit of batches that a mirror or a live broker recompressed: no tier calls them changed."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.producer_counter import LifeClock, ProducerCounter
from pipeline.audit.events.encoding import decode_count_report, encode_count_report
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, MirroredTopic, Route, Stage, Status
from pipeline.audit.ledger.ledger import Ledger
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.log.files import DiskFiles
from pipeline.model import TopicPartition
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import CLICKS, make, mirroring_of, until_copied

pytestmark = pytest.mark.long

WINDOW_MS = 600_000
VALUES = [b"GET /pages/%d HTTP/1.1 " % number * 40 for number in range(6)]


def counter_of(directory: Path, cluster: str) -> BrokerCounter:
    life = BrokerLife(broker_id=1, host=cluster, started_ms=clock(), interval_ms=10_000)
    return BrokerCounter(cluster, WINDOW_MS, PartitionCheckpoints([directory], DiskFiles()), clock, life)


async def publish(cluster: Cluster, counter: ProducerCounter, codec: Codec, *, is_counted: bool) -> None:
    config = ProducerConfig(compression=codec, linger_ms=5, window_ms=WINDOW_MS, is_counted=is_counted)
    async with open_producer(cluster, config, clock=clock, rng=Random(1), on_delivered=counter.delivered) as producer:
        for number, value in enumerate(VALUES):
            await producer.send(CLICKS.topic, value, partition=0)
            if number % 2:
                await producer.flush()


LIVE, REPLICA = Stage(tier="live"), Stage(tier="replica")
LATER_MS = 2 * HOUR_MS
"""All counters say, that much later, that the hour is over."""


def judged(counters: list[BrokerCounter | ProducerCounter]) -> list[AuditedHour]:
    ledger = Ledger()
    for counter in counters:
        for report in counter.take_reports():
            created_ms = report.created_ms + LATER_MS
            life = report.life and replace(report.life, closed_ms=created_ms)
            ledger.apply(decode_count_report(encode_count_report(replace(report, created_ms=created_ms, life=life))))
    now_ms = clock() + LATER_MS
    clusters = ("east", "hub")
    expectations = Expectations(
        live_clusters=["east"],
        replica_cluster="hub",
        partitions={(cluster, CLICKS.topic): 1 for cluster in clusters},
        mirrored=[MirroredTopic(cluster="east", topic=CLICKS.topic, replica_topic=CLICKS.topic)],
        routes=[Route(cluster="east", source=CLICKS, replica=CLICKS)],
        read_to_ms=dict.fromkeys(clusters, now_ms),
    )
    return Judge(ledger, grace_ms=0, pending_max_ms=10 * HOUR_MS).judge(expectations, now_ms).hours()


STAMPED = {"message_timestamp_type": "LogAppendTime"}


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize(
    ("at_source", "of_mirror", "codec", "stage"),
    [
        ({}, "producer", Codec.LZ4, None),
        ({}, "zstd", Codec.NONE, REPLICA),
        ({}, "zstd", Codec.LZ4, REPLICA),
        ({}, "zstd", Codec.ZSTD, None),
        ({"compression_type": "zstd"}, "producer", Codec.NONE, LIVE),
        ({"compression_type": "gzip"}, "producer", Codec.ZSTD, LIVE),
        (STAMPED, "producer", Codec.LZ4, None),
        (STAMPED, "zstd", Codec.NONE, REPLICA),
        ({**STAMPED, "compression_type": "zstd"}, "producer", Codec.NONE, LIVE),
    ],
)
async def test_recompressed_and_stamped_batches_are_told_apart_from_changed_ones(
    tmp_path: Path, at_source: Any, of_mirror: str, codec: Codec, stage: Stage | None, *, is_counted: bool
) -> None:
    brokers = {name: counter_of(tmp_path / name, name) for name in ("east", "hub")}
    steady = LifeClock(clock, trio.current_time)
    producer = ProducerCounter("east", "p1", WINDOW_MS, host="h", interval_ms=10_000, clock=steady)
    async with AsyncExitStack() as stack:
        east, hub = [
            await stack.enter_async_context(serving_cluster(tmp_path / name, observer=counter))
            for name, counter in brokers.items()
        ]
        await make(east, **at_source)
        await publish(east, producer, codec, is_counted=is_counted)
        settings = {"compression_type": of_mirror}
        async with mirroring_of(hub, None, settings, east=east):
            await until_copied(hub, TopicPartition(CLICKS.topic, 0), *VALUES)
        hours = judged([producer, *brokers.values()])
    assert sum(hour.stages[REPLICA].records for hour in hours) == len(VALUES)
    for hour in hours:
        assert not hour.missing_witnesses
        assert [finding.at for finding in hour.findings] == ([] if stage is None else [stage])
        assert hour.status is (Status.EXACT if stage is None else Status.RECOMPRESSED)
