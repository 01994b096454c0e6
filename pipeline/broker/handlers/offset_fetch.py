"""OffsetFetch (9), v1 to v10: how far groups have read; -1 where nothing was committed.

Null asks for all topics (v2 on), v8 for several groups at once (KIP-709), v10 names topics by id (KIP-516). There are
no open transactions, so `require_stable` (v7) changes nothing. As in Kafka a group that does not exist has no offsets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from pipeline.broker.cluster_view import TopicView
from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.groups.model import OffsetAndMetadata
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from pipeline.protocol.schema import ZERO_UUID

FIRST_VERSION_OF_TOP_LEVEL_ERROR = 2
FIRST_VERSION_OF_GROUPS = 8
FIRST_VERSION_OF_TOPIC_IDS = 10
NO_OFFSET = -1

_Offsets = Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A topic that is asked for, by the name it has; None if its id is unknown."""

    sent: OffsetFetchRequestTopics
    name: str | None


def handle(broker: BrokerContext, request: OffsetFetchRequest, version: int, _caller: Caller) -> OffsetFetchResponse:
    """Answers at once, from memory."""
    if version >= FIRST_VERSION_OF_GROUPS:
        return OffsetFetchResponse(groups=tuple(_of_group(broker, group, version) for group in request.groups))
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    group = _of_group(broker, OffsetFetchRequestGroup(group_id=request.group_id, topics=topics), version)
    return OffsetFetchResponse(error_code=group.error_code, topics=tuple(map(_as_before, group.topics)))


def _of_group(broker: BrokerContext, group: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponseGroup:
    try:
        offsets = broker.offsets.of_group(group.group_id)
    except KafkaError as error:
        if version >= FIRST_VERSION_OF_TOP_LEVEL_ERROR:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
        refused = [_topic(_Asked(topic, topic.name), {}, error.code) for topic in group.topics or ()]
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=refused)
    by_id = version >= FIRST_VERSION_OF_TOPIC_IDS
    asked = _all(broker, offsets, by_id=by_id) if group.topics is None else _named(broker, group.topics, by_id=by_id)
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=tuple(
            _topic(item, offsets, ErrorCode.UNKNOWN_TOPIC_ID if item.name is None else ErrorCode.NONE) for item in asked
        ),
    )


def _all(broker: BrokerContext, offsets: _Offsets, *, by_id: bool) -> Sequence[_Asked]:
    """Every topic with an offset; of those that are gone there is no id to tell."""
    asked = []
    for topic, names in groupby(sorted(offsets), key=lambda name: name.topic):
        seen = broker.view.topic(topic)
        if seen is not None or not by_id:
            indexes = [name.partition for name in names]
            sent = OffsetFetchRequestTopics(name=topic, topic_id=_id_of(seen), partition_indexes=indexes)
            asked.append(_Asked(sent, topic))
    return asked


def _named(broker: BrokerContext, topics: Sequence[OffsetFetchRequestTopics], *, by_id: bool) -> Sequence[_Asked]:
    if not by_id:
        return [_Asked(topic, topic.name) for topic in topics]
    found = [(topic, broker.view.topic_of_id(topic.topic_id)) for topic in topics]
    return [_Asked(topic, None if seen is None else seen.name) for topic, seen in found]


def _id_of(topic: TopicView | None) -> UUID:
    return ZERO_UUID if topic is None else topic.topic_id


def _topic(asked: _Asked, offsets: _Offsets, error: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=asked.sent.name,
        topic_id=asked.sent.topic_id,
        partitions=tuple(_partition(asked.name, index, offsets, error) for index in asked.sent.partition_indexes),
    )


def _partition(topic: str | None, index: int, offsets: _Offsets, error: ErrorCode) -> OffsetFetchResponsePartitions:
    committed = None if topic is None else offsets.get(TopicPartition(topic, index))
    if committed is None:
        return OffsetFetchResponsePartitions(partition_index=index, committed_offset=NO_OFFSET, error_code=error)
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _as_before(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    """As it was told before version 8."""
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=tuple(
            OffsetFetchResponsePartition(
                partition_index=part.partition_index,
                committed_offset=part.committed_offset,
                committed_leader_epoch=part.committed_leader_epoch,
                metadata=part.metadata,
                error_code=part.error_code,
            )
            for part in topic.partitions
        ),
    )
