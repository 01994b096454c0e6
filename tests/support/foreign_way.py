"""The way of a topic from a cluster whose brokers do not count to a hub of ours, with all counters and the judge."""

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from pipeline.audit.counting.broker_counter import BrokerCounter, BrokerLife
from pipeline.audit.counting.checkpoints import PartitionCheckpoints
from pipeline.audit.counting.counted_life import new_life, reporting
from pipeline.audit.counting.mirror_counter import MirrorCounter
from pipeline.audit.counting.publisher import open_publisher
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.audit.counting.reader_service import ReaderService
from pipeline.audit.events.report import CountReport
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, MirroredTopic, Route
from pipeline.audit.ledger.ledger import Ledger
from pipeline.client.cluster.cluster import Cluster
from pipeline.log.files import DiskFiles
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.records.tally import DEFAULT_WINDOW_MS
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import connected_to, mirror_settings
from tests.support.reported_hours import read_reports

INTERVAL_MS = 100
INTERVAL_S = INTERVAL_MS / 1000
TIMEOUT_S = 180
POLL_S = 0.1
LIVE, HUB = "kafka", "hub"


@asynccontextmanager
async def counting_hub(directory: Path, **settings: Any) -> AsyncIterator[Cluster]:
    """A hub whose broker counts. Dots of settings are underscores."""
    life = BrokerLife(broker_id=1, host="hub-1", started_ms=clock(), interval_ms=INTERVAL_MS)
    checkpoints = PartitionCheckpoints([directory], DiskFiles())
    counter = BrokerCounter(HUB, DEFAULT_WINDOW_MS, checkpoints, clock, life)
    async with (
        serving_cluster(directory, observer=counter, **settings) as hub,
        open_publisher(hub, counter, clock=clock, rng=Random()) as publisher,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(publisher.run, INTERVAL_S)
        yield hub
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def reading(
    source: Cluster, reports: Cluster, topics: Sequence[str] = (".*",), **settings: object
) -> AsyncIterator[ReaderService]:
    """A reader until the block ends as suddenly as a crash."""
    given = {
        "datacenter": LIVE,
        "bootstrap.servers": "given:1",
        "topics": list(topics),
        "http.listen": "127.0.0.1:0",
        "audit.interval.ms": INTERVAL_MS,
        "refresh.interval.ms": 100,
        "retry.backoff.ms": 20,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    config = ReaderConfig.from_settings(given)
    service = ReaderService(config, source, reports, host=socket.gethostname(), clock=clock, rng=Random())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        yield service
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def counted_mirror(source: Cluster, hub: Cluster, topics: Sequence[str]) -> AsyncIterator[MirrorService]:
    """A mirror that counts, until the block ends."""
    counter = MirrorCounter(
        instance=new_life(Random()), host="m", window_ms=DEFAULT_WINDOW_MS, interval_ms=INTERVAL_MS, clock=clock
    )
    service = MirrorService(
        MirrorConfig.from_settings({**mirror_settings(LIVE), "topics": list(topics)}),
        connected_to({LIVE: source}),
        hub,
        clock=clock,
        rng=Random(1),
        metrics=MirrorMetrics(CollectorRegistry()),
        observer=counter,
    )
    async with (
        reporting(counter, hub, interval_s=INTERVAL_S, clock=clock, rng=Random()),
        trio.open_nursery() as nursery,
    ):
        await nursery.start(service.run)
        yield service
        nursery.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class ForeignWay:
    """Clusters of a way, and the partitions of its topics, which are mirrored under their own names."""

    source: Cluster
    hub: Cluster
    partitions: Sequence[TopicPartition]

    async def judge(self, later_ms: int = 0) -> dict[int, AuditedHour]:
        """The verdict on each hour of the one topic, on what both audit topics have now, at a later time."""
        now_ms = clock() + later_ms
        reports = [report for cluster in (self.source, self.hub) for report in await read_reports(cluster)]
        return self.judge_reports(reports, now_ms)

    def judge_reports(self, reports: Iterable[CountReport], now_ms: int) -> dict[int, AuditedHour]:
        """The verdict on each hour of the one topic, if these are all reports that there are at this time."""
        ledger = Ledger(settle_ms=0)
        ledger.apply_all(reports)
        (topic,) = {partition.topic for partition in self.partitions}
        count = len(self.partitions)
        expected = Expectations(
            live_clusters=[LIVE],
            replica_cluster=HUB,
            partitions={(LIVE, topic): count, (HUB, topic): count},
            mirrored=[MirroredTopic(cluster=LIVE, topic=topic, replica_topic=topic)],
            routes=[Route(cluster=LIVE, source=each, replica=each) for each in self.partitions],
            read_to_ms={LIVE: now_ms, HUB: now_ms},
        )
        judgement = Judge(ledger, grace_ms=0, pending_max_ms=3_600_000).judge(expected, now_ms)
        return {hour.hour_ms: hour for hour in judgement.hours(topic)}

    async def wait_for(self, status: str, hours: int) -> dict[int, AuditedHour]:
        """Wait until there are so many hours, and the worst of them has this status."""

        def is_reached(statuses: Sequence[str]) -> bool:
            return len(statuses) == hours and status in statuses and {*statuses} <= {"exact", status}

        return await self._wait(status, is_reached)

    async def wait_for_each(self, *statuses: str) -> dict[int, AuditedHour]:
        """Wait until the hours have these statuses, one after the other."""
        return await self._wait(", ".join(statuses), lambda found: found == [*statuses])

    async def _wait(self, what: str, is_reached: Callable[[Sequence[str]], bool]) -> dict[int, AuditedHour]:
        found: dict[int, AuditedHour] = {}
        try:
            with trio.fail_after(TIMEOUT_S):
                while True:
                    found = await self.judge()
                    if is_reached([str(hour.status) for _, hour in sorted(found.items())]):
                        return found
                    await trio.sleep(POLL_S)
        except trio.TooSlowError:
            raise AssertionError(f"not {what}: {list(found.values())}") from None
