"""Publishes counts, at regular intervals, to the audit topic of the cluster where they were counted."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from uuid import UUID

import trio

from pipeline.audit.broker_counter import BrokerCounter
from pipeline.audit.message import AUDIT_TOPIC, AuditEvent, AuditSource, Tier, encode_audit_event, encode_key, portions
from pipeline.audit.producer_counter import ProducerCounter
from pipeline.client.admin.topics import NewTopic, create_topics, replicas_for
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.encoding.encoders import EncoderLike
from pipeline.client.producer.batches import DeliveredBatch, ProducerIdentity
from pipeline.client.producer.interceptors import ProducerInterceptor
from pipeline.client.producer.partitioner import Partitioner
from pipeline.client.producer.producer import Producer, open_producer
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock, TopicPartition
from pipeline.records.tally import DEFAULT_WINDOW_MS, Counts

HOST_HEADER = "audit.host"
"""Record header with the host that created the record (paper section 4)."""

DEFAULT_INTERVAL_S = 10.0
RETENTION = {"retention.ms": "-1"}
"""Events are kept for ever: an audit service reads the whole topic whenever it starts."""

Counter = ProducerCounter | BrokerCounter

logger = get_logger(__name__)


async def ensure_audit_topic(cluster: Cluster) -> None:
    """Create the audit topic unless it exists. Raises KafkaError, NetworkError."""
    topic = NewTopic(name=AUDIT_TOPIC, partitions=1, replication_factor=await replicas_for(cluster), configs=RETENTION)
    await create_topics(cluster, [topic], exist_ok=True)


async def publish(counter: Counter, cluster: Cluster, producer: Producer) -> None:
    """Publish the counts that changed. If that fails, they are put back and the failure is logged.

    The audit topic is created with the first events: by then the brokers that will hold it are there.
    """
    events = counter.take_events()
    if not events:
        return
    try:
        if AUDIT_TOPIC not in cluster.view.topics:
            await ensure_audit_topic(cluster)
        deliveries = [
            await producer.send(AUDIT_TOPIC, encode_audit_event(portion), key=encode_key(event.source))
            for event in events
            for portion in portions(event)
        ]
        await producer.flush()
        for delivery in deliveries:
            await delivery.wait()
    except PipelineError as error:
        counter.put_back(events)
        logger.warning("audit_publish_failed", events=len(events), error=str(error))
        return
    except BaseException:
        counter.put_back(events)
        raise
    await trio.to_thread.run_sync(counter.published, events)


async def publish_regularly(counter: Counter, cluster: Cluster, producer: Producer, interval_s: float) -> None:
    """Publish every `interval_s` until cancelled. A cluster that is away for a while only delays events."""
    while True:
        await publish(counter, cluster, producer)
        await trio.sleep(interval_s)


@asynccontextmanager
async def open_audited_producer(
    cluster: Cluster,
    config: ProducerConfig,
    *,
    datacenter: str,
    host: str,
    clock: Clock,
    rng: Random,
    window_ms: int = DEFAULT_WINDOW_MS,
    interval_s: float = DEFAULT_INTERVAL_S,
    on_delivered: Callable[[DeliveredBatch], None] | None = None,
    identity: ProducerIdentity | None = None,
    key_encoder: EncoderLike | None = None,
    value_encoder: EncoderLike | None = None,
    partitioner: Partitioner | None = None,
    interceptors: Sequence[ProducerInterceptor] = (),
) -> AsyncIterator[Producer]:
    """Open a producer whose records bear their host, and that reports acknowledged batches (paper section 4).

    All but the audit's own arguments are those of `open_producer`.

    The end of the block reports the rest, also after an error; only a cancellation leaves no time for it. A producer
    that is killed leaves up to `interval_s` unreported: the audit then shows more records at the broker than were
    announced, for good. Reports go through a second producer, so that neither fails with the other.
    """
    instance = str(UUID(int=rng.getrandbits(128), version=4))
    counter = ProducerCounter(datacenter, instance, window_ms, clock)
    config = replace(config, window_ms=window_ms, record_headers=(*config.record_headers, (HOST_HEADER, host.encode())))

    def delivered(batch: DeliveredBatch) -> None:
        counter.delivered(batch.topic_partition, batch.header)
        if on_delivered is not None:
            on_delivered(batch)

    audited = open_producer(
        cluster,
        config,
        clock=clock,
        rng=rng,
        on_delivered=delivered,
        identity=identity,
        key_encoder=key_encoder,
        value_encoder=value_encoder,
        partitioner=partitioner,
        interceptors=interceptors,
    )
    await ensure_audit_topic(cluster)
    async with open_producer(cluster, ProducerConfig(linger_ms=0), clock=clock, rng=rng) as reporter:
        try:
            async with background_tasks() as nursery:
                nursery.start_soon(publish_regularly, counter, cluster, reporter, interval_s)
                async with audited as producer:
                    yield producer
        finally:
            await publish(counter, cluster, reporter)


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
