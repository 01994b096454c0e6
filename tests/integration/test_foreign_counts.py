"""Readers of headers, mirrors and consumers that count, on real brokers: what they report equals the log."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.audit.counting.counted_consumers import (
    counted_consumption,
    open_counted_connector,
    open_counted_group_consumer,
)
from pipeline.audit.counting.counted_life import reporting
from pipeline.audit.counting.mirror_counter import MirrorCounter
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.audit.counting.reader_service import ReaderService
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset, ProducerConfig
from pipeline.client.connector.config import ConnectorConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.group.config import GroupConfig
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.service import MirrorService
from pipeline.model import TopicPartition
from pipeline.processes import free_port
from pipeline.records.tally import HOUR_MS
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import connected_to, mirror_settings
from tests.support.reported_hours import hours_in, hours_of, read_headers, spans_of, wait_for_reports

pytestmark = pytest.mark.long

DEADLINE_S = 60
CLICKS = [TopicPartition("clicks", number) for number in range(2)]
FIRST_HOUR_MS = clock() // HOUR_MS * HOUR_MS - 3 * HOUR_MS
INTERVAL_S = 0.1


async def publish(cluster: Cluster, count: int, *, first: int = 0, partition: int = 0) -> None:
    """Records of some hours, a few of each batch."""
    async with open_producer(cluster, ProducerConfig(linger_ms=0), clock=clock, rng=Random(first)) as producer:
        for number in range(first, first + count):
            await producer.send(
                "clicks", b"value %d" % number, partition=partition, timestamp_ms=FIRST_HOUR_MS + number % 3 * HOUR_MS
            )
            if number % 3 == 2:
                await producer.flush()


@asynccontextmanager
async def east(directory: Path, **settings: Any) -> AsyncIterator[Cluster]:
    """A cluster whose brokers do not count, with a topic."""
    async with serving_cluster(directory, group_initial_rebalance_delay_ms=0, **settings) as cluster:
        await create_topics(cluster, [NewTopic(name="clicks", partitions=len(CLICKS), replication_factor=1)])
        yield cluster


@asynccontextmanager
async def counting(source: Cluster, reports: Cluster | None = None, **settings: Any) -> AsyncIterator[ReaderService]:
    """A reader until the block ends as suddenly as a crash."""
    given = {
        "datacenter": "east",
        "bootstrap.servers": "given:1",
        "http.listen": "127.0.0.1:0",
        "audit.interval.ms": 100,
        "refresh.interval.ms": 100,
        "retry.backoff.ms": 20,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    config = ReaderConfig.from_settings(given)
    service = ReaderService(config, source, reports or source, host="here", clock=clock, rng=Random())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        yield service
        nursery.cancel_scope.cancel()


async def expected(cluster: Cluster, partitions: Sequence[TopicPartition] = CLICKS) -> set[Any]:
    return {hour for each in partitions for hour in hours_in(each, await read_headers(cluster, each))}


async def wait_for_hours(cluster: Cluster, tier: Tier, wanted: set[Any], name: str = "") -> list[CountReport]:
    return await wait_for_reports(cluster, lambda reports: hours_of(reports, tier, name) == wanted)


async def test_a_reader_reports_what_the_logs_hold_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    async with east(tmp_path) as cluster:
        await publish(cluster, 20)
        async with counting(cluster):
            await wait_for_hours(cluster, Tier.BROKER, await expected(cluster))
        await publish(cluster, 10, first=20)
        await publish(cluster, 10, first=30, partition=1)
        async with counting(cluster) as service, counting(cluster):  # two readers at once change nothing
            reports = await wait_for_hours(cluster, Tier.BROKER, await expected(cluster))
            with trio.fail_after(DEADLINE_S):
                while service.status()["lag_ms"] > 5_000 or service.trouble() is not None:
                    await trio.sleep(0.02)
        assert spans_of(reports, Tier.BROKER, CLICKS[0]) == [(0, 30)]
        created = [report.created_ms for report in reports if len(report.positions)]
        assert all(0 <= each <= clock() for each in created)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_readers_that_end_at_any_moment_leave_counts_that_are_right(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with east(tmp_path) as cluster:
        for number in range(12):
            await publish(cluster, random.randrange(1, 12), first=100 * number, partition=number % 2)
            async with counting(cluster, audit_interval_ms=100, refresh_interval_ms=100):
                await trio.sleep(random.random() * 0.3)
        async with counting(cluster):
            reports = await wait_for_hours(cluster, Tier.BROKER, await expected(cluster))
        for each in CLICKS:
            ((start, end),) = spans_of(reports, Tier.BROKER, each)
            assert (start, end) == (0, (await read_headers(cluster, each))[-1].next_offset)


async def test_a_reader_may_report_to_another_cluster(tmp_path: Path) -> None:
    async with east(tmp_path / "east") as cluster, serving_cluster(tmp_path / "hub") as hub:
        await publish(cluster, 6)
        async with counting(cluster, hub):
            await wait_for_hours(hub, Tier.BROKER, await expected(cluster))
        await cluster.refresh()
        assert "_audit" not in (await cluster.fetch_all_topics(timeout_s=DEADLINE_S)).topics


async def test_a_throttle_bounds_the_bytes_per_second(tmp_path: Path) -> None:
    async with east(tmp_path) as cluster:
        async with open_producer(cluster, ProducerConfig(batch_size=4096), clock=clock, rng=Random(1)) as producer:
            for number in range(60):
                await producer.send("clicks", bytes(4000), partition=number % 2, timestamp_ms=FIRST_HOUR_MS)
        begun_at = trio.current_time()
        async with counting(cluster, throttle_bytes_per_second=100_000, fetch_max_bytes=16_384):
            await wait_for_hours(cluster, Tier.BROKER, await expected(cluster))
        assert trio.current_time() - begun_at > 1.0  # 240 KB, of which half a second's worth may come at once


async def test_retention_that_overtakes_a_reader_is_told(tmp_path: Path) -> None:
    async with east(tmp_path) as cluster:
        await publish(cluster, 9)
        async with counting(cluster):
            await wait_for_hours(cluster, Tier.BROKER, await expected(cluster))
        await publish(cluster, 9, first=9)
        await delete_records(cluster, {CLICKS[0]: 15}, timeout_s=DEADLINE_S)
        async with counting(cluster):
            reports = await wait_for_reports(
                cluster, lambda found: spans_of(found, Tier.BROKER, CLICKS[0]) == [(15, 18)]
            )
        starts = [
            int(position["start_offset"])
            for report in reports
            for position in report.positions
            if report.topics[position["topic"]].name == "clicks" and position["partition"] == 0
        ]
        assert starts[-1] == 15


async def test_a_recreated_topic_is_counted_as_another(tmp_path: Path) -> None:
    async with east(tmp_path) as cluster:
        await publish(cluster, 9)
        async with counting(cluster) as service:
            first = await wait_for_hours(cluster, Tier.BROKER, await expected(cluster))
            await delete_topics(cluster, ["clicks"])
            with trio.fail_after(DEADLINE_S):
                while service.status()["partitions"]:
                    await trio.sleep(0.02)
            await create_topics(cluster, [NewTopic(name="clicks", partitions=len(CLICKS), replication_factor=1)])
            await publish(cluster, 6, first=9)
            wanted = await expected(cluster)
            known = len(first)

            def of_new(found: Sequence[CountReport]) -> bool:
                ids = {topic.topic_id for report in found for topic in report.topics if topic.name == "clicks"}
                return len(ids) == 2 and hours_of(found[known:], Tier.BROKER) >= wanted

            await wait_for_reports(cluster, of_new)


async def test_a_mirror_counts_what_it_copied_over_all_its_lives(tmp_path: Path) -> None:
    async with east(tmp_path / "east") as cluster, serving_cluster(tmp_path / "hub") as hub:
        for first in (0, 20):
            await publish(cluster, 20, first=first)
            counter = MirrorCounter(
                instance=f"life-{first}", host="here", window_ms=HOUR_MS // 6, interval_ms=100, clock=clock
            )
            config = MirrorConfig.from_settings(mirror_settings("east"))
            service = MirrorService(
                config,
                connected_to({"east": cluster}),
                hub,
                clock=clock,
                rng=Random(1),
                metrics=MirrorMetrics(CollectorRegistry()),
                observer=counter,
            )
            async with (
                reporting(counter, hub, interval_s=INTERVAL_S, clock=clock, rng=Random(first)),
                trio.open_nursery() as nursery,
            ):
                await nursery.start(service.run)
                await wait_for_hours(hub, Tier.MIRROR, await expected(cluster))
                nursery.cancel_scope.cancel()
        reports = await wait_for_hours(hub, Tier.MIRROR, await expected(cluster))
        assert spans_of(reports, Tier.MIRROR, CLICKS[0]) == [(0, 20), (20, 40)]
        ended = {report.counter.instance for report in reports if report.life is not None and report.life.is_ended}
        assert ended == {"life-0", "life-20"}


def group_config(**settings: Any) -> GroupConfig:
    return GroupConfig(group_id="g", auto_offset_reset=OffsetReset.EARLIEST, auto_commit_interval_ms=50, **settings)


async def read_some(cluster: Cluster, count: int, ways: str = "records", **settings: Any) -> None:
    """Read as a member of the group until so many records were handed out, and leave."""
    async with open_counted_group_consumer(
        cluster,
        group_config(**settings),
        datacenter="east",
        host="here",
        clock=clock,
        rng=Random(),
        interval_s=INTERVAL_S,
    ) as member:
        streams = await member.create_message_streams({"clicks": 1})
        seen = 0
        with trio.fail_after(DEADLINE_S):
            async for item in getattr(streams["clicks"][0], ways)():
                seen += 1 if ways == "records" else item.num_rows if ways == "columns" else 1
                if seen >= count:
                    break
            if ways == "records":
                await member.commit_offsets()


async def test_members_that_follow_each_other_count_each_batch_once(tmp_path: Path) -> None:
    """Also if a member leaves in the middle of a batch."""
    async with east(tmp_path) as cluster:
        await publish(cluster, 30)
        await publish(cluster, 11, first=30, partition=1)
        await read_some(cluster, 10)
        await read_some(cluster, 12)
        await read_some(cluster, 19)
        reports = await wait_for_hours(cluster, Tier.GROUP, await expected(cluster), "g")
        for partition in CLICKS:
            spans = spans_of(reports, Tier.GROUP, partition)
            assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]


async def test_two_members_at_once_count_each_batch_once(tmp_path: Path) -> None:
    async with east(tmp_path) as cluster:
        await publish(cluster, 30)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_some, cluster, 15, "records")
            nursery.start_soon(read_some, cluster, 15, "records")
            await publish(cluster, 30, first=30, partition=1)
            await publish(cluster, 30, first=60)
        await read_some(cluster, 60)
        reports = await wait_for_reports(
            cluster, lambda found: sum(hour.sums[0] for hour in hours_of(found, Tier.GROUP, "g")) >= 90
        )
        assert hours_of(reports, Tier.GROUP, "g") == await expected(cluster)


async def test_members_of_a_connector_count_what_they_stored(tmp_path: Path) -> None:
    zookeeper = MemoryZooKeeper()
    async with east(tmp_path, zookeeper=zookeeper) as cluster:
        await publish(cluster, 30)
        for count in (10, 20):
            async with (
                zookeeper.open() as client,
                open_counted_connector(
                    cluster,
                    client,
                    ConnectorConfig(group_id="g", auto_offset_reset=OffsetReset.EARLIEST),
                    datacenter="east",
                    host="here",
                    clock=clock,
                    rng=Random(),
                    interval_s=INTERVAL_S,
                ) as connector,
            ):
                streams = await connector.create_message_streams({"clicks": 1})
                seen = 0
                with trio.fail_after(DEADLINE_S):
                    async for _ in streams["clicks"][0]:
                        seen += 1
                        if seen == count:
                            break
                    await connector.commit_offsets()
        reports = await wait_for_hours(cluster, Tier.GROUP, await expected(cluster), "g")
        spans = spans_of(reports, Tier.GROUP, CLICKS[0])
        assert [start for start, _ in spans] == [0, spans[0][1]]


async def test_a_program_that_keeps_its_offsets_itself_counts_what_it_says(tmp_path: Path) -> None:
    async with east(tmp_path) as cluster:
        await publish(cluster, 30)
        async with (
            counted_consumption(
                cluster, "mine", datacenter="east", host="here", clock=clock, rng=Random(), interval_s=INTERVAL_S
            ) as counter,
            open_consumer(cluster, ConsumerConfig(), observer=counter) as consumer,
        ):
            consumer.assign({CLICKS[0]: 0})
            with trio.fail_after(DEADLINE_S):
                while consumer.position(CLICKS[0]) < 30:
                    for batches in await consumer.poll_batches():
                        counter.committed({CLICKS[0]: batches.next_offset})
        await wait_for_hours(cluster, Tier.GROUP, await expected(cluster, CLICKS[:1]), "mine")


@contextmanager
def command(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A command of the project, which is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_the_commands_count_and_go_on_after_a_kill(tmp_path: Path) -> None:
    listeners = f"PLAINTEXT://127.0.0.1:{free_port()}"
    async with east(tmp_path / "east", listeners=listeners) as cluster, serving_cluster(tmp_path / "hub") as hub:
        views = [await each.refresh() for each in (cluster, hub)]
        bootstrap, destination = (",".join(str(broker.address) for broker in view.brokers.values()) for view in views)
        reader = tmp_path / "count.toml"
        reader.write_text(
            f'datacenter = "east"\nbootstrap.servers = "{bootstrap}"\nhttp.listen = "127.0.0.1:0"\n'
            "audit.interval.ms = 100\nrefresh.interval.ms = 100\n"
        )
        mirror = tmp_path / "mirror.toml"
        mirror.write_text(
            f'datacenter = "hub"\naudit.interval.ms = 100\ntopics = ["clicks"]\nhttp.listen = "127.0.0.1:0"\n'
            f'destination.bootstrap.servers = "{destination}"\n'
            f'[[sources]]\nname = "east"\nbootstrap.servers = "{bootstrap}"\n'
        )
        for first in (0, 20):
            await publish(cluster, 20, first=first)
            wanted = await expected(cluster)
            with (
                command("audit", "count", "--config", str(reader)),
                command("mirror", "start", "--config", str(mirror)),
            ):
                await wait_for_hours(cluster, Tier.BROKER, wanted)
                await wait_for_hours(hub, Tier.MIRROR, wanted)
        consume = ("consume", "clicks", "--group", "g", "--datacenter", "east", "--bootstrap", bootstrap)
        done = await trio.run_process([sys.executable, "-m", "pipeline", *consume], capture_stdout=True)
        assert len(done.stdout.splitlines()) == 40
        await wait_for_hours(cluster, Tier.GROUP, wanted, "g")


async def test_a_datacenter_without_a_group_is_refused() -> None:
    run = [sys.executable, "-m", "pipeline", "consume", "clicks", "--datacenter", "east"]
    done = await trio.run_process(run, capture_stderr=True, check=False)
    assert done.returncode == 2
    assert b"--datacenter: give --group too" in done.stderr
