"""Metrics of quotas: usage and throttling of each group of clients."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.broker.quotas.keeper import QuotaKeeper
from pipeline.broker.quotas.table import QuotaKind

_LABELS = ("user", "client_id")
_NAMES = {QuotaKind.PRODUCE: "kafka_server_produce", QuotaKind.FETCH: "kafka_server_fetch"}


def collect_quotas(keeper: QuotaKeeper) -> Iterator[Metric]:
    """Rate and throttling of every group of clients that has a quota. A missing name is an empty label."""
    rates = {
        kind: GaugeMetricFamily(f"{name}_byte_rate", "Bytes per second.", labels=_LABELS)
        for kind, name in _NAMES.items()
    }
    waits = {
        kind: CounterMetricFamily(f"{name}_throttle_time_seconds", "Seconds of silence imposed.", labels=_LABELS)
        for kind, name in _NAMES.items()
    }
    for usage in keeper.usage():
        labels = (usage.user or "", usage.client_id or "")
        rates[usage.kind].add_metric(labels, usage.bytes_per_s)
        waits[usage.kind].add_metric(labels, usage.throttled_s)
    yield from rates.values()
    yield from waits.values()
