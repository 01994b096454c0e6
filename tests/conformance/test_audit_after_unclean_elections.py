"""A reader of an Apache Kafka whose leaders are killed, and whose log loses records in an unclean election."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline.audit.counting.read_back import FoundReports
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.ledger.ledger import Ledger, SeriesKey
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import Acks, ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import TopicPartition
from pipeline.records.tally import DEFAULT_WINDOW_MS, HOUR_MS
from pipeline.settings import parse_addresses
from tests.support.brokers import clock
from tests.support.foreign_way import LIVE, reading
from tests.support.kafka_cluster import KafkaNodes, kafka_nodes
from tests.support.reported_hours import Hour, hours_in, read_headers, read_reports, sums_of, wait_for_reports

CLICKS = TopicPartition("clicks", 0)
DEADLINE_S = 240
FIRST_HOUR_MS = clock() // HOUR_MS * HOUR_MS - 3 * HOUR_MS


async def publish(cluster: Cluster, count: int, first: int) -> None:
    config = ProducerConfig(linger_ms=0, acks=Acks.LEADER, idempotence=False, delivery_timeout_ms=120_000)
    async with open_producer(cluster, config, clock=clock, rng=Random(first)) as producer:
        for number in range(first, first + count):
            time_ms = FIRST_HOUR_MS + number % 2 * HOUR_MS
            await producer.send(CLICKS.topic, b"%d" % number, partition=0, timestamp_ms=time_ms)
            if number % 4 == 3:
                await producer.flush()


def make_topics(bootstrap: str) -> None:
    """Replicas at nodes 1 and 2 alone; the audit topic at node 3, which stays."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [
        NewTopic(CLICKS.topic, 1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "1"}),
        NewTopic("_audit", 1, replica_assignment=[[3]], config={"retention.ms": "-1"}),
    ]
    for future in admin.create_topics(topics, operation_timeout=60).values():
        future.result(60)


async def leader_is(cluster: Cluster, number: int) -> None:
    with trio.fail_after(DEADLINE_S):
        while (await cluster.refresh()).leader_of(CLICKS) != number:
            await trio.sleep(0.2)


async def isr_is(cluster: Cluster, *numbers: int) -> None:
    with trio.fail_after(DEADLINE_S):
        while True:
            found = (await cluster.refresh()).partition_of(CLICKS)
            if found is not None and set(found.isr) == set(numbers):
                return
            await trio.sleep(0.2)


def held(reports: Sequence[CountReport]) -> int:
    """Records of the live stage, as the ledger of the audit has them."""
    ledger = Ledger(settle_ms=0)
    for report in reports:
        ledger.apply(report)
    series = ledger.series[SeriesKey(Tier.BROKER, LIVE)]
    return sum(int(table.rows["records"].sum()) for table in series.hours.values())


def held_hours(reports: Sequence[CountReport]) -> set[Hour]:
    """Rows that hold, as another reader would go on from them."""
    found = FoundReports(LIVE, DEFAULT_WINDOW_MS)
    for report in reports:
        found.apply(report)
    (topic_id,) = {topic.topic_id for report in reports for topic in report.topics}
    known = found.take_counts(CLICKS, topic_id)
    assert known is not None
    rows = known.rows[known.rows["span_ms"] == HOUR_MS]
    return {Hour(CLICKS, int(row["start_ms"]), sums_of([row])) for row in rows}


@pytest.mark.long
async def test_what_an_unclean_election_lost_is_taken_back(tmp_path: Path) -> None:
    with kafka_nodes(tmp_path) as nodes:
        async with open_cluster(ClientConfig(bootstrap=parse_addresses(nodes.bootstrap))) as cluster:
            await trio.to_thread.run_sync(wait_and_make, nodes)
            cluster.track([CLICKS.topic])
            await isr_is(cluster, 1, 2)
            async with reading(cluster, cluster, [CLICKS.topic]) as reader:
                await publish(cluster, 20, 0)
                await until_counted(cluster, 20)
                nodes.kill(2)
                await isr_is(cluster, 1)
                await publish(cluster, 12, 20)
                await until_counted(cluster, 32)
                nodes.kill(1)  # the only one that has the last 12
                nodes.start(2)
                await leader_is(cluster, 2)
                await publish(cluster, 8, 40)
                nodes.start(1)
                headers = await read_headers(cluster, CLICKS)
                assert sum(header.record_count for header in headers) == 28
                reports = await until_counted(cluster, 28)
                assert held_hours(reports) == hours_in(CLICKS, headers)
                assert any(report.claims for report in reports)
                with trio.fail_after(DEADLINE_S):
                    while reader.trouble() is not None:
                        await trio.sleep(0.1)


def wait_and_make(nodes: KafkaNodes) -> None:
    AdminClient({"bootstrap.servers": nodes.bootstrap, "log_level": 0}).list_topics(timeout=DEADLINE_S)
    make_topics(nodes.bootstrap)


async def until_counted(cluster: Cluster, records: int) -> list[CountReport]:
    try:
        return await wait_for_reports(
            cluster, lambda found: any(len(report.rows) for report in found) and held(found) == records, DEADLINE_S
        )
    except trio.TooSlowError:
        raise AssertionError(f"{held(await read_reports(cluster))} records, not {records}") from None
