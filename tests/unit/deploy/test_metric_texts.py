"""Metrics of all services: their texts, their units, and how many series a partition has."""

from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.exported_metrics import exporting_services
from tests.support.mirrors import until
from tests.support.serving_broker import serving_broker

LEAST_WORDS = 5
KAFKA = "kafka_"
"""Names and units of these are Kafka's: dashboards made for Kafka ask for them."""
ODD_UNITS = ("_ms", "_millis", "_percent", "_minutes", "_kb", "_mb")
SERIES_OF_A_PARTITION = 4
PARTITIONS = 50


async def test_every_metric_says_what_it_is_in_base_units(tmp_path: Path) -> None:
    vague, odd = [], []
    async with exporting_services(tmp_path) as services:
        for job, registry in services.items():
            for family in text_string_to_metric_families(generate_latest(registry).decode()):
                name, text = family.name, family.documentation
                if not name.startswith("process_") and (len(text.split()) < LEAST_WORDS or not text.endswith(".")):
                    vague.append(f"{job}: {name}: {text}")
                if name.endswith(ODD_UNITS) and not name.startswith(KAFKA):
                    odd.append(name)
                odd += [sample.name for sample in family.samples if sample.name.endswith("_created")]
            assert registry.get_sample_value("process_resident_memory_bytes"), job
    assert vague == []
    assert odd == []


def count_series(registry: CollectorRegistry, topic: str | None = None) -> int:
    """Return the number of all series, or of those of the partitions of a topic."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    labels = [sample.labels for family in families for sample in family.samples]
    return len([each for each in labels if topic is None or (each.get("topic") == topic and "partition" in each)])


def are_counted(registry: CollectorRegistry, topic: str) -> bool:
    """True if all partitions of a topic have their series."""
    return count_series(registry, topic) == SERIES_OF_A_PARTITION * PARTITIONS


async def test_a_partition_has_few_series(tmp_path: Path) -> None:
    """So 1,000 partitions of a broker are 4,000 series, and 10,000 are 40,000."""
    config = BrokerConfig.from_settings(
        {
            "broker.id": 1,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path),
            "zookeeper.connect": "memory:0",
            "offsets.topic.replication.factor": 1,
        }
    )
    metrics = CollectorRegistry()
    counts = []
    async with (
        MemoryZooKeeper().open() as zookeeper,
        serving_broker(config, zookeeper, metrics) as handle,
        open_cluster(ClientConfig(bootstrap=(handle.address,))) as cluster,
    ):
        for name in ("one", "other"):
            await create_topics(cluster, [NewTopic(name=name, partitions=PARTITIONS, replication_factor=1)])
            # Logs that a busy disk opens late have no series until then.
            await until(partial(are_counted, metrics, name))
            counts.append(count_series(metrics))
    of_topic = 4  # bytes and records, in and out
    assert counts[1] - counts[0] == SERIES_OF_A_PARTITION * PARTITIONS + of_topic
