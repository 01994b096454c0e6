"""Publishes counts, at regular intervals, to the audit topic of the cluster where they were counted."""

from collections.abc import Mapping
from random import Random

from pipeline.audit.counting.audit_topic import ensure_audit_topic
from pipeline.audit.message import AUDIT_TOPIC, AuditEvent, AuditSource, Tier, encode_audit_event, encode_key, portions
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.diagnostics import get_logger
from pipeline.model import Clock, TopicPartition
from pipeline.records.tally import Counts

logger = get_logger(__name__)


async def publish_load(
    cluster: Cluster,
    datacenter: str,
    counts: Mapping[TopicPartition, Mapping[int, Counts]],
    *,
    quarantined: Mapping[TopicPartition, Mapping[int, int]],
    lost_offsets: Mapping[TopicPartition, int],
    up_to: Mapping[TopicPartition, int],
    window_ms: int,
    clock: Clock,
    rng: Random,
) -> None:
    """Report a load: for each partition the counts by window (start in ms), and the offset loaded up to.

    `quarantined` has for windows of `counts` the records that were set aside, and `lost_offsets` the number of offsets
    that were deleted before they could be loaded. Raises KafkaError, DeliveryError, NetworkError. A repeated report
    changes nothing.
    """
    await ensure_audit_topic(cluster)
    async with open_producer(cluster, ProducerConfig(), clock=clock, rng=rng) as producer:
        for partition, windows in counts.items():
            source = AuditSource(tier=Tier.LOAD, cluster=datacenter, partition=partition)
            event = AuditEvent(
                source=source,
                revision=up_to[partition],
                created_ms=clock(),
                window_ms=window_ms,
                windows=windows,
                quarantined=quarantined.get(partition, {}),
                lost_offsets=lost_offsets.get(partition, 0),
            )
            for portion in portions(event):
                await producer.send(AUDIT_TOPIC, encode_audit_event(portion), key=encode_key(source))
