"""Reports in the audit topic of a cluster, and the rows that hold of a counter."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import trio

from pipeline.audit.counting.windows import WindowSums
from pipeline.audit.events.encoding import decode_count_report
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import AUDIT_TOPIC, Tier
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.topics import list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.records.batch_hashes import header_table
from pipeline.records.record import iterate_records
from pipeline.records.tally import DEFAULT_WINDOW_MS, HOUR_MS

EVENTS = TopicPartition(AUDIT_TOPIC, 0)
TIMEOUT_S = 60
SUMS = ("records", "bytes", "batches", "crc_sum", "content_sum", "place_sum", "first_offset", "last_offset")


class Hour(NamedTuple):
    """A row of an hour without what only the counter knows."""

    partition: TopicPartition
    start_ms: int
    sums: tuple[int, ...]


async def read_headers(cluster: Cluster, partition: TopicPartition) -> list[BatchHeader]:
    """Headers of all batches of a partition, below its high watermark."""
    await cluster.topic(partition.topic)
    start = (await list_offsets(cluster, {partition: EARLIEST}, timeout_s=TIMEOUT_S))[partition].offset
    end = (await list_offsets(cluster, {partition: LATEST}, timeout_s=TIMEOUT_S))[partition].offset
    found: list[BatchHeader] = []
    with trio.fail_after(TIMEOUT_S):
        async with open_consumer(cluster, ConsumerConfig()) as consumer:
            consumer.assign({partition: start})
            while consumer.position(partition) < end:
                for batches in await consumer.poll_batches():
                    found += [header for _, header in iterate_headers(batches.data)]
    return found


async def read_reports(cluster: Cluster) -> list[CountReport]:
    """All reports of the audit topic, in order."""
    if AUDIT_TOPIC not in await list_topics(cluster):
        return []
    end = (await list_offsets(cluster, {EVENTS: LATEST}, timeout_s=TIMEOUT_S))[EVENTS].offset
    found: list[CountReport] = []
    with trio.fail_after(TIMEOUT_S):
        async with open_consumer(cluster, ConsumerConfig()) as consumer:
            consumer.assign({EVENTS: 0})
            while consumer.position(EVENTS) < end:
                for batches in await consumer.poll_batches():
                    found += [
                        decode_count_report(record.value) for record in iterate_records(batches.data) if record.value
                    ]
    return found


async def wait_for_reports(
    cluster: Cluster, is_enough: Callable[[Sequence[CountReport]], bool], timeout_s: float = TIMEOUT_S
) -> list[CountReport]:
    """Wait until the audit topic has what is asked for."""
    with trio.fail_after(timeout_s):
        while not is_enough(found := await read_reports(cluster)):
            await trio.sleep(0.05)
    return found


def hours_of(reports: Sequence[CountReport], tier: Tier, name: str = "") -> set[Hour]:
    """Rows of hours that hold, of all lives together where a tier has lives."""
    held: dict[tuple[str, TopicPartition, int], np.void] = {}
    for report in reports:
        if (report.counter.tier, report.counter.name) != (tier, name):
            continue
        for row in report.rows[report.rows["span_ms"] == HOUR_MS]:
            partition = TopicPartition(report.topics[row["topic"]].name, int(row["partition"]))
            key = report.counter.instance, partition, int(row["start_ms"])
            if key not in held or row["revision"] >= held[key]["revision"]:
                held[key] = row
    together: dict[tuple[TopicPartition, int], list[np.void]] = {}
    for (_, partition, start_ms), row in held.items():
        together.setdefault((partition, start_ms), []).append(row)
    return {Hour(*key, sums_of(rows)) for key, rows in together.items()}


def hours_in(partition: TopicPartition, headers: Sequence[BatchHeader]) -> set[Hour]:
    """Rows of hours that these batches make."""
    sums = WindowSums(DEFAULT_WINDOW_MS)
    if headers:
        sums.add(header_table(headers))
    rows = sums.rows()
    return {Hour(partition, int(row["start_ms"]), sums_of([row])) for row in rows[rows["span_ms"] == HOUR_MS]}


def spans_of(reports: Sequence[CountReport], tier: Tier, partition: TopicPartition) -> list[tuple[int, int]]:
    """The offsets that each life has counted, as its last position has it, sorted."""
    found: dict[str, tuple[int, int]] = {}
    for report in reports:
        for position in report.positions if report.counter.tier is tier else ():
            name = TopicPartition(report.topics[position["topic"]].name, int(position["partition"]))
            if name == partition:
                found[report.counter.instance] = int(position["counted_from"]), int(position["end_offset"])
    return sorted(found.values())


def sums_of(rows: Sequence[np.void]) -> tuple[int, ...]:
    sums = [sum(int(row[name]) for row in rows) % 2**64 for name in SUMS[:-2]]
    return (*sums, min(int(row["first_offset"]) for row in rows), max(int(row["last_offset"]) for row in rows))
