"""What lies in the live logs and in their copies, proved to agree with what was acknowledged and counted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import trio

from pipeline.cli.audit.rendering import render
from pipeline.cli.demo.datacenters import HUB, Datacenters
from pipeline.cli.terminal.connect import connected
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.mirror.journals.table import Assignment
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.records.batch import iterate_headers, place_batch
from pipeline.records.record import iterate_records
from tests.support.traffic import Published

DEADLINE_S = 300
POLL_S = 0.2


async def log_ends(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    listed = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=DEADLINE_S)
    return {partition: found.offset for partition, found in listed.items()}


async def read_logs(
    cluster: Cluster, partitions: Iterable[TopicPartition], starts: Mapping[TopicPartition, int] | None = None
) -> dict[TopicPartition, bytearray]:
    """All batches as they lie in the logs now, from `starts` on; the leader epoch, each broker's own, made equal."""
    ends = await log_ends(cluster, partitions)
    logs = {partition: bytearray() for partition in ends}
    begins = {partition: (starts or {}).get(partition, 0) for partition in ends}
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign({partition: begin for partition, begin in begins.items() if ends[partition] > begin})
        with trio.fail_after(DEADLINE_S):
            while any(consumer.position(partition) < ends[partition] for partition in consumer.assignment):
                for batches in await consumer.poll_batches():
                    logs[batches.topic_partition] += batches.data
    for log in logs.values():
        for position, header in iterate_headers(log):
            place_batch(log, position, header.base_offset, 0)
    return logs


async def read_table(cluster: Cluster, topic: str) -> list[Assignment]:
    """Which replica partition is the copy of which source partition."""
    journal = TableJournal(cluster, lambda _records: None)
    await journal.open()
    return [line for line in journal.table.assignments() if line.source.partition.topic == topic]


async def read_report(datacenters: Datacenters, topic: str) -> dict[str, Any] | None:
    """What the audit says now; None when it does not answer."""
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            response = await client.get(f"{datacenters.audit.url}/v1/report", params={"topic": topic})
    except httpx.TransportError:
        return None
    document: dict[str, Any] = response.json()
    return document if response.status_code == 200 else None


async def check_copies(datacenters: Datacenters, topic: str, published: Mapping[str, Published]) -> int:
    """Wait until all is copied and told, and check it all. Returns the number of acknowledged records.

    In the live logs: every acknowledged record once, at the offset that was told; no record twice, none unheard of; the
    records of a producer in order. In the hub: the same bytes at the same offsets. In the audit: every hour exact.
    """
    async with connected(datacenters.bootstrap[HUB], None, "check") as hub:
        for datacenter, notes in published.items():
            async with connected(datacenters.bootstrap[datacenter], None, "check") as live:
                table = await read_table(hub, topic)
                copies = {a.source.partition: a.replica for a in table if a.source.cluster == datacenter}
                await _until_copied(live, hub, copies)
                live_logs = await read_logs(live, copies)
            hub_logs = await read_logs(hub, copies.values())
            for source, replica in copies.items():
                assert hub_logs[replica] == live_logs[source], f"{replica} is not the same as {source} of {datacenter}"
            _check_records(live_logs, notes)
    acknowledged = sum(len(notes.acknowledged) for notes in published.values())
    await _until_exact(datacenters, topic, acknowledged)
    return acknowledged


async def _until_copied(live: Cluster, hub: Cluster, copies: Mapping[TopicPartition, TopicPartition]) -> None:
    ends = await log_ends(live, copies)
    expected = {replica: ends[source] for source, replica in copies.items()}
    found: dict[TopicPartition, int] = {}
    with trio.move_on_after(DEADLINE_S):
        while (found := await log_ends(hub, expected)) != expected:
            await trio.sleep(POLL_S)
    assert found == expected, "the mirror did not copy all in time"


def _check_records(logs: Mapping[TopicPartition, bytearray], notes: Published) -> None:
    assert not notes.told_twice
    times: Counter[bytes] = Counter()
    places: dict[bytes, tuple[TopicPartition, int]] = {}
    for partition, log in logs.items():
        last: defaultdict[bytes, int] = defaultdict(int)
        for record in iterate_records(log):
            assert record.value is not None
            times[record.value] += 1
            places[record.value] = partition, record.offset
            producer, number, _ = record.value.split(b"/")
            assert int(number) > last[producer], f"{partition}: {record.value!r} is out of order"
            last[producer] = int(number)
    assert not [value for value, count in times.items() if count > 1], "doubled"
    assert not notes.acknowledged.keys() - times.keys(), "lost"
    assert not times.keys() - notes.sent, "unheard of"
    for value, told in notes.acknowledged.items():
        assert told.offset < 0 or places[value] == (told.topic_partition, told.offset)


async def _until_exact(datacenters: Datacenters, topic: str, acknowledged: int) -> None:
    report: dict[str, Any] | None = None
    with trio.move_on_after(DEADLINE_S):
        while True:
            report = await read_report(datacenters, topic)
            if report is not None and _is_exact(report, acknowledged):
                return
            await trio.sleep(POLL_S)
    shown = "it does not answer" if report is None else render(report)
    raise AssertionError(f"the audit is not exact over {acknowledged} records:\n{shown}")


def _is_exact(report: dict[str, Any], acknowledged: int) -> bool:
    stages = [hour["stages"] for hour in report["hours"]]
    return (
        report["exact"]
        and all("replica" in found for found in stages)
        and sum(found["replica"]["records"] for found in stages) == acknowledged
    )
