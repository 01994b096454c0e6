"""The audit of many datacenters with one hub: ten topics of 100 partitions in each, ten aggregates in the hub.

Producers, live brokers, the hub's brokers and a load report each 10 s, and every partition changes in every report: the
most that counters can send.
"""

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np

from bench.audit import ledger as stream
from bench.audit.scale import MAX_SHELF_BYTES, greatest_mb
from bench.fitting import Extrapolation, MeasuredRun
from bench.report import Options, Row, Show
from pipeline.audit.collecting.decoding import decode_any_version
from pipeline.audit.collecting.file_shelf import FileShelf
from pipeline.audit.events.encoding import encode_count_report, portions
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, Route
from pipeline.audit.ledger.ledger import Ledger
from pipeline.model import TopicPartition
from pipeline.net.heap import free_large_blocks, keep_one_heap
from pipeline.records.tally import HOUR_MS

TOPICS = [f"topic-{number}" for number in range(10)]
PARTITIONS = 100
"""Partitions of a topic in each datacenter."""
PROCESSES = 10
"""Producers and brokers of each cluster."""
INTERVAL_MS = stream.INTERVAL_MS
FITTED = (3, 10, 30)
CHECKED = 60
PREDICTED = 100
STEPS = 3
FIGURES = {
    "decoding": ("audit: CPU of decoding, for each second", "s"),
    "applying": ("audit: CPU of the ledger, for each second", "s"),
    "judging": ("audit: CPU of a judgement each 10 s, for each second", "s"),
    "events": ("audit: bytes of events, for each second", "MB"),
    "memory": ("audit: most memory", "MB"),
}


def measure(options: Options, show: Show) -> list[Row]:
    """The selected rows."""
    selected = {key: figure for key, figure in FIGURES.items() if options.selects(figure[0])}
    if not selected:
        return []
    sizes = [options.scaled(size) for size in (*FITTED, CHECKED)]
    found = []
    for size in sizes:
        show(f"audit of {size} datacenters")
        found.append(_in_a_process(size))
    rows = []
    for key, (name, unit) in selected.items():
        *fitted, check = (
            MeasuredRun(name=f"{size} datacenters", size={"constant": 1, "datacenters": size}, value=figures[key])
            for size, figures in zip(sizes, found, strict=True)
        )
        predicted = f"{PREDICTED} datacenters", {"constant": 1, "datacenters": PREDICTED}
        rows += Extrapolation(
            name=name, unit=unit, terms=["constant", "datacenters"], runs=fitted, check=check, predicted=predicted
        ).rows()
    return rows


def _in_a_process(size: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, size), daemon=True)
    process.start()
    theirs.close()
    try:
        found: dict[str, float] = ours.recv()
    finally:
        process.join(60)
        process.kill()
    return found


def _run(connection: Connection, size: int) -> None:
    """Decode, apply and judge what all counters of some datacenters report; send the figures of a second."""
    keep_one_heap()
    free_large_blocks()
    names = [f"dc-{number:03}" for number in range(size)]
    ledger = Ledger(shelf=FileShelf(None, MAX_SHELF_BYTES))
    judge = Judge(ledger, grace_ms=60_000, pending_max_ms=HOUR_MS)
    expected = _expected(names)
    spent = dict.fromkeys(("decoding", "applying", "judging", "events"), 0.0)
    for step in range(STEPS + 1):
        now_ms = stream.START_MS + step * INTERVAL_MS
        found = dict.fromkeys(spent, 0.0)
        for report in _reports(names, now_ms):
            events = [encode_count_report(portion) for portion in portions(report)]
            found["events"] += sum(map(len, events)) / 1e6
            began = time.process_time()
            decoded = [each for each in map(decode_any_version, events) if isinstance(each, CountReport)]
            found["decoding"] += time.process_time() - began
            began = time.process_time()
            ledger.apply_all(decoded)
            ledger.shelve()
            found["applying"] += time.process_time() - began
        began = time.process_time()
        judge.judge(replace(expected, read_to_ms=dict.fromkeys((*names, "hub"), now_ms)), now_ms)
        ledger.shelve()
        found["judging"] += time.process_time() - began
        if step:  # the first one takes in everything
            spent = {key: value + found[key] for key, value in spent.items()}
    figures = {key: value / STEPS / (INTERVAL_MS / 1000) for key, value in spent.items()}
    connection.send(figures | {"memory": greatest_mb()})


def _reports(names: list[str], now_ms: int) -> Iterator[CountReport]:
    """Reports of all counters: each process has a tenth of the partitions of each topic."""
    for process in range(PROCESSES):
        mine = np.arange(process, PARTITIONS, PROCESSES)
        for name in names:
            for tier in (Tier.PRODUCER, Tier.BROKER):
                yield stream.report_of(name, tier, "", process, TOPICS, mine, now_ms)
        mine = np.arange(process, PARTITIONS * len(names), PROCESSES)
        for tier, root in ((Tier.BROKER, ""), (Tier.LOAD, "/lake")):
            yield stream.report_of("hub", tier, root, process, TOPICS, mine, now_ms)


def _expected(names: list[str]) -> Expectations:
    return Expectations(
        live_clusters=names,
        replica_cluster="hub",
        partitions={
            **{(name, topic): PARTITIONS for name in names for topic in TOPICS},
            **{("hub", topic): PARTITIONS * len(names) for topic in TOPICS},
        },
        mirrored=[MirroredTopic(cluster=name, topic=topic, replica_topic=topic) for name in names for topic in TOPICS],
        routes=[
            Route(
                cluster=name,
                source=TopicPartition(topic, number),
                replica=TopicPartition(topic, place * PARTITIONS + number),
            )
            for place, name in enumerate(names)
            for topic in TOPICS
            for number in range(PARTITIONS)
        ],
    )
