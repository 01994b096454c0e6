"""Batches that mirrors send: which partitions take them, and the claims that copiers make before they copy."""

from contextlib import suppress

from pipeline.broker.replication.copier_claims import awaits_claim, check_copier
from pipeline.broker.replication.partition import Partition
from pipeline.broker.requests.context import BrokerContext
from pipeline.errors import PromotedTopicError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.produce import (
    FIRST_VERSION_OF_TOPIC_IDS,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)


def find_led(broker: BrokerContext, topic: TopicProduceData, data: PartitionProduceData, version: int) -> Partition:
    """Return the partition to append to. Raises KafkaError if it is not led here."""
    if version < FIRST_VERSION_OF_TOPIC_IDS:
        return broker.find_partition(topic.name, data.index)
    return broker.find_partition_by_id(topic.topic_id, data.index)


def due_claims(broker: BrokerContext, request: ProduceRequest, version: int) -> list[tuple[Partition, int]]:
    """Return the partitions whose copier epoch must be read or raised before the request is served, with its epochs."""
    claims = []
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.keep_offsets:
                with suppress(KafkaError):  # refused when it is appended to
                    partition = find_led(broker, topic, data, version)
                    settings = partition.settings
                    may_copy = settings.mirror_source is not None and settings.promotion is None
                    if may_copy and awaits_claim(partition, data.copier_epoch):
                        claims.append((partition, data.copier_epoch))
    return claims


def check_mirror(partition: Partition, data: PartitionProduceData) -> None:
    """Check the batches of a mirror, or for a replica partition.

    Raises KafkaError, PromotedTopicError, FencedCopierError; CoordinationError if the copier epoch is not known.
    """
    topic, source = partition.topic_partition.topic, partition.settings.mirror_source
    if data.keep_offsets and (promotion := partition.settings.promotion) is not None:
        raise PromotedTopicError(promotion.refusal_of(topic), partition.log.log_end_offset)
    if source is not None and not data.keep_offsets:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{topic} is a read-only mirror of {source}; produce to its source."
        )
    if source is None and data.keep_offsets:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{topic} has no mirror.source: it is no mirror and assigns its own offsets."
        )
    if data.keep_offsets and (provenance := partition.settings.provenance) is not None:
        reason = provenance.refusal_of(partition.topic_partition, data.source)
        if reason is not None:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, reason)
    if data.keep_offsets:
        check_copier(partition, data.copier_epoch)


def claimed(partition: Partition, data: PartitionProduceData) -> PartitionProduceResponse:
    """Return the answer to a claim without records: where the log ends."""
    log = partition.log
    return PartitionProduceResponse(
        index=data.index, log_start_offset=log.log_start_offset, log_end_offset=log.log_end_offset
    )
