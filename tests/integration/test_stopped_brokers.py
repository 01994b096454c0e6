"""A broker that stops in order: its last report has all counts, and says that it has stopped."""

from pathlib import Path
from random import Random

import pytest
import trio

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.cli.terminal.connect import connected
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.processes import free_port
from pipeline.records.tally import HOUR_MS
from tests.support.audit_reports import read_all_reports
from tests.support.broker import BrokerProcess, configured_broker
from tests.support.brokers import clock

pytestmark = pytest.mark.long

RECORDS = 5


async def produce(broker: BrokerProcess) -> None:
    async with connected(broker.bootstrap, None, "test") as cluster:
        await create_topics(cluster, [NewTopic(name="clicks", partitions=2)], exist_ok=True)
        async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            for _ in range(RECORDS):
                await producer.send("clicks", b"a", partition=0)


async def reports_of(broker: BrokerProcess) -> list[CountReport]:
    async with connected(broker.bootstrap, None, "test") as cluster:
        return [report for report in await read_all_reports(cluster) if report.counter.tier is Tier.BROKER]


def test_the_last_report_of_a_broker_that_stops_has_all_counts_and_says_so(tmp_path: Path, zookeeper: str) -> None:
    settings = {"datacenter": "east", "audit_interval_ms": 600_000}  # nothing is reported but at the end
    with configured_broker(tmp_path, zookeeper, broker_id=71, port=free_port(), **settings) as broker:
        broker.start()
        trio.run(produce, broker)
        assert broker.stop() == 0
        assert "audit_publish_failed" not in broker.log.read_text()
        broker.start()
        found = trio.run(reports_of, broker)
        assert [report.life.is_ended for report in found if report.life is not None] == [True]
        assert sum(int(report.rows[report.rows["span_ms"] == HOUR_MS]["records"].sum()) for report in found) == RECORDS
        assert broker.stop() == 0
