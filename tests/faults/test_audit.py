"""The audit bites: batches left out, changed or not copied yet, and a log that lost its end, are named with place."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import crc32c
import pytest
import trio

from pipeline.audit.counting.lives import open_audited_producer
from pipeline.cli.audit.rendering import render
from pipeline.cli.demo.datacenters import HUB, Datacenters
from pipeline.cli.terminal.connect import connected, wall_clock
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.mirror.journals.table import Proposal, SourcePartition
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.model import TopicPartition
from pipeline.records.batch import iterate_headers
from tests.support.copies import read_logs, read_report

LIVE = "east"
FIRST_HOUR_MS = 1_700_002_800_000
HOURS = ["2023-11-14T23:00:00Z", "2023-11-15T00:00:00Z", "2023-11-15T01:00:00Z"]
RECORDS_PER_BATCH = 7
BATCHES_PER_HOUR = 2
DEADLINE_S = 240
CRC_POSITION = 17
CRC_START = 21

Batches = list[bytearray]
Forgery = Callable[[Batches], Batches]


def leave_one_out(batches: Batches) -> Batches:
    return batches[:2] + batches[3:]


def change_one(batches: Batches) -> Batches:
    """A byte of a payload, with a checksum that fits, so that no broker notices."""
    batches[2][-2] ^= 1
    batches[2][CRC_POSITION:CRC_START] = crc32c.crc32c(bytes(batches[2][CRC_START:])).to_bytes(4, "big")
    return batches


def copy_all_but_the_last(batches: Batches) -> Batches:
    return batches[:-1]


def copy_all(batches: Batches) -> Batches:
    return batches


FORGERIES: dict[str, Forgery] = {
    "lost": leave_one_out,
    "changed": change_one,
    "late": copy_all_but_the_last,
    "torn": copy_all,
    "whole": copy_all,
}


async def publish(cluster: Cluster, topic: str) -> Batches:
    """Batches of so many records, so many in each hour."""
    await create_topics(cluster, [NewTopic(name=topic, partitions=1)])
    async with open_audited_producer(
        cluster,
        ProducerConfig(),
        datacenter=LIVE,
        host="tests",
        clock=wall_clock,
        rng=Random(topic),
        interval_s=1,
    ) as producer:
        for number in range(len(HOURS) * BATCHES_PER_HOUR):
            timestamp_ms = FIRST_HOUR_MS + number * 3_600_000 // BATCHES_PER_HOUR
            for _ in range(RECORDS_PER_BATCH):
                await producer.send(topic, b"value", timestamp_ms=timestamp_ms)
            await producer.flush()
    partition = TopicPartition(topic, 0)
    log = (await read_logs(cluster, [partition]))[partition]
    return [log[position : position + header.size_bytes] for position, header in iterate_headers(log)]


async def append(hub: Cluster, topic: str, batches: Batches) -> None:
    replica = TopicPartition(topic, 0)
    result = await raw_produce(hub, {replica: b"".join(batches)}, keep_offsets=True, timeout_s=DEADLINE_S)
    assert result[replica].error is None


async def copy(live: Cluster, hub: Cluster, topic: str, forge: Forgery) -> Batches:
    """What a mirror would do, but for the forgery."""
    batches = await publish(live, topic)
    source = SourcePartition(cluster=LIVE, partition=TopicPartition(topic, 0), topic_id=(await live.topic(topic)).id)
    journal = TableJournal(hub, lambda _records: None)
    await journal.open()
    await journal.propose([Proposal(source=source, replica_topic=topic)], clock=wall_clock, rng=Random(1))
    await create_topics(hub, [NewTopic(name=topic, partitions=1, configs={"mirror.source": LIVE})])
    await append(hub, topic, forge([bytearray(batch) for batch in batches]))
    return batches


def lose_the_end_of_the_log(directory: Path) -> None:
    """What a power failure does to a batch that was acknowledged but not on the disk."""
    (segment,) = directory.glob("*.log")
    data = segment.read_bytes()
    *_, (position, _header) = iterate_headers(data)
    segment.write_bytes(data[:position])


def found(report: dict[str, Any]) -> dict[str, list[tuple[str, str, int]]]:
    """The findings by hour: at which stage, what, how many records."""
    return {
        hour["hour"]: [(one["at"], one["status"], one["records"]) for one in hour["findings"]]
        for hour in report["hours"]
    }


async def until_found(
    datacenters: Datacenters, topic: str, hour: int | None = None, *findings: tuple[str, str, int]
) -> None:
    """Until the report says that of the hour, and that all others are exact, at every step of the way."""
    expected = {name: list(findings) if number == hour else [] for number, name in enumerate(HOURS)}
    report: dict[str, Any] | None = None
    others = [name for number, name in enumerate(HOURS) if number != hour]
    with trio.move_on_after(DEADLINE_S):
        while report is None or found(report) != expected or not is_settled(report) or not are_exact(report, others):
            await trio.sleep(0.2)
            report = await read_report(datacenters, topic)
    assert report is not None
    assert found(report) == expected, f"\n{render(report)}"
    assert are_exact(report, others), f"\n{render(report)}"
    assert report["exact"] is (hour is None)
    places = [(one["cluster"], one["source"], one["replica"]) for hour in report["hours"] for one in hour["findings"]]
    assert places == [(LIVE, f"{topic}-0", f"{topic}-0")] * len(findings)


def are_exact(report: dict[str, Any], hours: list[str]) -> bool:
    return all(hour["status"] == "exact" for hour in report["hours"] if hour["hour"] in hours)


def is_settled(report: dict[str, Any]) -> bool:
    return report["complete"] and all(
        list(hour["stages"]) == ["produced", "live", "replica"] for hour in report["hours"]
    )


@pytest.mark.long
async def test_the_audit_names_mirror_faults_and_disk_losses_with_place_and_hour(tmp_path: Path) -> None:
    async with (
        Datacenters(tmp_path, ["none"]) as datacenters,
        connected(datacenters.bootstrap[LIVE], None, "test") as live,
        connected(datacenters.bootstrap[HUB], None, "test") as hub,
    ):
        originals = {topic: await copy(live, hub, topic, forge) for topic, forge in FORGERIES.items()}
        await until_found(datacenters, "whole")
        await until_found(datacenters, "torn")
        await until_found(datacenters, "lost", 1, ("replica", "missing", RECORDS_PER_BATCH))
        await until_found(datacenters, "changed", 1, ("replica", "changed", 0))
        await until_found(datacenters, "late", 2, ("replica", "pending", RECORDS_PER_BATCH))
        await append(hub, "late", originals["late"][-1:])
        await until_found(datacenters, "late")

        broker = datacenters.brokers[LIVE]
        broker.kill()
        await broker.wait()
        lose_the_end_of_the_log(broker.directory / "logs" / "torn-0")
        await datacenters.start_unit(broker)
        lost = ("live", "missing", RECORDS_PER_BATCH), ("replica", "extra", RECORDS_PER_BATCH)
        await until_found(datacenters, "torn", 2, *lost)
        await until_found(datacenters, "whole")
