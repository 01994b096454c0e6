"""Three datacenters of real processes under kills and pauses, while the test removes, doubles and changes records.

The test does so behind the back of the system: in segment files of a stopped broker, with checksums that fit, and by
copies that are forged. At the end the differences of the report equal exactly the list of these deeds.
"""

import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import trio

from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.lives import open_audited_producer
from pipeline.audit.counting.publisher import publish_reports
from pipeline.cli.child_services import ServiceUnit
from pipeline.cli.demo.datacenters import HUB, LIVE, Datacenters
from pipeline.cli.terminal.connect import addresses, wall_clock
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.log.files import DiskFiles
from pipeline.mirror.journals.table import Proposal, SourcePartition
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.model import TopicPartition
from pipeline.records.batch import iterate_headers
from pipeline.records.tally import HOUR_MS
from tests.support.audited.counters import load_reports
from tests.support.audited.forgeries import (
    Forgery,
    change_one,
    double_one,
    lose_one,
    lose_one_and_double_one,
    reorder,
)
from tests.support.audited.table import LoadedTable
from tests.support.copies import read_logs, read_report

FIRST_HOUR_MS = 1_700_002_800_000
HOURS = ("2023-11-14T23:00:00Z", "2023-11-15T00:00:00Z", "2023-11-15T01:00:00Z")
RECORDS = 7
BATCHES_PER_HOUR = 3
RECORDS_OF_A_TOPIC = len(HOURS) * BATCHES_PER_HOUR * RECORDS
MIRRORED = "orders"
FOREIGN = "orders-foreign"
DEADLINE_S = 240
SHORT_S = 12
LONG_S = 540
PAUSE_S = 1.5
RETRY_S = 0.2


class Difference(NamedTuple):
    """A difference as the report names it, or as the test made it."""

    topic: str
    cluster: str
    source: str
    hour: str
    at: str
    status: str
    records: int


FORGED: Mapping[str, tuple[Forgery, str, int]] = {
    "forged-lost": (lose_one, "missing", RECORDS),
    "forged-doubled": (double_one, "extra", RECORDS),
    "forged-changed": (change_one, "changed", 0),
    "forged-exchanged": (lose_one_and_double_one, "changed", 0),
    "forged-reordered": (reorder, "changed", 0),
}
"""Topics that the test copies instead of the mirror, and what it does to the copy."""
EDITED: Mapping[str, tuple[Forgery, str, int]] = {
    "orders-lost": (lose_one, "missing", RECORDS),
    "orders-changed": (change_one, "changed", 0),
}
"""Topics whose segments the test edits at a live broker before the mirror has copied them."""


@dataclass(eq=False)
class Story:
    """The datacenters, and what the test did behind their back."""

    datacenters: Datacenters
    rng: Random
    deeds: set[Difference] = field(default_factory=set)
    killed: dict[str, int] = field(default_factory=dict)
    lives: int = 0

    @asynccontextmanager
    async def cluster(self, name: str) -> AsyncGenerator[Cluster]:
        """A cluster, once its broker has answered: it may have been killed a moment ago."""
        config = ClientConfig(bootstrap=addresses(self.datacenters.bootstrap[name]), client_id="story")
        async with open_cluster(config) as cluster:
            with trio.fail_after(DEADLINE_S):
                while True:
                    try:
                        await cluster.refresh()
                        break
                    except UNREACHABLE:
                        await trio.sleep(RETRY_S)
            yield cluster

    @asynccontextmanager
    async def counted(self, name: str, linger_ms: int = 5) -> AsyncGenerator[Producer]:
        """A producer of a live datacenter that counts; its life ends cleanly."""
        self.lives += 1
        async with (
            self.cluster(name) as cluster,
            open_audited_producer(
                cluster,
                ProducerConfig(delivery_timeout_ms=120_000, max_block_ms=120_000, linger_ms=linger_ms),
                datacenter=name,
                host="story",
                clock=wall_clock,
                rng=Random(f"{name} {self.lives}"),
                interval_s=1,
            ) as producer,
        ):
            yield producer

    # Traffic and faults

    async def write(self, name: str, ended: trio.Event) -> None:
        """Have lives of producers that count write, one after another, beside a producer that does not."""
        async with self.cluster(name) as cluster:
            await create_topics(cluster, [NewTopic(name=topic, partitions=2) for topic in (MIRRORED, FOREIGN)])
            config = ProducerConfig(delivery_timeout_ms=120_000, max_block_ms=120_000)
            async with open_producer(cluster, config, clock=wall_clock, rng=Random(name)) as foreign:
                while not ended.is_set():
                    async with self.counted(name) as producer:
                        for _ in range(20):
                            await self._send(producer, MIRRORED)
                            await self._send(foreign, MIRRORED)
                            await self._send(foreign, FOREIGN)
                            await trio.sleep(0.02)

    async def _send(self, producer: Producer, topic: str) -> None:
        timestamp_ms = FIRST_HOUR_MS + self.rng.randrange(len(HOURS) * HOUR_MS)
        await producer.send(topic, b"%032x" % self.rng.getrandbits(128), timestamp_ms=timestamp_ms)

    async def break_things(self) -> None:
        """Kill and pause one process after another, until cancelled."""
        found = self.datacenters
        units = [*found.brokers.values(), found.mirror, found.audit]
        while True:
            unit = self.rng.choice(units)
            if self.rng.random() < 0.5:
                with trio.CancelScope(shield=True):
                    await self.kill(unit)
                    await found.start_unit(unit)
            else:
                await self._pause(unit)
            await trio.sleep(0.5)

    async def kill(self, unit: ServiceUnit) -> None:
        self.killed[unit.name] = self.killed.get(unit.name, 0) + 1
        unit.kill()
        await unit.wait()

    async def _pause(self, unit: ServiceUnit) -> None:
        pid = self.datacenters.pids[unit.name]
        os.kill(pid, signal.SIGSTOP)
        try:
            await trio.sleep(PAUSE_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    # Deeds

    async def publish(self, name: str, topic: str) -> list[bytearray]:
        """Write so many batches in each hour; return them as they lie in the log."""
        async with self.cluster(name) as cluster:
            await create_topics(cluster, [NewTopic(name=topic, partitions=1)])
            # Until `flush`, so that the records between two of them are one batch, however busy the machine is.
            async with self.counted(name, linger_ms=60_000) as producer:
                for number in range(len(HOURS) * BATCHES_PER_HOUR):
                    timestamp_ms = FIRST_HOUR_MS + number * HOUR_MS // BATCHES_PER_HOUR
                    for _ in range(RECORDS):
                        await producer.send(topic, b"%06d" % number, timestamp_ms=timestamp_ms)
                    await producer.flush()
            partition = TopicPartition(topic, 0)
            log = (await read_logs(cluster, [partition]))[partition]
        return batches_of(log)

    def did(self, topic: str, at: str, status: str, records: int, *, hour: int = 0, name: str = LIVE[0]) -> None:
        """Take note of a deed."""
        self.deeds.add(Difference(topic, name, f"{topic}-0", HOURS[hour], at, status, records))

    async def forge(self, topic: str, forgery: Forgery) -> None:
        """Copy a topic as a mirror would, but for the forgery."""
        batches = await self.publish(LIVE[0], topic)
        partition = TopicPartition(topic, 0)
        async with self.cluster(LIVE[0]) as live, self.cluster(HUB) as hub:
            source = SourcePartition(cluster=LIVE[0], partition=partition, topic_id=(await live.topic(topic)).id)
            journal = TableJournal(hub, lambda _records: None)
            await journal.open()
            await journal.propose([Proposal(source=source, replica_topic=topic)], clock=wall_clock, rng=Random(1))
            await create_topics(hub, [NewTopic(name=topic, partitions=1, configs={"mirror.source": LIVE[0]})])
            copied = forgery({0: batches})[0]
            result = await raw_produce(hub, {partition: b"".join(copied)}, keep_offsets=True, timeout_s=DEADLINE_S)
            assert result[partition].error is None

    async def edit(self, topics: Mapping[str, Forgery], name: str = LIVE[0]) -> None:
        """Edit segments of a live broker that the mirror has not copied."""
        found = self.datacenters
        await self.kill(found.mirror)
        for topic in topics:
            await self.publish(name, topic)
        await self._until_counted(name, topics)
        await self._edit_segments(name, topics)
        await found.start_unit(found.mirror)

    async def _edit_segments(self, name: str, topics: Mapping[str, Forgery]) -> None:
        """Stop a broker, edit the segments of topics, and start it again."""
        broker = self.datacenters.brokers[name]
        await self.kill(broker)
        for topic, forgery in topics.items():
            (segment,) = (broker.directory / "logs" / f"{topic}-0").glob("*.log")
            segment.write_bytes(b"".join(forgery({0: batches_of(segment.read_bytes())})[0]))
        await self.datacenters.start_unit(broker)

    async def load_what_was_edited(self, topic: str, forgery: Forgery, root: Path) -> None:
        """Edit a segment of the hub that was counted, and load what is there then."""
        await self.publish(LIVE[0], topic)
        await self.until(topic, lambda report: stages_of(report) == {"produced", "live", "replica"})
        await self._until_counted(HUB, [topic])
        await self._edit_segments(HUB, {topic: forgery})
        partition = TopicPartition(topic, 0)
        async with self.cluster(HUB) as hub:
            log = (await read_logs(hub, [partition]))[partition]
            table = LoadedTable(str(root), topic)
            await trio.to_thread.run_sync(table.load, {0: batches_of(log)}, wall_clock())
            await publish_reports(hub, load_reports(table, wall_clock()), clock=wall_clock, rng=Random(topic))

    async def lose_the_end(self, topic: str) -> None:
        """Remove the last batch of a live log, as a power failure does to what is not on the disk."""
        found = self.datacenters
        await self.publish(LIVE[0], topic)
        await self.until(topic, lambda report: stages_of(report) == {"produced", "live", "replica"})
        broker = found.brokers[LIVE[0]]
        await self.kill(broker)
        (segment,) = (broker.directory / "logs" / f"{topic}-0").glob("*.log")
        data = segment.read_bytes()
        *_, (position, _header) = iterate_headers(data)
        segment.write_bytes(data[:position])
        await found.start_unit(broker)
        self.did(topic, "live", "missing", RECORDS, hour=2)
        self.did(topic, "replica", "extra", RECORDS, hour=2)

    async def _until_counted(self, name: str, topics: Iterable[str]) -> None:
        """Until the broker has reported all of these topics, and written its checkpoints."""
        logs = self.datacenters.brokers[name].directory / "logs"
        checkpoints = PartitionCheckpoints([logs], DiskFiles())
        with trio.fail_after(DEADLINE_S):
            for topic in topics:
                while True:
                    saved = checkpoints.read(TopicPartition(topic, 0))
                    if saved is not None and saved.up_to == RECORDS_OF_A_TOPIC:
                        break
                    await trio.sleep(0.1)

    async def until(self, topic: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        report: dict[str, Any] | None = None
        with trio.fail_after(DEADLINE_S):
            while report is None or not is_so(report):
                await trio.sleep(0.2)
                report = await read_report(self.datacenters, topic)
        return report


def batches_of(log: bytes | bytearray) -> list[bytearray]:
    return [bytearray(log[at : at + header.size_bytes]) for at, header in iterate_headers(log)]


def stages_of(report: Mapping[str, Any]) -> set[str]:
    stages = [set(hour["stages"]) - {"mirrored"} for hour in report["hours"]]
    return set.intersection(*stages) if stages else set()


def differences(report: Mapping[str, Any]) -> set[Difference]:
    return {
        Difference(hour["topic"], one["cluster"], one["source"], hour["hour"], one["at"], one["status"], one["records"])
        for hour in report["hours"]
        for one in hour["findings"]
        if one["status"] not in ("exact", "pending", "unknown")
    }


async def tell(tmp_path: Path, duration_s: float) -> None:
    async with Datacenters(tmp_path, ["orders.*"]) as datacenters:
        story = Story(datacenters, Random(17))
        ended = trio.Event()
        async with trio.open_nursery() as nursery:
            for name in LIVE:
                nursery.start_soon(story.write, name, ended)
            with trio.move_on_after(duration_s):
                await story.break_things()
            ended.set()
        for topic, (forgery, status, records) in FORGED.items():
            await story.forge(topic, forgery)
            story.did(topic, "replica", status, records)
        await story.edit({topic: forgery for topic, (forgery, _, _) in EDITED.items()})
        for topic, (_, status, records) in EDITED.items():
            story.did(topic, "replica", status, records)
        await story.lose_the_end("orders-torn")
        await story.load_what_was_edited("orders-loaded", change_one, tmp_path / "table")
        story.did("orders-loaded", "loaded", "changed", 0)
        topics = [MIRRORED, FOREIGN, *FORGED, *EDITED, "orders-torn", "orders-loaded"]
        for topic in topics:
            expected = {deed for deed in story.deeds if deed.topic == topic}
            report: dict[str, Any] = {"hours": []}
            try:
                report = await story.until(topic, lambda report, expected=expected: is_told(report, expected))  # type: ignore[misc]
            except trio.TooSlowError:
                report = await read_report(datacenters, topic) or report
                assert differences(report) == expected, report
                assert is_told(report, expected), report
        assert story.killed


def is_told(report: Mapping[str, Any], expected: set[Difference]) -> bool:
    """True if the report has these differences, and all other hours are exact."""
    differing = {deed.hour for deed in expected}
    return (
        differences(report) == expected
        and {hour["hour"] for hour in report["hours"]} == set(HOURS)
        and all(hour["status"] == "exact" for hour in report["hours"] if hour["hour"] not in differing)
    )


@pytest.mark.timeout(600)
async def test_the_report_names_what_was_done_behind_the_back_of_the_system(tmp_path: Path) -> None:
    await tell(tmp_path, SHORT_S)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_the_report_names_it_after_ten_minutes_of_faults(tmp_path: Path) -> None:
    await tell(tmp_path, LONG_S)
