"""Consumers of confluent-kafka that are counted, on a real broker."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from confluent_kafka import Consumer, Message, Producer

from pipeline.audit.confluent import ConsumptionCounter, count_consumption
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from tests.support.audit_reports import ReportedRow, hours_of, read_all_reports
from tests.support.brokers import serving_cluster

pytestmark = pytest.mark.long

HOUR_MS = 3_600_000
FIRST_HOUR_MS = 1_700_002_800_000
COUNT = 100
DEADLINE_S = 60.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Any]:
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name="clicks", partitions=2)])
        yield cluster


def bootstrap_of(cluster: Cluster) -> str:
    return ",".join(str(broker.address) for broker in cluster.view.brokers.values())


def publish(bootstrap: str, count: int = COUNT) -> None:
    """Write records of two hours to each of two partitions."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        timestamp = FIRST_HOUR_MS + number * HOUR_MS // (count // 2)
        for partition in (0, 1):
            producer.produce("clicks", b"x", partition=partition, timestamp=timestamp)
    producer.flush()


def consume(
    bootstrap: str,
    count: int,
    take: Callable[[Consumer, ConsumptionCounter, Message], None] = lambda *_: None,
    **options: Any,
) -> None:
    """Consume so many records as a member of the group, and commit them at the end, by closing the consumer."""
    with count_consumption(bootstrap, datacenter="east", group="exporter", host="h", interval_s=0.1) as counted:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "exporter",
                "auto.offset.reset": "earliest",
                "on_commit": counted.on_commit,
                **options,
            }
        )
        consumer.subscribe(["clicks"], on_assign=counted.on_assign)
        for _ in range(count):
            message = consumer.poll(DEADLINE_S)
            assert message is not None
            assert message.error() is None
            counted.consumed(message)
            take(consumer, counted, message)
        consumer.close()


async def reports_of_group(cluster: Cluster) -> list[CountReport]:
    return [report for report in await read_all_reports(cluster) if report.counter.tier is Tier.GROUP]


def rows_of(reports: list[CountReport]) -> dict[tuple[int, int], list[ReportedRow]]:
    found: dict[tuple[int, int], list[ReportedRow]] = {}
    for (_, place, start_ms), row in hours_of(reports).items():
        found.setdefault((place.partition, (start_ms - FIRST_HOUR_MS) // HOUR_MS), []).append(row)
    return found


def runs_of(reports: list[CountReport]) -> set[tuple[int, int, int]]:
    """Return partition, start and end of each life's run."""
    newest: dict[tuple[str, int], tuple[int, int, int]] = {}
    for report in reports:
        for position in report.positions:
            run = (int(position["partition"]), int(position["counted_from"]), int(position["end_offset"]))
            newest[report.counter.instance, run[0]] = run
    return set(newest.values())


async def test_committed_records_are_counted_by_partition_and_hour(cluster: Cluster) -> None:
    bootstrap = bootstrap_of(cluster)
    await trio.to_thread.run_sync(publish, bootstrap)
    await trio.to_thread.run_sync(consume, bootstrap, 2 * COUNT)
    reports = await reports_of_group(cluster)
    assert {report.counter.name for report in reports} == {"exporter"}
    found = rows_of(reports)
    assert {key: sum(row.records for row in rows) for key, rows in found.items()} == {
        (partition, hour): COUNT // 2 for partition in (0, 1) for hour in (0, 1)
    }
    assert {(row.by_record, row.batches, row.content_sum) for rows in found.values() for row in rows} == {(1, 0, 0)}
    assert not any(np.any(report.rows["has_sums"]) for report in reports)
    assert runs_of(reports) == {(0, 0, COUNT), (1, 0, COUNT)}
    last = reports[-1].life
    assert last is not None
    assert (last.host, last.is_ended) == ("h", True)


async def test_records_that_are_committed_at_once_are_counted_by_the_answer(cluster: Cluster) -> None:
    def take(consumer: Consumer, counted: ConsumptionCounter, message: Message) -> None:
        counted.committed(consumer.commit(message=message, asynchronous=False))

    bootstrap = bootstrap_of(cluster)
    await trio.to_thread.run_sync(publish, bootstrap, 10)
    await trio.to_thread.run_sync(lambda: consume(bootstrap, 20, take, **{"enable.auto.commit": False}))
    found = rows_of(await reports_of_group(cluster))
    assert {key: sum(row.records for row in rows) for key, rows in found.items()} == {
        (partition, hour): 5 for partition in (0, 1) for hour in (0, 1)
    }


async def test_what_was_not_committed_counts_for_the_member_that_commits_it(cluster: Cluster) -> None:
    def commit_some(consumer: Consumer, counted: ConsumptionCounter, message: Message) -> None:
        if message.partition() == 0 and message.offset() == COUNT // 4 - 1:
            counted.committed(consumer.commit(message=message, asynchronous=False))

    bootstrap = bootstrap_of(cluster)
    await trio.to_thread.run_sync(publish, bootstrap)
    await trio.to_thread.run_sync(lambda: consume(bootstrap, 2 * COUNT, commit_some, **{"enable.auto.commit": False}))
    await trio.to_thread.run_sync(consume, bootstrap, 2 * COUNT - COUNT // 4)
    reports = await reports_of_group(cluster)
    assert runs_of(reports) == {(0, 0, COUNT // 4), (0, COUNT // 4, COUNT), (1, 0, COUNT)}
    counted = {key: sum(row.records for row in rows) for key, rows in rows_of(reports).items()}
    assert counted == {(partition, hour): COUNT // 2 for partition in (0, 1) for hour in (0, 1)}
