"""The audit service as a process, with its answers over HTTP: a month of topics of 100 partitions, at four tiers.

The month is in a snapshot, from which the service starts. Old hours have counts of one partition of each topic, as a
month of all partitions has 47 GB; the newest two have counts of all. Life signs of all partitions are in the topics
`_audit` of two brokers. Then every partition is reported each 10 s, the most that counters can send, and the same
questions are asked again. Brokers are in this process. The service asks nobody for topics and mirrors: they are given.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import httpx
import trio

from bench.audit import ledger as stream
from bench.audit.scale import HISTORY_HOURS, MAX_CPU_S, MAX_MB, MAX_REPORT_S, MAX_SHELF_BYTES, MAX_VIEW_S, TOPICS
from bench.report import Options, Row, Show, Target
from pipeline.audit.collecting.file_shelf import FileShelf
from pipeline.audit.collecting.reading import ReadingState
from pipeline.audit.collecting.snapshots import Snapshot, SnapshotFolder
from pipeline.audit.events.encoding import encode_count_report, portions
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import AUDIT_TOPIC
from pipeline.audit.ledger.ledger import Ledger
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock, serving_cluster

CLUSTERS = ("east", "hub")
ASKED = 5
"""Times that each question is asked; the slowest answer counts."""
READ_S = 300
Figure = tuple[str, str, float, float | None]
"""What was measured, its unit, the figure, and its bound."""
FULL_HOURS = 2
"""Newest hours with counts of all partitions."""
FED_INTERVALS = 4
"""Intervals in which every partition is reported."""
QUESTIONS = {
    "the page's first view": (("/", "/v1/status"), MAX_VIEW_S),
    "report over 30 days": (("/v1/report?from={from_ms}&to={to_ms}",), MAX_REPORT_S),
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
    return [
        Row(
            name=f"{name}: {part}",
            unit=unit,
            ours=figure,
            target=None if bound is None else Target(bound=bound, at_least=False, absolute=True),
        )
        for part, unit, figure, bound in found
    ]


async def _measure(folder: Path, names: list[str]) -> list[Figure]:
    async with AsyncExitStack() as stack:
        clusters = {name: await stack.enter_async_context(serving_cluster(folder / name)) for name in CLUSTERS}
        now_ms = clock()
        await trio.to_thread.run_sync(_save_month, folder, names, now_ms)
        for name, cluster in clusters.items():
            await create_topics(cluster, [NewTopic(name=AUDIT_TOPIC, partitions=1)])
            await _publish(cluster, (each for each in _signs(names, now_ms) if each.counter.cluster == name))
        addresses = {name: next(iter(cluster.view.brokers.values())).address for name, cluster in clusters.items()}
        began = time.monotonic()
        arguments = json.dumps([{name: str(address) for name, address in addresses.items()}, names, str(folder)])
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "bench.audit.service", arguments], stdout=subprocess.PIPE
        )
        try:
            port, pid = int(await _first_line(process)), process.pid
            url = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=READ_S) as client:
                await _until_read(client)
                figures: list[Figure] = [("start from a snapshot", "s", time.monotonic() - began, None)]
                asked = await _ask_all(url, now_ms, "exact")
                figures += [(each, "s", *found) for each, found in asked.items()]
                figures.append(("memory after the questions", "MB", _megabytes(pid, "VmRSS"), MAX_MB))
                figures += await _measure_fed(url, clusters, names, pid)
                figures.append(("most memory in all", "MB", _megabytes(pid, "VmHWM"), MAX_MB))
                return figures
        finally:
            process.kill()
            await process.wait()


async def _first_line(process: trio.Process) -> bytes:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        part = await process.stdout.receive_some()
        if not part:
            raise ValueError("the service ended at its start")
        line += part
    return line


async def _measure_fed(url: str, clusters: Mapping[str, Cluster], names: list[str], pid: int) -> list[Figure]:
    """Measure the service while every partition is reported each 10 s: first alone, then with all questions."""
    fed = trio.Event()
    before_s, began_s = _cpu_s(pid), trio.current_time()
    for number in range(FED_INTERVALS):
        await _feed(clusters, names)
        await trio.sleep_until(began_s + (number + 1) * stream.INTERVAL_MS / 1000)
    spent = (_cpu_s(pid) - before_s) / (trio.current_time() - began_s)
    figures: list[Figure] = [("every partition reported each 10 s", "CPU s/s", spent, MAX_CPU_S)]
    figures.append(("memory while it is fed", "MB", _megabytes(pid, "VmRSS"), MAX_MB))

    async def feed() -> None:
        while not fed.is_set():
            began_s = trio.current_time()
            await _feed(clusters, names)
            await trio.sleep_until(began_s + stream.INTERVAL_MS / 1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        asked = await _ask_all(url, clock(), "unknown")  # the hour that is being written is pending
        fed.set()
    return figures + [(f"{each}, while it is fed", "s", *found) for each, found in asked.items()]


async def _feed(clusters: Mapping[str, Cluster], names: list[str]) -> None:
    """Publish the reports of an interval."""
    now_ms = clock() // stream.INTERVAL_MS * stream.INTERVAL_MS
    for name, cluster in clusters.items():
        await _publish(cluster, (each for each in stream.reports(names, now_ms) if each.counter.cluster == name))


async def _ask_all(url: str, now_ms: int, verdict: str) -> dict[str, tuple[float, float | None]]:
    """Return the time of the slowest answer to each question, and its bound."""
    hour_ms = now_ms - now_ms % HOUR_MS
    span = {"from_ms": hour_ms - (HISTORY_HOURS - 1) * HOUR_MS, "to_ms": now_ms + HOUR_MS}
    return {
        question: (
            await trio.to_thread.run_sync(_slowest_s, url, [path.format(**span) for path in paths], verdict),
            bound,
        )
        for question, (paths, bound) in QUESTIONS.items()
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def _save_month(folder: Path, names: list[str], now_ms: int) -> None:
    """Write a snapshot of the reports at the ends of hours."""
    ledger = Ledger(shelf=FileShelf(folder, MAX_SHELF_BYTES))
    for hour in range(HISTORY_HOURS, 0, -1):
        end_ms = now_ms - now_ms % HOUR_MS - (hour - 1) * HOUR_MS - stream.INTERVAL_MS
        ledger.apply_all(stream.reports(names, end_ms, partitions=stream.PARTITIONS if hour <= FULL_HOURS else 1))
        ledger.shelve()
    SnapshotFolder(folder).save(Snapshot(ledger, {name: ReadingState(name) for name in CLUSTERS}))


def _signs(names: list[str], now_ms: int) -> Iterator[CountReport]:
    """Life signs of all counters."""
    for report in stream.reports(names, now_ms - now_ms % stream.INTERVAL_MS):
        yield replace(report, rows=report.rows[:0])


async def _publish(cluster: Cluster, reports: Iterator[CountReport]) -> None:
    async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
        for event in await trio.to_thread.run_sync(_encoded, reports):
            await producer.send(AUDIT_TOPIC, event)
        await producer.flush()


def _encoded(reports: Iterator[CountReport]) -> list[bytes]:
    return [encode_count_report(portion) for report in reports for portion in portions(report)]


async def _until_read(client: httpx.AsyncClient) -> None:
    """Wait until the service has read and judged everything."""
    with trio.fail_after(READ_S):
        while True:
            answer = await client.get("/v1/status")  # 503 while the snapshot is read
            if answer.is_success and answer.json()["verdict"] == "exact":
                return
            await trio.sleep(0.5)


def _slowest_s(url: str, paths: list[str], verdict: str) -> float:
    """Return the longest time in which all of these paths were answered. Each time is after a pause, as a person's.

    In a thread: the event loop of this process serves the brokers.
    """
    slowest = 0.0
    for _ in range(ASKED):
        began = time.monotonic()
        with httpx.Client(base_url=url, trust_env=False, timeout=READ_S) as client:
            for path in paths:
                answer = client.get(path).raise_for_status()
        slowest = max(slowest, time.monotonic() - began)
        document = json.loads(answer.content)
        if document.get("verdict") != verdict:
            raise ValueError(f"not what was published: {document.get('verdict')}, {document.get('unknown')}")
        time.sleep(1.5)
    return slowest
