"""Figures of a judgement for Prometheus, bounded in topics. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pipeline.audit.counting.latency import quantiles_ms
from pipeline.audit.judgement.judge import DIFFERING, Judgement
from pipeline.audit.judgement.verdicts import Status, Watermark
from pipeline.audit.ledger.latencies import CountedLatencies, LatencySeries
from pipeline.audit.reports.details import SHARES, latency_stage

MAX_TOPICS: Final = 1_000
"""Topics in one metric, by name; of differences, the topics that have any."""
MAX_HOURS: Final = 100
"""Hours of a topic whose differences are counted, the newest."""
MAX_LATENCY_TOPICS: Final = 250


class DifferencePlace(NamedTuple):
    """Place and kind of a difference of records."""

    topic: str
    stage: str
    kind: str


class LatencyPlace(NamedTuple):
    """Counter of latencies, and a share of the records."""

    topic: str
    tier: str
    cluster: str
    quantile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one judgement. `left_out` is the number of topics without series, by metric."""

    hours: Mapping[str, int] = field(default_factory=dict)
    differences: Mapping[DifferencePlace, int] = field(default_factory=dict)
    """Partitions and hours that differ."""
    complete_ms: Mapping[str, int | None] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


def figures_of(judgement: Judgement) -> Figures:
    """Return the figures of a judgement."""
    numbers = judgement.numbers_by_status()
    places = judgement.differing_hours()
    chosen = [(topic, hour_ms) for topic in list(places)[:MAX_TOPICS] for hour_ms in places[topic][-MAX_HOURS:]]
    differences: Counter[DifferencePlace] = Counter()
    for hour in judgement.hours_at(chosen):
        for finding in hour.findings:
            if finding.status in DIFFERING:
                place = DifferencePlace(hour.topic, str(finding.at), finding.kind or finding.status)
                differences[place] += 1
    marks = judgement.watermarks()
    return Figures(
        hours={status: numbers.get(status, 0) for status in Status},
        differences=differences,
        complete_ms={mark.topic: _complete_ms(mark) for mark in _least_complete(marks)},
        left_out={
            "audit_differences": max(0, len(places) - MAX_TOPICS),
            "audit_completeness_lag_seconds": max(0, len(marks) - MAX_TOPICS),
        },
    )


def _least_complete(marks: Iterable[Watermark]) -> list[Watermark]:
    def order(mark: Watermark) -> tuple[int, str]:
        complete_ms = _complete_ms(mark)
        return (-1 if complete_ms is None else complete_ms, mark.topic)

    return sorted(marks, key=order)[:MAX_TOPICS]


def _complete_ms(mark: Watermark) -> int | None:
    return None if mark.complete_ms is None or mark.complete_ms < 0 else mark.complete_ms


def latencies_of(table: CountedLatencies, replica_cluster: str | None) -> tuple[dict[LatencyPlace, float], int]:
    """Return latencies in seconds in the newest window of each counter, and the number of topics left out."""
    by_topic: dict[str, list[LatencySeries]] = {}
    for series in table.all_series():
        by_topic.setdefault(series.topic, []).append(series)
    found = {}
    for topic in sorted(by_topic)[:MAX_LATENCY_TOPICS]:
        for series in by_topic[topic]:
            newest = table.newest_window(series)
            for share, latency_ms in quantiles_ms(newest, SHARES).items():
                place = LatencyPlace(topic, latency_stage(series, replica_cluster), series.cluster, share)
                found[place] = latency_ms / 1000
    return found, max(0, len(by_topic) - MAX_LATENCY_TOPICS)
