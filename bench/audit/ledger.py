"""Ledger and report: topics of 100 partitions at four tiers, windows of a minute, reports each 10 s."""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.report import Options, Row, Show, Target
from pipeline.audit.events.report import POSITION, ROW, CountReport, LifeSign, ReportedTopic
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, Route
from pipeline.audit.ledger.ledger import Ledger
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS

TOPICS, PARTITIONS, BROKERS, TOPICS_OF_REPORT = 1_000, 100, 10, 50
INTERVAL_MS, STEPS = 10_000, 3
PRODUCERS, REPORTS_AT_ONCE = 1_000, 300
"""Small reports: about 300 are in one portion of events."""
START_MS = 480_000 * HOUR_MS
TIERS = (("east", Tier.PRODUCER, ""), ("east", Tier.BROKER, ""), ("hub", Tier.BROKER, ""), ("hub", Tier.LOAD, "/lake"))
MAX_CPU_S = 0.5
"""CPU time for each second of simulated time."""


def measure(options: Options, show: Show) -> list[Row]:
    """CPU time of the ledger and of judgements, for each second of simulated time."""
    rows = []
    if options.selects("small reports"):
        show("small reports")
        rows = [
            Row(name=f"{PRODUCERS:,} reports of 10 rows, applied {how}", unit="CPU ms", ours=1_000 * spent)
            for how, spent in _small_reports_s().items()
        ]
    name = "ledger"
    if not options.selects(name):
        return rows
    show(name)
    topics = [f"topic-{number:04}" for number in range(options.scaled(TOPICS, least=20))]
    ledger = Ledger()
    judge = Judge(ledger, grace_ms=60_000, pending_max_ms=HOUR_MS)
    expectations = expected(topics)
    applying_s = judging_s = 0.0
    for step in range(STEPS):
        now_ms = START_MS + step * INTERVAL_MS
        for report in reports(topics, now_ms):
            began = time.process_time()
            ledger.apply(report)
            applying_s += time.process_time() - began
        began = time.process_time()
        judge.judge(replace(expectations, read_to_ms=dict.fromkeys(("east", "hub"), now_ms)), now_ms)
        judging_s += time.process_time() - began
    simulated_s = STEPS * INTERVAL_MS / 1000
    bound = Target(bound=MAX_CPU_S, at_least=False, absolute=True)
    shape = f"{len(topics):,} topics x {PARTITIONS} partitions x {len(TIERS)} tiers"
    return rows + [
        Row(name=f"ledger and a judgement each 10 s, {shape}", unit="CPU s/s", ours=total, target=bound)
        for total in [(applying_s + judging_s) / simulated_s]
    ]


def _small_reports_s() -> dict[str, float]:
    """Return the CPU time in which a ledger takes one report of each of many producers."""
    found = {}
    for how, at_once in (("one by one", 1), (f"{REPORTS_AT_ONCE} at a time", REPORTS_AT_ONCE)):
        ledger = Ledger()
        for step in range(STEPS):
            reported = list(_small_reports(START_MS + step * INTERVAL_MS))
            began = time.process_time()
            for first in range(0, len(reported), at_once):
                ledger.apply_all(reported[first : first + at_once])
            found[how] = time.process_time() - began
    return found


def _small_reports(now_ms: int) -> Iterator[CountReport]:
    """Reports of producers that have one partition of five topics each."""
    for number in range(PRODUCERS):
        topics = [f"topic-{(5 * number + place) % TOPICS:04}" for place in range(5)]
        yield report_of("east", Tier.PRODUCER, "", number, topics, np.array([number % PARTITIONS]), now_ms)


def expected(topics: list[str], partitions: int = PARTITIONS) -> Expectations:
    """Return what is expected: all topics are mirrored."""
    return Expectations(
        live_clusters=["east"],
        replica_cluster="hub",
        partitions={(cluster, topic): partitions for cluster in ("east", "hub") for topic in topics},
        mirrored=[MirroredTopic(cluster="east", topic=topic, replica_topic=topic) for topic in topics],
        routes=[
            Route(cluster="east", source=each, replica=each)
            for topic in topics
            for each in (TopicPartition(topic, number) for number in range(partitions))
        ],
    )


def reports(topics: list[str], now_ms: int, partitions: int = PARTITIONS) -> Iterator[CountReport]:
    """Reports of all counters: each of ten processes has a tenth of the partitions of each topic."""
    for cluster, tier, name in TIERS:
        for process in range(min(BROKERS, partitions)):
            mine = np.arange(process, partitions, BROKERS)
            for first in range(0, len(topics), TOPICS_OF_REPORT):
                some = topics[first : first + TOPICS_OF_REPORT]
                yield report_of(cluster, tier, name, process, some, mine, now_ms)


def report_of(
    cluster: str, tier: Tier, name: str, process: int, topics: list[str], partitions: np.ndarray, now_ms: int
) -> CountReport:
    size = len(topics) * len(partitions)
    numbers, places = np.repeat(np.arange(len(topics)), len(partitions)), np.tile(partitions, len(topics))
    tables = []
    for span_ms in (HOUR_MS, 60_000):
        rows = np.zeros(size, ROW)
        start_ms = now_ms - now_ms % span_ms
        batches = (now_ms - start_ms) // INTERVAL_MS + 1
        rows["topic"], rows["partition"], rows["start_ms"], rows["span_ms"] = numbers, places, start_ms, span_ms
        rows["records"] = rows["marked_records"] = 10 * batches
        rows["bytes"], rows["batches"], rows["none"] = 1_000 * batches, batches, batches
        sums = (batches * (numbers + places + 1)).astype(np.uint64)
        rows["crc_sum"] = sums * np.uint64(batches) * np.uint64(0x9E3779B1)  # numbers as long as those of real batches
        rows["content_sum"] = rows["marked_sum"] = sums * np.uint64(0x9E3779B97F4A7C15)
        rows["place_sum"] = rows["header_sum"] = sums * np.uint64(0xBF58476D1CE4E5B9)
        rows["has_sums"], rows["revision"] = True, now_ms // INTERVAL_MS * 10
        rows["last_offset"] = rows["revision"] - 1
        rows["first_offset"] = rows["revision"] - rows["records"]
        tables.append(rows)
    positions = np.zeros(0 if tier is Tier.PRODUCER else size, POSITION)
    if len(positions):
        positions["topic"], positions["partition"], positions["is_leader"] = numbers, places, tier is Tier.BROKER
        positions["end_offset"] = now_ms // INTERVAL_MS * 10
    instance = f"p{process}" if tier is Tier.PRODUCER else ""
    return CountReport(
        counter=Counter(tier=tier, cluster=cluster, name=name, instance=instance),
        process=instance or str(process),
        created_ms=now_ms,
        window_ms=60_000,
        topics=tuple(map(ReportedTopic, topics)),
        rows=np.concatenate(tables),
        positions=positions,
        life=LifeSign(host="bench", started_ms=START_MS, interval_ms=INTERVAL_MS, closed_ms=now_ms),
    )
