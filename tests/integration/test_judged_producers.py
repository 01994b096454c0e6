"""The verdict on what real producers did on a real broker: counted and foreign, killed, and stopped for a while."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest
import trio
from confluent_kafka import Producer as ForeignProducer

from pipeline.audit.confluent import count_deliveries
from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.counting.publisher import open_publisher
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, Stage, Status
from pipeline.audit.ledger.ledger import Ledger
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.log.files import DiskFiles
from pipeline.records.tally import HOUR_MS
from tests.support.audit_reports import read_all_reports, until_reported
from tests.support.brokers import clock, serving_cluster
from tests.support.counted_producer import RECORDS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
HOUR = 1_700_002_800_000
GRACE_MS = 1_000
INTERVAL_S = 0.1
SELDOM_S = 2.0
"""Interval of a producer that is killed before it has reported; three of them later it is silent."""
DEADLINE_S = 120
PRODUCED, LIVE = Stage(tier="produced"), Stage(tier="live")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Any]:
    """A broker that counts, with the topic clicks of one partition."""
    life = BrokerLife(broker_id=1, host="b", started_ms=clock(), interval_ms=round(INTERVAL_S * 1000))
    counter = BrokerCounter("east", 600_000, PartitionCheckpoints([tmp_path], DiskFiles()), clock, life)
    async with (
        serving_cluster(tmp_path, observer=counter) as cluster,
        open_publisher(cluster, counter, clock=clock, rng=SystemRandom()) as publisher,
        trio.open_nursery() as nursery,
    ):
        await create_topics(cluster, [NewTopic(name="clicks", partitions=1)])
        nursery.start_soon(publisher.run, INTERVAL_S)
        yield cluster
        nursery.cancel_scope.cancel()


async def judge(cluster: Cluster) -> list[AuditedHour]:
    """Return the verdicts on clicks by all that was reported up to now."""
    asked_ms = clock()
    ledger = Ledger()
    for report in await read_all_reports(cluster):
        ledger.apply(report)
    expectations = Expectations(
        live_clusters=["east"],
        replica_cluster=None,
        partitions={("east", "clicks"): 1},
        read_to_ms={"east": asked_ms},
    )
    judgement = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=HOUR_MS).judge(expectations, asked_ms)
    return list(judgement.hours(topic="clicks"))


async def until_judged(cluster: Cluster, condition: Callable[[list[AuditedHour]], bool]) -> list[AuditedHour]:
    hours: list[AuditedHour] = []
    with trio.move_on_after(DEADLINE_S):
        while not hours or not condition(hours):
            await trio.sleep(0.05)
            hours = await judge(cluster)
        return hours
    raise AssertionError(hours)


def are(*statuses: Status) -> Callable[[list[AuditedHour]], bool]:
    return lambda hours: [hour.status for hour in hours] == list(statuses)


def bootstrap_of(cluster: Cluster) -> str:
    return ",".join(str(broker.address) for broker in cluster.view.brokers.values())


async def publish_foreign(cluster: Cluster, records: int, *, is_counted: bool) -> None:
    """Publish with confluent-kafka."""

    def publish(**callbacks: Any) -> None:
        producer = ForeignProducer({"bootstrap.servers": bootstrap_of(cluster), **callbacks})
        for number in range(records):
            producer.produce("clicks", b"foreign", timestamp=HOUR + number)
        assert producer.flush(60) == 0

    def publish_and_count() -> None:
        with count_deliveries(bootstrap_of(cluster), datacenter="east", topics=["clicks"], host="h") as counted:
            publish(on_delivery=counted.on_delivery)

    await trio.to_thread.run_sync(publish_and_count if is_counted else publish)


async def publish_counted(cluster: Cluster, records: int) -> None:
    async with open_audited_producer(
        cluster, ProducerConfig(), datacenter="east", host="h", clock=clock, rng=SystemRandom(), interval_s=INTERVAL_S
    ) as producer:
        await producer.send_many("clicks", [b"counted"] * records, timestamp_ms=HOUR)


@asynccontextmanager
async def producing(cluster: Cluster, moment: str) -> AsyncIterator[trio.Process]:
    program = [sys.executable, "-m", "tests.support.counted_producer"]
    command = [*program, bootstrap_of(cluster), "clicks", moment, str(HOUR), str(SELDOM_S)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        said = b""
        with trio.fail_after(DEADLINE_S):
            while not said.endswith(b"\n"):
                said += await process.stdout.receive_some()
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def test_counted_and_foreign_producers_of_one_partition_are_no_difference(cluster: Cluster) -> None:
    await publish_counted(cluster, 5)
    await publish_foreign(cluster, 7, is_counted=False)
    (hour,) = await until_judged(cluster, lambda hours: _records(hours[0], LIVE) == 12)
    assert (hour.status, hour.stages[PRODUCED].records) == (Status.EXACT, 5)


async def test_counted_producers_of_confluent_kafka_agree_beside_others_of_ours(cluster: Cluster) -> None:
    await publish_counted(cluster, 5)
    await publish_foreign(cluster, 7, is_counted=True)
    (hour,) = await until_judged(cluster, lambda hours: _records(hours[0], LIVE) == 12)
    assert (hour.status, hour.stages[PRODUCED].records) == (Status.EXACT, 12)


async def test_a_killed_producer_is_named_and_is_no_difference(cluster: Cluster) -> None:
    await publish_counted(cluster, 5)
    await until_judged(cluster, are(Status.EXACT))
    async with producing(cluster, "acknowledged") as process:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    (hour,) = await until_judged(cluster, are(Status.UNKNOWN))
    assert (hour.stages[PRODUCED].records, hour.stages[LIVE].records) == (5, 5 + RECORDS)
    (witness,) = hour.missing_witnesses
    assert witness.name.endswith(" on h")
    assert "without closing its window" in witness.reason


async def test_a_producer_that_is_stopped_is_silent_and_is_alive_again_when_it_goes_on(cluster: Cluster) -> None:
    """Stopped while it holds records, so that the hour is open."""
    async with producing(cluster, "held") as process:
        await until_reported(cluster, "clicks", RECORDS)
        await until_judged(cluster, are(Status.PENDING))
        process.send_signal(signal.SIGSTOP)
        (hour,) = await until_judged(cluster, are(Status.UNKNOWN))
        assert hour.missing_witnesses[0].name.endswith(" on h")
        process.send_signal(signal.SIGCONT)
        await until_judged(cluster, are(Status.PENDING))


async def test_batches_over_the_edge_of_an_hour_are_no_difference_of_counts_by_record(cluster: Cluster) -> None:
    """One batch of 20 records: 10 of them belong to the next hour, and brokers count all in the first."""

    def publish() -> None:
        with count_deliveries(bootstrap_of(cluster), datacenter="east", topics=["clicks"], host="h") as counted:
            settings = {"bootstrap.servers": bootstrap_of(cluster), "linger.ms": 500}
            producer = ForeignProducer({**settings, "on_delivery": counted.on_delivery})
            for number in range(-10, 10):
                producer.produce("clicks", b"foreign", partition=0, timestamp=HOUR + HOUR_MS + number)
            assert producer.flush(60) == 0

    await trio.to_thread.run_sync(publish)
    hours = await until_judged(cluster, lambda hours: sum(_records(hour, LIVE) for hour in hours) == 20)
    assert [_records(hour, PRODUCED) for hour in hours] == [10, 10]
    hours = await until_judged(cluster, lambda hours: all(hour.status is not Status.PENDING for hour in hours))
    assert [hour.status.is_difference for hour in hours] == [False, False]


def _records(hour: AuditedHour, stage: Stage) -> int:
    return hour.stages[stage].records if stage in hour.stages else 0
