"""Monitoring events of a cluster's audit topic, read as they are."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import trio

from pipeline.audit.events.encoding import decode_count_report
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import AUDIT_TOPIC, Tier
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import TopicPartition
from pipeline.records.record import iterate_records
from pipeline.records.tally import HOUR_MS
from tests.support.copies import read_logs

EVENTS = TopicPartition(AUDIT_TOPIC, 0)
DEADLINE_S = 60


class ReportedRow(NamedTuple):
    """What the newest report says of one counter's partition and hour."""

    records: int
    batches: int
    marked_records: int
    uncertain_records: int
    content_sum: int
    first_offset: int
    last_offset: int
    by_record: int


async def read_all_reports(cluster: Cluster) -> list[CountReport]:
    """Return all reports, oldest first."""
    await cluster.topic(AUDIT_TOPIC, timeout_s=DEADLINE_S)
    log = (await read_logs(cluster, [EVENTS]))[EVENTS]
    return [decode_count_report(bytes(record.value or b"")) for record in iterate_records(log)]


async def read_reports(cluster: Cluster) -> list[CountReport]:
    """Return all reports of producers, oldest first."""
    return [report for report in await read_all_reports(cluster) if report.counter.tier is Tier.PRODUCER]


def hours_of(
    reports: Iterable[CountReport], span_ms: int = HOUR_MS
) -> dict[tuple[str, TopicPartition, int], ReportedRow]:
    """Return the rows that hold, by life, partition and start."""
    revisions: dict[tuple[str, TopicPartition, int], int] = {}
    found = {}
    for report in reports:
        for row in report.rows[report.rows["span_ms"] == span_ms]:
            partition = TopicPartition(report.topics[row["topic"]].name, int(row["partition"]))
            key = (report.counter.instance, partition, int(row["start_ms"]))
            if row["revision"] >= revisions.get(key, 0):
                revisions[key] = int(row["revision"])
                found[key] = ReportedRow(*(int(row[name]) for name in ReportedRow._fields))
    return found


def reported_records(reports: Iterable[CountReport], topic: str) -> int:
    """Return how many records of a topic all lives have reported."""
    return sum(row.records for (_, partition, _), row in hours_of(reports).items() if partition.topic == topic)


def last_signs(reports: Sequence[CountReport]) -> dict[str, CountReport]:
    """Return the newest report of each life."""
    newest: dict[str, CountReport] = {}
    for report in reports:
        before = newest.get(report.counter.instance)
        if before is None or before.created_ms < report.created_ms:
            newest[report.counter.instance] = report
    return newest


async def until_reported(cluster: Cluster, topic: str, records: int) -> list[CountReport]:
    """Wait until lives have reported so many records of a topic, and return all reports."""
    with trio.fail_after(DEADLINE_S):
        while reported_records(reports := await read_reports(cluster), topic) != records:
            await trio.sleep(0.02)
    return reports
