"""Metrics of clients: their quotas, the state that the broker keeps for them, and contracts of topics with them."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.contract.gate import ContractGate
from pipeline.broker.quotas.keeper import QuotaKeeper
from pipeline.broker.quotas.table import QuotaKind
from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.log.known_producers import KNOWN_PRODUCERS

_CLIENT = ("user", "client_id")
_NAMES = {QuotaKind.PRODUCE: "kafka_server_produce", QuotaKind.FETCH: "kafka_server_fetch"}


def collect_quotas(keeper: QuotaKeeper) -> Iterator[Metric]:
    """Rate and throttling of every group of clients that has a quota. A missing name is an empty label."""
    rates = {
        kind: GaugeMetricFamily(f"{name}_byte_rate", "Bytes per second of clients that have a quota.", labels=_CLIENT)
        for kind, name in _NAMES.items()
    }
    waits = {
        kind: CounterMetricFamily(
            f"{name}_throttle_time_seconds",
            "Seconds for which clients were muted because of their quota.",
            labels=_CLIENT,
        )
        for kind, name in _NAMES.items()
    }
    for usage in keeper.usage():
        labels = (usage.user or "", usage.client_id or "")
        rates[usage.kind].add_metric(labels, usage.bytes_per_s)
        waits[usage.kind].add_metric(labels, usage.throttled_s)
    yield from rates.values()
    yield from waits.values()


def collect_kept(kept: KeptMemory) -> Iterator[Metric]:
    """Metrics of known producers, under Kafka's name (KIP-847), and of the memory of sessions, members and offsets."""
    for name, value, text in (
        (
            "kafka_server_replicamanager_produceridcount",
            KNOWN_PRODUCERS.count,
            "Idempotent producers that are remembered: one for each partition that each writes to.",
        ),
        (
            "pipeline_known_producers_max",
            KNOWN_PRODUCERS.capacity,
            "Idempotent producers, by partition, that are remembered at most: known.producers.max.",
        ),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    held = GaugeMetricFamily(
        "pipeline_client_state_held_bytes", "Bytes of memory that are kept for clients, by use.", labels=("use",)
    )
    most = GaugeMetricFamily(
        "pipeline_client_state_max_bytes",
        "Bytes that this use may take at present: client.state.max.bytes less what others hold.",
        labels=("use",),
    )
    for use in kept.uses():
        held.add_metric((use.name,), use.held_bytes)
        most.add_metric((use.name,), use.most_bytes)
    yield from (held, most)


def collect_contracts(gate: ContractGate, view: ClusterView) -> Iterator[Metric]:
    """Refused records of topics that exist, and what the checks of schema ids asked of cache and registry."""
    refused = CounterMetricFamily(
        "pipeline_contract_refused_records", "Records that break their topic's contract.", labels=("topic", "reason")
    )
    for (topic, reason), count in sorted(gate.refused.items()):
        if view.topic(topic) is not None:
            refused.add_metric((topic, reason), count)
    yield refused
    yield CounterMetricFamily(
        "pipeline_contract_cache_hits", "Schema ids of records that were found in the cache.", value=gate.hits
    )
    yield GaugeMetricFamily(
        "pipeline_contract_cache_size",
        "Answers of schema registries that are kept in the cache.",
        value=len(gate.cache),
    )
    calls = CounterMetricFamily(
        "pipeline_contract_registry_calls",
        "Requests of this broker to schema registries, by outcome.",
        labels=("outcome",),
    )
    for outcome, count in gate.calls.items():
        calls.add_metric((outcome,), count)
    yield calls
    waiting = GaugeMetricFamily("pipeline_contract_waiting_requests", "Produce requests that wait for a registry.")
    waiting.add_metric((), gate.waiting)
    yield waiting
