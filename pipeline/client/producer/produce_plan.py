"""A Produce request from batches, and what the answer means for each partition. Pure."""

import uuid
from collections.abc import Iterator, Mapping
from enum import Enum, auto

from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pipeline.protocol.schema import RecordsData


class ProduceVerdict(Enum):
    """What an error code of Produce means for a batch."""

    DELIVERED = auto()
    RETRY = auto()
    LEADER_MOVED = auto()
    IDENTITY_REFUSED = auto()
    """The broker did not take it and will take nothing more from this producer id in this partition."""
    FATAL = auto()


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
    """What to do with a batch that was answered with this code."""
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
) -> ProduceRequest:
    """One request for the batches of these partitions; it names topics and gives their ids, so any version will do."""
    topics: dict[str, list[PartitionProduceData]] = {}
    for topic_partition, records in batches.items():
        topics.setdefault(topic_partition.topic, []).append(
            PartitionProduceData(
                index=topic_partition.partition,
                records=records,
                keep_offsets=keep_offsets,
                expected_end=-1 if ends is None else ends[topic_partition],
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
    """Each partition of a response, named also where the response has topic ids only."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id)
        if name is not None:
            for partition in topic.partition_responses:
                yield TopicPartition(name, partition.index), partition
