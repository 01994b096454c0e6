"""The audit's page of a real service: a broker and a producer that count, the collector, and a real Chromium."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest
import trio
from prometheus_client import CollectorRegistry
from selenium.webdriver import Chrome

from pipeline.audit.config import AuditConfig
from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.counting.publisher import open_publisher
from pipeline.audit.events.encoding import encode_count_report, encode_key
from pipeline.audit.events.report import ROW, CountReport, LifeSign, ReportedTopic
from pipeline.audit.events.tiers import AUDIT_TOPIC, Counter, Tier
from pipeline.audit.judgement.verdicts import Expectations, Finding
from pipeline.audit.page.audit_page import audit_page_routes
from pipeline.audit.server import run_audit
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.log.files import DiskFiles
from pipeline.model import HostPort
from tests.support.brokers import clock, serving_cluster
from tests.support.browser import PAGE_DEADLINE_S, Window, chromium

HOUR_MS = 3_600_000
INTERVAL_S = 0.05
PARTITIONS = 2
TOPICS = ("clicks", "orders")
RECORDS = 20


async def asked_until(window: Window, element_id: str, wanted: str) -> None:
    """Has the page ask again, as if it came to the front, until an element holds a text."""
    with trio.fail_after(PAGE_DEADLINE_S):
        while wanted not in await window.text(element_id):
            await window.run("document.dispatchEvent(new Event('visibilitychange'))")
            await trio.sleep(0.2)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@asynccontextmanager
async def serving_audit_of(cluster: Cluster) -> AsyncIterator[str]:
    """The audit service of one live cluster."""
    config = AuditConfig.from_settings(
        {
            "http.listen": "127.0.0.1:0",
            "pending.grace.ms": 0,
            "live": [{"name": "east", "bootstrap.servers": "given:1"}],
        }
    )
    partitions = {("east", topic): PARTITIONS for topic in TOPICS}

    async def read_expectations() -> Expectations:
        return Expectations(live_clusters=["east"], replica_cluster=None, partitions=partitions)

    async def narrow(finding: Finding, _others: Sequence[Finding]) -> Sequence[Finding]:
        return [finding]

    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[HostPort]) -> None:
            await run_audit(
                config,
                {"east": cluster},
                read_expectations=read_expectations,
                narrow=narrow,
                clock=clock,
                metrics=CollectorRegistry(),
                page=audit_page_routes(),
                task_status=task_status,
            )

        yield f"http://{await nursery.start(run)}"
        nursery.cancel_scope.cancel()


def announced_and_never_sent(hour_ms: int) -> CountReport:
    """The report of a producer that says it sent three records of the hour, and then ended."""
    now_ms = clock() - 60_000  # the broker has reported since
    rows = np.zeros(1, ROW)
    rows["start_ms"], rows["span_ms"], rows["revision"] = hour_ms, HOUR_MS, 1
    rows["records"], rows["batches"], rows["bytes"], rows["crc_sum"] = 3, 1, 90, 4711
    rows["first_offset"] = rows["last_offset"] = -1
    rows["marked_records"] = 3
    return CountReport(
        counter=Counter(tier=Tier.PRODUCER, cluster="east", instance="lost"),
        process="lost",
        created_ms=now_ms,
        window_ms=HOUR_MS,
        topics=[ReportedTopic(TOPICS[1])],
        rows=rows,
        life=LifeSign(host="h", started_ms=hour_ms, interval_ms=10_000, closed_ms=now_ms, is_ended=True),
    )


async def test_records_that_never_arrived_are_seen_on_the_page_of_a_real_audit(tmp_path: Path, browser: Chrome) -> None:
    window = Window(browser)
    life = BrokerLife(broker_id=1, host="h", started_ms=clock(), interval_ms=int(INTERVAL_S * 1000))
    counter = BrokerCounter("east", 600_000, PartitionCheckpoints([tmp_path / "log"], DiskFiles()), clock, life)
    hour_ms = (clock() // HOUR_MS - 3) * HOUR_MS
    async with serving_cluster(tmp_path / "log", observer=counter) as cluster, trio.open_nursery() as nursery:
        for topic in TOPICS:
            await create_topics(cluster, [NewTopic(name=topic, partitions=PARTITIONS, replication_factor=1)])

        async def tell() -> None:
            async with open_publisher(cluster, counter, clock=clock, rng=Random(1)) as publisher:
                await publisher.run(INTERVAL_S)

        nursery.start_soon(tell)
        audited = open_audited_producer(
            cluster, ProducerConfig(), datacenter="east", host="h", clock=clock, rng=Random(2), interval_s=INTERVAL_S
        )
        async with serving_audit_of(cluster) as url:
            async with audited as producer:
                for topic in TOPICS:
                    for number in range(RECORDS):
                        await producer.send(topic, b"value", timestamp_ms=hour_ms + number * 1000)
                await producer.flush()
            await window.open(url)
            await asked_until(window, "shown", "2 topics")
            await asked_until(window, "headline", "All records of 2 topics have arrived, exactly")
            await window.until("flow", "Producers", "Live brokers", "40 records of 2 topics", "no finding")
            await window.run(f"location.hash = '#/clicks/{hour_ms}'")
            await window.until("hour-body", "What the verdict rests on", "The whole topic", "east", "0 to 19")
            await window.until("story", "The producers counted 20 records", ": exact.")
            await window.run("document.getElementById('details').close()")
            await window.until("watermarks", "clicks", "orders")
            async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(3)) as producer:
                lost = announced_and_never_sent(hour_ms)
                await producer.send(AUDIT_TOPIC, encode_count_report(lost), key=encode_key(lost))
                await producer.flush()
            await asked_until(window, "headline", "Records differ in 1 hour of 1 topic")
            await window.until("reasons", f"Records are missing in 1 hour of {TOPICS[1]}")
            await window.until("flow", "3 missing")
            await window.run(f"location.hash = '#/{TOPICS[1]}/{hour_ms}'")
            await window.until("hour-body", "missing", "3 records")
            await window.until("story", ": missing.")
            assert await window.complaints() == []
        nursery.cancel_scope.cancel()
