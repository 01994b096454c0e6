"""Answers of the audit service over HTTP: a month of topics of one partition, at four tiers.

The month is in a snapshot, from which the service starts; life signs are in the topics `_audit` of two brokers. Brokers
are in this process, the service is in one of its own. It asks nobody for topics and mirrors: they are given.
"""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import httpx
import trio
from prometheus_client import CollectorRegistry

from bench.audit import ledger as stream
from bench.audit.scale import HISTORY_HOURS, MAX_REPORT_S, MAX_SHELF_BYTES, MAX_VIEW_S, TOPICS
from bench.report import Options, Row, Show, Target
from pipeline.audit.collecting.file_shelf import FileShelf
from pipeline.audit.collecting.reading import ReadingState
from pipeline.audit.collecting.snapshots import Snapshot, SnapshotFolder
from pipeline.audit.config import AuditConfig
from pipeline.audit.events.encoding import encode_count_report
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.audit.judgement.verdicts import Expectations, Finding
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.page.audit_page import audit_page_routes
from pipeline.audit.server import run_audit
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ClientConfig, ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.model import HostPort
from pipeline.net.heap import free_large_blocks, keep_one_heap
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock, serving_cluster

CLUSTERS = ("east", "hub")
ASKED = 5
"""Times that each question is asked; the slowest answer counts."""
READ_S = 300
QUESTIONS = {
    "the page's first view": (("/", "/v1/status"), MAX_VIEW_S),
    "report over 30 days": (("/v1/report?from={from_ms}&to={to_ms}",), MAX_REPORT_S),
    "report over 30 days, 100,000 hours": (("/v1/report?from={from_ms}&to={to_ms}&limit=100000",), None),
}


def measure(options: Options, show: Show) -> list[Row]:
    """Time of the slowest answer to each question."""
    topics = options.scaled(TOPICS, least=20)
    name = f"audit answers over HTTP, {topics:,} topics x {HISTORY_HOURS} hours"
    if not options.selects(name):
        return []
    show(name)
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(_measure, Path(folder), [f"topic-{number:04}" for number in range(topics)])
    targets = {question: bound for question, (_, bound) in QUESTIONS.items()}
    return [
        Row(
            name=f"{name}: {part}",
            unit="s",
            ours=seconds,
            target=None
            if targets.get(part) is None
            else Target(bound=targets[part] or 0.0, at_least=False, absolute=True),
        )
        for part, seconds in found.items()
    ]


async def _measure(folder: Path, names: list[str]) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        clusters = {name: await stack.enter_async_context(serving_cluster(folder / name)) for name in CLUSTERS}
        now_ms = clock()
        await trio.to_thread.run_sync(_save_month, folder, names, now_ms)
        for name, cluster in clusters.items():
            await _publish(cluster, (each for each in _signs(names, now_ms) if each.counter.cluster == name))
        addresses = {name: next(iter(cluster.view.brokers.values())).address for name, cluster in clusters.items()}
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, addresses, names, str(folder)), daemon=True
        )
        began = time.monotonic()
        process.start()
        try:
            port = await trio.to_thread.run_sync(ours.recv)
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=READ_S
            ) as client:
                await _until_read(client)
                found = {"start from a snapshot": time.monotonic() - began}
                span = {"from_ms": now_ms - now_ms % HOUR_MS - (HISTORY_HOURS - 1) * HOUR_MS, "to_ms": now_ms + HOUR_MS}
                for question, (paths, _) in QUESTIONS.items():
                    found[question] = await _slowest_s(client, [path.format(**span) for path in paths])
                return found
        finally:
            process.kill()
            process.join()


def _save_month(folder: Path, names: list[str], now_ms: int) -> None:
    """Write a snapshot of the reports at the ends of hours."""
    ledger = Ledger(shelf=FileShelf(folder, MAX_SHELF_BYTES))
    for hour in range(HISTORY_HOURS, 0, -1):
        end_ms = now_ms - now_ms % HOUR_MS - (hour - 1) * HOUR_MS - stream.INTERVAL_MS
        ledger.apply_all(stream.reports(names, end_ms, partitions=1))
        ledger.shelve()
    SnapshotFolder(folder).save(Snapshot(ledger, {name: ReadingState(name) for name in CLUSTERS}))


def _signs(names: list[str], now_ms: int) -> Iterator[CountReport]:
    """Life signs of all counters."""
    for report in stream.reports(names, now_ms - now_ms % stream.INTERVAL_MS, partitions=1):
        yield replace(report, rows=report.rows[:0])


async def _publish(cluster: Cluster, reports: Iterator[CountReport]) -> None:
    await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=1)])
    async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
        for report in reports:
            await producer.send(AUDIT_TOPIC, encode_count_report(report))
        await producer.flush()


async def _until_read(client: httpx.AsyncClient) -> None:
    """Wait until the service has read and judged everything."""
    with trio.fail_after(READ_S):
        while True:
            answer = await client.get("/v1/status")  # 503 while the snapshot is read
            if answer.is_success and answer.json()["verdict"] == "exact":
                return
            await trio.sleep(0.5)


async def _slowest_s(client: httpx.AsyncClient, paths: list[str]) -> float:
    """Return the longest time in which all of these paths were answered. Each time is after a pause, as a person's."""
    slowest = 0.0
    for _ in range(ASKED):
        began = time.monotonic()
        for path in paths:
            answer = (await client.get(path)).raise_for_status()
        slowest = max(slowest, time.monotonic() - began)
        document = json.loads(answer.content)
        if document.get("verdict") != "exact":
            raise ValueError(f"not what was published: {document.get('verdict')}, {document.get('unknown')}")
        await trio.sleep(1.5)
    return slowest


def _serve(connection: Connection, addresses: dict[str, HostPort], names: list[str], folder: str) -> None:
    keep_one_heap()
    free_large_blocks()
    trio.run(_run_audit, connection, addresses, names, folder)


async def _run_audit(connection: Connection, addresses: dict[str, HostPort], names: list[str], folder: str) -> None:
    expected = stream.expected(names, partitions=1)
    tables = {name: [{"name": name, "bootstrap.servers": str(address)}] for name, address in addresses.items()}
    config = AuditConfig.model_validate(
        {"http.listen": "127.0.0.1:0", "live": tables["east"], "replica": tables["hub"], "snapshot.dir": folder}
    )

    async def read() -> Expectations:
        return expected

    async def narrow(finding: Finding, _: Sequence[Finding]) -> Sequence[Finding]:
        return [finding]

    async with AsyncExitStack() as stack:
        clusters = {
            name: await stack.enter_async_context(open_cluster(ClientConfig(bootstrap=(address,))))
            for name, address in addresses.items()
        }
        run = partial(
            run_audit,
            config,
            clusters,
            read_expectations=read,
            narrow=narrow,
            clock=clock,
            metrics=CollectorRegistry(),
            page=audit_page_routes(),
        )
        async with trio.open_nursery() as nursery:
            connection.send((await nursery.start(run)).port)
