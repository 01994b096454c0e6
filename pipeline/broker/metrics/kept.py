"""Metrics of the state that a broker keeps for clients, beside the bounds beyond which it refuses more."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from pipeline.broker.runtime.kept_memory import KeptMemory
from pipeline.log.known_producers import KNOWN_PRODUCERS

_LABELS = ("use",)


def collect_kept(kept: KeptMemory) -> Iterator[Metric]:
    """Metrics of known producers, under Kafka's name (KIP-847), and of the memory of sessions, members and offsets."""
    for name, value, text in (
        ("kafka_server_replicamanager_produceridcount", KNOWN_PRODUCERS.count, "Idempotent producers, by partition."),
        ("pipeline_known_producers_max", KNOWN_PRODUCERS.capacity, "The most of these: known.producers.max."),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    held = GaugeMetricFamily("pipeline_client_state_held_bytes", "Memory that clients have kept.", labels=_LABELS)
    most = GaugeMetricFamily("pipeline_client_state_max_bytes", "The most that the use may hold now.", labels=_LABELS)
    for use in kept.uses():
        held.add_metric((use.name,), use.held_bytes)
        most.add_metric((use.name,), use.most_bytes)
    yield from (held, most)
