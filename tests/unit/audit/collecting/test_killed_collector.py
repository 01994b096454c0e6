"""A collector that is killed at any moment, and started again, gives the report of one that was never killed."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import trio
import trio.lowlevel

from pipeline.audit.collecting import collector as collector_module
from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.collecting.file_shelf import FileShelf
from pipeline.audit.collecting.snapshots import SnapshotFolder
from pipeline.audit.events.encoding import encode_count_report
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.audit.reports.documents import hour_document, watermark_document
from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.processes import free_port
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EXPECTED, GRACE_MS, HOUR, NOW_MS, PENDING_MAX_MS, Amounts, WholeWay, signs
from tests.support.brokers import clock, serving_cluster

DEADLINE_S = 60
HOURS = 60
PROCESS_SEEDS = 12


@dataclass(frozen=True)
class Clusters:
    """Two clusters with monitoring events of many hours."""

    by_name: Mapping[str, Cluster]
    events: Mapping[str, int]


def reports() -> dict[str, list[CountReport]]:
    """Return events by cluster, in an order that no counter would have chosen."""
    rng = Random(7)
    found: dict[str, list[CountReport]] = {"east": [], "hub": []}
    for number in range(HOURS):
        lacks = Amounts(records=8, content=1_000) if number % 7 == 3 else Amounts()
        way = WholeWay(
            hour_ms=HOUR - number * HOUR_MS,
            replica=lacks,
            loaded=lacks,
            producer_options={"revision": number + 1, "created_ms": NOW_MS - 2 * GRACE_MS},
            live_options={"end": 200, "created_ms": NOW_MS - 2 * GRACE_MS},
            replica_options={"end": 200, "created_ms": NOW_MS - 2 * GRACE_MS},
            load_options={"end": 200, "created_ms": NOW_MS - 2 * GRACE_MS},
        )
        for report in way.reports():
            found[report.counter.cluster] += [report] * rng.randrange(1, 3)
    for report in signs():
        found[report.counter.cluster].append(report)
    for events in found.values():
        rng.shuffle(events)
    return found


async def publish(cluster: Cluster, events: Sequence[CountReport]) -> None:
    await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=1)])
    async with open_producer(cluster, ProducerConfig(batch_size=1), clock=clock, rng=Random(1)) as producer:
        for event in events:
            await producer.send(AUDIT_TOPIC, encode_count_report(event))
        await producer.flush()


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[Clusters]:
    events = reports()
    async with serving_cluster(tmp_path / "east") as east, serving_cluster(tmp_path / "hub") as hub:
        by_name = {"east": east, "hub": hub}
        for name, cluster in by_name.items():
            await publish(cluster, events[name])
        yield Clusters(by_name, {name: len(each) for name, each in events.items()})


@asynccontextmanager
async def collecting(clusters: Clusters, folder: Path | None = None) -> AsyncIterator[EventCollector]:
    """Run a collector; with a folder, it has snapshots and a shelf."""
    snapshots = None if folder is None else SnapshotFolder(folder)
    shelves = (lambda: None) if folder is None else (lambda: FileShelf(None, 1 << 30))
    collector = EventCollector(clusters.by_name, 0.05, clock, shelves, snapshots)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collector.run)
        yield collector
        nursery.cancel_scope.cancel()


async def final_report(clusters: Clusters, folder: Path | None = None) -> Any:
    async with collecting(clusters, folder) as collector:
        with trio.fail_after(DEADLINE_S):
            while len(collector.read_to_ms) < len(clusters.events):
                await trio.sleep(0.001)
        assert {name: state.position for name, state in collector.states.items()} == clusters.events
        assert collector.losses == []
        judge = Judge(collector.ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
        judgement = judge.judge(EXPECTED, NOW_MS)
        return [hour_document(hour) for hour in judgement.hours()], [
            watermark_document(mark) for mark in judgement.watermarks()
        ]


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 54), marks=pytest.mark.long)], ids=["4", "50"])
async def test_killed_at_seeded_moments_it_gives_the_same_report(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    monkeypatch.setattr(collector_module, "PORTION_BYTES", 1_000)  # an event at a time
    expected = await final_report(clusters)
    hours, _ = expected
    assert {hour["status"] for hour in hours} == {"exact", "missing"}
    assert len(hours) == HOURS
    positions = set()
    for seed in seeds:
        async with collecting(clusters) as collector:
            target = Random(seed).randrange(sum(clusters.events.values()))
            with trio.fail_after(DEADLINE_S):
                while sum(state.position for state in collector.states.values()) < target:
                    await trio.lowlevel.checkpoint()
            positions.add(tuple(state.position for state in collector.states.values()))
        if seed % 4 == 0:
            assert await final_report(clusters) == expected
    assert await final_report(clusters) == expected
    assert len(positions) > len(seeds) // 2


@pytest.mark.long
async def test_killed_at_seeded_moments_it_goes_on_from_a_snapshot_and_gives_the_same_report(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await final_report(clusters)
    monkeypatch.setattr(collector_module, "PORTION_BYTES", 1_000)
    monkeypatch.setattr(collector_module, "SNAPSHOT_S", 0.0)
    monkeypatch.setattr(collector_module, "Ledger", partial(Ledger, LedgerLimits(rows=0, newest=0)))  # all on the shelf
    folder = tmp_path / "snapshots"
    folder.mkdir()
    first = set()
    for seed in range(12):
        async with collecting(clusters, folder) as collector:
            with trio.fail_after(DEADLINE_S):
                known = read_so_far(collector) if seed == 0 else await continued(collector)
                first.add(known)
                target = known + Random(seed).randrange(1, sum(clusters.events.values()) // 10)
                while read_so_far(collector) < min(target, sum(clusters.events.values())):
                    await trio.lowlevel.checkpoint()
    assert len(first) > 4
    assert await final_report(clusters, folder) == expected
    assert list(folder.glob("rows-*"))
    assert await final_report(clusters, folder) == expected  # of a snapshot alone


def read_so_far(collector: EventCollector) -> int:
    return sum(state.position for state in collector.states.values())


async def continued(collector: EventCollector) -> int:
    """Return how many events the snapshot has; 0 if a collector was killed before it wrote one."""
    while not (collector.generation or read_so_far(collector)):
        await trio.lowlevel.checkpoint()
    return read_so_far(collector)


@pytest.mark.long
async def test_a_topic_that_was_created_again_since_the_snapshot_is_read_from_its_beginning(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(collector_module, "SNAPSHOT_S", 0.0)
        async with collecting(clusters, folder) as collector:
            with trio.fail_after(DEADLINE_S):
                while read_so_far(collector) < sum(clusters.events.values()):
                    await trio.lowlevel.checkpoint()
                for _ in range(2):  # the first one may have been begun before all was read
                    (folder / "snapshot").unlink(missing_ok=True)
                    while not (folder / "snapshot").exists():
                        await trio.lowlevel.checkpoint()
    east = clusters.by_name["east"]
    await delete_topics(east, [AUDIT_TOPIC])
    await publish(east, list(signs()))
    async with collecting(clusters, folder) as collector:
        with trio.fail_after(DEADLINE_S):
            while not (collector.losses and len(collector.read_to_ms) == len(clusters.events)):
                await trio.sleep(0.001)
        assert [loss.cluster for loss in collector.losses] == ["east"]
        assert "was replaced" in str(collector.losses[0].witness) or "truncated" in str(collector.losses[0].witness)
        assert collector.states["east"].position == len(list(signs()))
        assert not (folder / "snapshot").exists()


@pytest.mark.long
async def test_a_process_that_is_killed_gives_the_same_report(clusters: Clusters, tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "audit.toml"
    config.write_text(settings_of(clusters, port))
    command = [sys.executable, "-m", "pipeline", "audit", "start", "--config", str(config)]
    expected = None
    for seed in range(PROCESS_SEEDS):
        child = await trio.lowlevel.open_process(command, stderr=subprocess.DEVNULL)
        try:
            if seed % 3:
                await trio.sleep(Random(seed).uniform(0.2, 2.5))
                continue
            report = await report_of(port)
            expected = expected or report
            assert report == expected
        finally:
            os.kill(child.pid, signal.SIGKILL)
            await child.wait()
    assert expected is not None
    assert len(expected) == HOURS


def settings_of(clusters: Clusters, port: int) -> str:
    """Return the settings of a service of these clusters."""
    tables = (
        f'[[{"live" if name == "east" else "replica"}]]\nname = "{name}"\n'
        f'bootstrap.servers = "{next(iter(cluster.view.brokers.values())).address}"'
        for name, cluster in clusters.by_name.items()
    )
    return "\n".join([f'http.listen = "127.0.0.1:{port}"', *tables])


async def report_of(port: int) -> Any:
    """Return the hours once all events were read."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        with trio.fail_after(DEADLINE_S):
            while True:
                try:
                    document = (await client.get(f"http://127.0.0.1:{port}/v1/report")).json()
                    if all(state["complete"] for state in document["clusters"].values()) and document["hours"]:
                        return document["hours"]
                except httpx.TransportError:
                    pass
                await trio.sleep(0.1)
