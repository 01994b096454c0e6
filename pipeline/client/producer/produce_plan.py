"""Produce requests from batches, and the verdict on each partition's answer. Pure."""

import uuid
from collections.abc import Iterator, Mapping
from enum import Enum, auto

from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.produce import (
    NO_COPIER_EPOCH,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pipeline.protocol.schema import RecordsData


class ProduceVerdict(Enum):
    """Consequence of an error code of Produce for a batch."""

    DELIVERED = auto()
    RETRY = auto()
    LEADER_MOVED = auto()
    IDENTITY_REFUSED = auto()
    """The broker did not append the batch now, and refuses this producer id in this partition from now on.

    OUT_OF_ORDER_SEQUENCE_NUMBER also says that it knows the producer, and has not the batch of an earlier attempt.
    """
    FATAL = auto()
    """The broker refuses the batch. After UNKNOWN_SERVER_ERROR nobody knows whether it has appended the batch."""


_DELIVERED = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_LEADER_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_IDENTITY_REFUSED = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    }
)


def verdict_of(code: ErrorCode) -> ProduceVerdict:
    """Return the verdict on a batch that was answered with this code."""
    if code in _DELIVERED:
        return ProduceVerdict.DELIVERED
    if code in _LEADER_MOVED:
        return ProduceVerdict.LEADER_MOVED
    if code in _IDENTITY_REFUSED:
        return ProduceVerdict.IDENTITY_REFUSED
    return ProduceVerdict.RETRY if code.retriable else ProduceVerdict.FATAL


def produce_request(
    batches: Mapping[TopicPartition, RecordsData],
    topic_ids: Mapping[str, uuid.UUID],
    *,
    acks: int,
    timeout_ms: int,
    keep_offsets: bool = False,
    ends: Mapping[TopicPartition, int] | None = None,
    sources: Mapping[TopicPartition, str] | None = None,
    copier_epochs: Mapping[TopicPartition, int] | None = None,
) -> ProduceRequest:
    """Return one request for the batches of these partitions, with names and ids of topics, so for any version."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for topic_partition, records in batches.items():
        topics.setdefault(topic_partition.topic, []).append(
            PartitionProduceData(
                index=topic_partition.partition,
                records=records,
                keep_offsets=keep_offsets,
                expected_end=-1 if ends is None else ends[topic_partition],
                source="" if sources is None else sources[topic_partition],
                copier_epoch=NO_COPIER_EPOCH if copier_epochs is None else copier_epochs[topic_partition],
            )
        )
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=tuple(
            TopicProduceData(name=topic, topic_id=topic_ids[topic], partition_data=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )


def produce_answers(
    response: ProduceResponse, topic_ids: Mapping[str, uuid.UUID]
) -> Iterator[tuple[TopicPartition, PartitionProduceResponse]]:
    """Yield each partition of a response by name, also if the response has topic ids only."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id)
        if name is not None:
            for partition in topic.partition_responses:
                yield TopicPartition(name, partition.index), partition
