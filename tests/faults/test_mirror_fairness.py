"""Fairness of a mirror: a topic that is two days behind is copied beside live ones, whose records arrive in time.

Each cluster is one broker, which leads all partitions: backlog and live topics share its requests, its disk and its
core at either end. Where the way to the hub is slow, `fetch.max.bytes` must fit its rate: docs/mirror/wan-and-speed.md.
"""

import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import confluent_kafka
import httpx
import pytest
import trio

from pipeline.cli.child_services import ServiceUnit, Unit, stop_in_reverse
from pipeline.cli.demo.datacenters import HUB, LIVE, Datacenters
from pipeline.cli.terminal.connect import connected, wall_clock
from pipeline.cli.terminal.settings import write_settings
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.model import TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses
from tests.support.cluster.client import COMMON
from tests.support.foreign_producer import ForeignProducer
from tests.support.links import Links, linked
from tests.support.mirror_site import MIRROR_CLIENT_ID
from tests.support.mirror_watch import ANSWER_TIMEOUT_S, read_status

SOURCE = LIVE[0]
LIVE_TOPICS = ["clicks", "likes", "orders", "visits"]
LIVE_PARTITIONS = 2
RECORDS_PER_S = 500
"""Of each live topic."""
OLD_TOPIC = "replay"
OLD_PARTITIONS = [TopicPartition(OLD_TOPIC, number) for number in range(4)]
MIB = 1 << 20
SLOW = 10 * MIB
BATCH_BYTES = 900_000
BATCHES_OF_A_REQUEST = 4
TWO_DAYS_MS = 2 * 24 * 3600 * 1000
QUIET_S = 5.0
"""Time in which the live topics are copied alone."""
SAMPLE_S = 0.1
CONSUME_S = 0.02
"""Time for which the consumer gathers records, by which it overstates delays."""
LEAST_COPYING_S = 2.0
"""Time that copying the backlog must take at least: a shorter one shows nothing."""
DEADLINE_S = 90
P99_S = 2.0


class Arrivals:
    """A consumer of confluent-kafka at the hub in a thread: the delay of each record since its producer got it."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "arrivals", "enable.auto.commit": False, **COMMON}
        self._consumer = confluent_kafka.Consumer(settings)
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, number, 0) for topic in topics for number in range(LIVE_PARTITIONS)]
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.delays: list[tuple[float, float]] = []
        """Time at which each record was given to its producer, and its delay, both in seconds."""

    def stop(self) -> None:
        """End, and close the consumer."""
        self._ended.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> list[float]:
        """Return the delays of the records that were given to their producers between two times of `time.time()`."""
        return [delay for given_at, delay in list(self.delays) if begin <= given_at < end]

    def _run(self) -> None:
        while not self._ended.is_set():
            messages = self._consumer.consume(100, timeout=CONSUME_S)
            now = time.time()
            for message in messages:
                if message.error() is None:
                    given_at = message.timestamp()[1] / 1000
                    self.delays.append((given_at, now - given_at))
        self._consumer.close()


@dataclass(slots=True)
class Samples:
    """Lags that the mirror reports. An unknown lag of a live topic counts as infinite."""

    live_s: list[float] = field(default_factory=list)
    old: list[int | None] = field(default_factory=list)

    def note(self, document: dict[str, Any]) -> None:
        """Take in a status."""
        flows = {flow["name"]: flow for flow in document["flows"]}
        seconds = flows["live"]["lag_seconds"]
        self.live_s.append(math.inf if seconds is None else seconds)
        self.old.append(flows["old"]["lag"])

    @property
    def is_old_copied(self) -> bool:
        """True if the latest status has no backlog."""
        return bool(self.old) and self.old[-1] == 0


def p99(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def flow(name: str, topics: Sequence[str]) -> dict[str, Any]:
    return {"name": name, "source": SOURCE, "topics": list(topics)}


@dataclass(frozen=True, slots=True)
class Ways:
    """Bytes per second that the mirror can receive from the source and send to the hub, and what goes with them."""

    source: float
    hub: float
    old_bytes: int
    """Size of the backlog."""
    fetch_max_bytes: int = 8 * MIB
    """`fetch.max.bytes` of the mirror. The value here is its default."""


@dataclass(frozen=True, slots=True)
class Site:
    """A source, a hub and a mirror between them, all processes."""

    source: str
    hub: str
    mirror: ServiceUnit

    async def apply(self, path: Path, *flows: dict[str, Any]) -> None:
        """Have the mirror copy these flows instead of its own."""
        listen = self.mirror.url.removeprefix("http://")
        write_settings(path, {**self.mirror.settings, "http.listen": listen, "flows": list(flows)})
        command = [sys.executable, "-m", "pipeline", "mirror", "apply", "--mirror", self.mirror.url]
        await trio.run_process([*command, "--config", str(path)], capture_stdout=True)


@asynccontextmanager
async def running_site(directory: Path, ways: Ways) -> AsyncIterator[Site]:
    datacenters = Datacenters(directory, [])
    async with AsyncExitStack() as stack:
        bootstrap: dict[str, str] = {}
        brokers: list[Unit] = []
        for name, rate in ((SOURCE, ways.source), (HUB, ways.hub)):
            links, broker = Links(MIRROR_CLIENT_ID, rate), datacenters.brokers[name]
            (listener,) = parse_addresses(datacenters.bootstrap[name])
            (proxy,) = await stack.enter_async_context(linked(links, [listener]))
            bootstrap[name] = str(proxy if rate < math.inf else listener)
            settings = {**broker.settings, "advertised.listeners": f"PLAINTEXT://{bootstrap[name]}"}
            brokers.append(replace(broker, settings=settings))
        settings = {
            "destination.bootstrap.servers": bootstrap[HUB],
            "sources": [{"name": SOURCE, "bootstrap.servers": bootstrap[SOURCE]}],
            "flows": [flow("live", LIVE_TOPICS)],
            "fetch.max.bytes": ways.fetch_max_bytes,
        }
        mirror = ServiceUnit("mirror", "mirror", directory / "mirror", settings)
        stages: list[list[Unit]] = [[datacenters.zookeepers[name] for name in (SOURCE, HUB)], brokers]
        try:
            for stage in stages:
                async with trio.open_nursery() as nursery:
                    for unit in stage:
                        nursery.start_soon(unit.start)
            async with connected(bootstrap[SOURCE], None, "test") as cluster:
                live = [NewTopic(name=topic, partitions=LIVE_PARTITIONS) for topic in LIVE_TOPICS]
                await create_topics(cluster, [*live, NewTopic(name=OLD_TOPIC, partitions=len(OLD_PARTITIONS))])
            await mirror.start()
            yield Site(bootstrap[SOURCE], bootstrap[HUB], mirror)
        finally:
            await stop_in_reverse([*stages, [mirror]])


async def write_backlog(bootstrap: str, size: int) -> None:
    """Append records that are two days old."""
    builder = BatchBuilder(Codec.NONE, BATCH_BYTES)
    while builder.append(None, b"x" * 1000, (), wall_clock() - TWO_DAYS_MS):
        pass
    data = bytes(builder.build()) * BATCHES_OF_A_REQUEST
    async with connected(bootstrap, None, "test") as cluster:
        for _ in range(size // (len(data) * len(OLD_PARTITIONS))):
            batches = dict.fromkeys(OLD_PARTITIONS, data)
            results = await raw_produce(cluster, batches, keep_offsets=False, timeout_s=DEADLINE_S)
            assert not any(result.error for result in results.values()), results


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(Ways(math.inf, math.inf, 1024 * MIB), id="fast"),
        pytest.param(Ways(SLOW, math.inf, 128 * MIB), id="slow from the source"),
        pytest.param(Ways(math.inf, SLOW, 128 * MIB, fetch_max_bytes=2 * MIB), id="slow to the hub"),
    ],
)
async def test_a_topic_two_days_behind_does_not_delay_live_topics(tmp_path: Path, ways: Ways) -> None:
    with unwrapped_errors():
        async with running_site(tmp_path, ways) as site:
            await write_backlog(site.source, ways.old_bytes)
            await check_fairness(site, tmp_path / "both.toml")


async def check_fairness(site: Site, path: Path) -> None:
    samples = Samples()
    producers = [
        ForeignProducer(site.source, topic, partitions=LIVE_PARTITIONS, records_per_s=RECORDS_PER_S)
        for topic in LIVE_TOPICS
    ]
    arrivals = Arrivals(site.hub, LIVE_TOPICS)
    try:
        for producer in producers:
            producer.start()
        with trio.fail_after(DEADLINE_S):
            while len(arrivals.delays) < RECORDS_PER_S * len(producers):
                await trio.sleep(SAMPLE_S)
        quiet_from = time.time()
        await trio.sleep(QUIET_S)
        await site.apply(path, flow("live", LIVE_TOPICS), flow("old", [OLD_TOPIC]))
        selected_at = time.time()
        with trio.fail_after(DEADLINE_S):
            async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
                while not samples.is_old_copied:
                    await trio.sleep(SAMPLE_S)
                    document = await read_status(client, site.mirror.url)
                    assert document is not None, "the mirror does not answer"
                    samples.note(document)
        copied_at = time.time()
        for producer in producers:
            await trio.to_thread.run_sync(producer.stop)
        sent = sum(producer.sent for producer in producers)
        with trio.fail_after(DEADLINE_S):
            while len(arrivals.delays) < sent:
                await trio.sleep(SAMPLE_S)
    finally:
        for producer in producers:
            await trio.to_thread.run_sync(producer.stop, abandon_on_cancel=True)
        await trio.to_thread.run_sync(arrivals.stop, abandon_on_cancel=True)
    assert not any(producer.failed for producer in producers)
    alone, beside = arrivals.between(quiet_from, selected_at), arrivals.between(selected_at, copied_at)
    took_s = copied_at - selected_at
    behind = sum(bool(lag) for lag in samples.old)
    print(
        f"copied in {took_s:.1f} s, behind in {behind} of {len(samples.old)} samples; delay of "
        f"{len(beside)} live records: p99 {p99(beside):.3f} s, most {max(beside):.3f} s "
        f"(before: p99 {p99(alone):.3f} s, most {max(alone):.3f} s); "
        f"lag reported: p99 {p99(samples.live_s):.3f} s, most {max(samples.live_s):.3f} s"
    )
    assert took_s > LEAST_COPYING_S, "the backlog is too small to show anything"
    assert behind > len(samples.old) / 2, "the mirror had no backlog for most of the time"
    assert len(beside) > took_s * RECORDS_PER_S * len(producers) / 2, "the live topics got too few records"
    assert p99(beside) < P99_S
    assert p99(samples.live_s) < P99_S
