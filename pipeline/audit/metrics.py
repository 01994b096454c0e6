"""Metrics of the audit. Judgements are made regularly for them, so that a loss is reported though nobody asks."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricSource

from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.collecting.judging import Judged, Judgements, NoJudgementError
from pipeline.audit.reports.figures import Figures, LatencyPlace, figures_of, latencies_of
from pipeline.model import Clock

INTERVAL_S: Final = 5.0
"""Time between judgements that nobody asks for."""
LATENCY_INTERVALS: Final = 3
"""Intervals between two computations of latencies."""


class AuditMetrics(MetricSource):
    """Metrics of reading and of the newest judgement. `run` renews them."""

    def __init__(
        self, collector: EventCollector, judgements: Judgements, replica_cluster: str | None, clock: Clock
    ) -> None:
        self._collector = collector
        self._judgements = judgements
        self._replica_cluster = replica_cluster
        self._clock = clock
        self._figures = Figures()
        self._figures_of = 0
        self._latencies: dict[LatencyPlace, float] = {}
        self._topics_without_latency = 0

    async def run(self) -> None:
        """Judge and compute figures regularly until cancelled."""
        number = 0
        while True:
            with suppress(NoJudgementError):  # logged, and seen by the time of the last judgement
                await self._judgements.current(INTERVAL_S)  # so that questions until the next turn find one
                await self._judgements.ask(partial(self._renew, with_latencies=number % LATENCY_INTERVALS == 0))
            number += 1
            await trio.sleep(INTERVAL_S)

    def _renew(self, judged: Judged, *, with_latencies: bool) -> None:
        if self._figures_of != judged.number:
            self._figures, self._figures_of = figures_of(judged.judgement), judged.number
        if with_latencies:
            self._latencies, self._topics_without_latency = latencies_of(
                self._collector.ledger.latencies, self._replica_cluster
            )

    def collect(self) -> Iterator[Metric]:
        """Return the present values. A cluster that cannot be read has no lag."""
        yield from self._reading()
        yield from self._verdicts()
        yield self._latency()

    def _reading(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("audit_cluster_up", "1 if the cluster's events can be read.", labels=["cluster"])
        lag = GaugeMetricFamily("audit_events_lag", "Audit events that were not read yet.", labels=["cluster"])
        read_to = GaugeMetricFamily(
            "audit_cluster_read_to_timestamp_seconds",
            "Time for which all events of the cluster were read.",
            labels=["cluster"],
        )
        unreadable = CounterMetricFamily(
            "audit_events_unreadable",
            "Audit records that this version cannot read.",
            labels=["cluster"],
        )
        for name, state in self._collector.states.items():
            up.add_metric([name], float(state.error is None))
            lag.add_metric([name], float("nan") if state.lag is None else state.lag)
            read_to.add_metric([name], 0 if state.read_to_ms is None else state.read_to_ms / 1000)
            unreadable.add_metric([name], state.unreadable)
        refused = CounterMetricFamily("audit_rows_refused", "Rows of counts that did not fit a bound.")
        refused.add_metric([], self._collector.ledger.refused)
        yield from (up, lag, read_to, unreadable, refused)

    def _verdicts(self) -> Iterator[Metric]:
        figures = self._figures
        judged = GaugeMetricFamily(
            "audit_judged_timestamp_seconds", "Time of the newest judgement, in seconds since 1970."
        )
        if self._judgements.latest is not None:
            judged.add_metric([], self._judgements.latest.judged_ms / 1000)
        failed = CounterMetricFamily("audit_judgements_failed", "Judgements that failed and will be tried again.")
        failed.add_metric([], self._judgements.failures)
        hours = GaugeMetricFamily("audit_hours", "Hours of all topics by status.", labels=["status"])
        for status, count in figures.hours.items():
            hours.add_metric([status], count)
        differences = GaugeMetricFamily(
            "audit_differences",
            "Partitions and hours whose records are missing, doubled or changed at a stage, and nothing explains it.",
            labels=["topic", "stage", "kind"],
        )
        for place, count in figures.differences.items():
            differences.add_metric(_labels(*place), count)
        lag = GaugeMetricFamily(
            "audit_completeness_lag_seconds",
            "Time since the end of the last window up to which the topic is complete; +Inf if none is.",
            labels=["topic"],
        )
        now_ms = self._clock()
        for topic, complete_ms in figures.complete_ms.items():
            lag.add_metric(_labels(topic), float("inf") if complete_ms is None else max(0, now_ms - complete_ms) / 1000)
        left_out = GaugeMetricFamily("audit_topics_left_out", "Topics beyond the bound of a metric.", labels=["metric"])
        for metric, count in figures.left_out.items():
            left_out.add_metric([metric], count)
        left_out.add_metric(["audit_end_to_end_latency_seconds"], self._topics_without_latency)
        yield from (judged, failed, hours, differences, lag, left_out)

    def _latency(self) -> Metric:
        latency = GaugeMetricFamily(
            "audit_end_to_end_latency_seconds",
            "Time from a record's timestamp to its count, in the newest window.",
            labels=["topic", "tier", "cluster", "quantile"],
        )
        for place, seconds in self._latencies.items():
            latency.add_metric(_labels(place.topic, place.tier, place.cluster, f"{place.quantile:g}"), seconds)
        return latency


def _labels(*texts: str) -> list[str]:
    """Return labels that can be written: names in events may be no Unicode, and one would stop all metrics."""
    return [text.encode(errors="backslashreplace").decode() for text in texts]
