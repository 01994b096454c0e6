"""OffsetFetch (9), v1 to v10: committed offsets of groups; -1 where there is none. v2: null requests all topics,
v8: several groups (KIP-709), v10: topic ids (KIP-516).

- There are no open transactions, so `require_stable` (v7) changes nothing.
- A group that does not exist has no offsets, as in Kafka.
"""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipeline.broker.groups.model import OffsetAndMetadata
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Slicing, Turns, weight_of
from pipeline.model import TopicPartition
from pipeline.net.answers import PendingAnswer
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.offset_fetch import (
    FIRST_VERSION_OF_GROUPS,
    FIRST_VERSION_OF_TOP_LEVEL_ERROR,
    FIRST_VERSION_OF_TOPIC_IDS,
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

NO_OFFSET = -1
GROUP_COST = 10
"""Cost of a group without offsets, as a number of partitions."""
PARTITION_BYTES = 250
"""Approximate bytes of an offset in an answer, built and encoded, without its metadata."""
SLICING = Slicing(asked="topics", answered="topics", size=1000, parts=("partition_indexes", "partitions"))
"""Offsets of a group that are described before other requests have a turn."""

_Offsets = Mapping[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A requested topic, and its name; None if its id is unknown."""

    sent: OffsetFetchRequestTopics
    name: str | None


def handle(
    broker: BrokerContext, request: OffsetFetchRequest, version: int, _caller: Caller
) -> OffsetFetchResponse | PendingAnswer | Awaitable[PendingAnswer]:
    """Answer from memory, for one group at once; a repeated group or partition is answered once."""
    if version >= FIRST_VERSION_OF_GROUPS:
        groups = {(group.group_id, group.topics): group for group in request.groups}
        if len(groups) > 1:
            return _of_several(broker, tuple(groups.values()), version)
        if any(map(partial(_is_large, broker), groups.values())):
            return _of_several(broker, tuple(groups.values()), version)
        return OffsetFetchResponse(groups=[_of_group(broker, group, version, set()) for group in groups.values()])
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    if _is_large(broker, asked):
        return PendingAnswer(
            partial(_of_large, broker, asked, version), _named_bytes(asked) + _kept_bytes(broker, asked.group_id)
        )
    group = _of_group(broker, asked, version, set())
    return OffsetFetchResponse(error_code=group.error_code, topics=tuple(map(_as_before, group.topics)))


def _is_large(broker: BrokerContext, group: OffsetFetchRequestGroup) -> bool:
    """True if other requests need a turn while the answer is built."""
    if group.topics is not None:
        return SLICING.is_large(group)
    try:
        return len(broker.groups.offsets.of_group(group.group_id)) > SLICING.size
    except KafkaError:
        return False


async def _of_large(broker: BrokerContext, asked: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponse:
    group = await _of_group_in_turns(broker, asked, version, set(), Turns(SLICING.size))
    return OffsetFetchResponse(error_code=group.error_code, topics=tuple(map(_as_before, group.topics)))


async def _of_several(broker: BrokerContext, groups: Sequence[OffsetFetchRequestGroup], version: int) -> PendingAnswer:
    turns = Turns(SLICING.size)
    size_bytes = sum(map(_named_bytes, groups))
    for group_id in dict.fromkeys(group.group_id for group in groups):
        kept_bytes = _kept_bytes(broker, group_id)
        size_bytes += kept_bytes
        await turns.after(GROUP_COST * weight_of(group_id) + kept_bytes // PARTITION_BYTES)
    return PendingAnswer(partial(_of_each, broker, groups, version), size_bytes)


async def _of_each(
    broker: BrokerContext, groups: Sequence[OffsetFetchRequestGroup], version: int
) -> OffsetFetchResponse:
    told: dict[str, set[TopicPartition]] = {}
    turns = Turns(SLICING.size)
    answered = []
    for group in groups:
        told_of_group = told.setdefault(group.group_id, set())
        if _is_large(broker, group):
            answered.append(await _of_group_in_turns(broker, group, version, told_of_group, turns))
        else:
            answered.append(_of_group(broker, group, version, told_of_group))
            named = GROUP_COST * weight_of(group.group_id)
            await turns.after(named + sum(len(topic.partitions) for topic in answered[-1].topics))
    return OffsetFetchResponse(groups=answered)


def _named_bytes(group: OffsetFetchRequestGroup) -> int:
    """Return the approximate bytes of the answer for the named partitions."""
    return len(group.group_id) + PARTITION_BYTES * sum(len(topic.partition_indexes) for topic in group.topics or ())


def _kept_bytes(broker: BrokerContext, group_id: str) -> int:
    """Return the approximate bytes of all committed offsets of a group in an answer."""
    try:
        offsets = broker.groups.offsets.of_group(group_id)
    except KafkaError:
        return 0
    return sum(PARTITION_BYTES + len(committed.metadata) for committed in offsets.values())


async def _of_group_in_turns(
    broker: BrokerContext, group: OffsetFetchRequestGroup, version: int, told: set[TopicPartition], turns: Turns
) -> OffsetFetchResponseGroup:
    """Answer for one group, yielding to other requests in between; concurrent commits may or may not be included."""
    topics = group.topics
    if topics is None:
        try:
            offsets = broker.groups.offsets.of_group(group.group_id)
        except KafkaError:
            return _of_group(broker, group, version, told)
        topics = _all(broker, offsets, by_id=version >= FIRST_VERSION_OF_TOPIC_IDS)
    answers: list[OffsetFetchResponseTopics] = []
    for part in SLICING.slices(topics):
        some = replace(group, topics=[topic for topic, _ in part])
        answer = _of_group(broker, some, version, told)
        if answer.error_code != ErrorCode.NONE:
            return answer
        SLICING.join(answers, part, answer.topics)
        await turns.after(SLICING.size)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=answers)


def _of_group(
    broker: BrokerContext, group: OffsetFetchRequestGroup, version: int, told: set[TopicPartition]
) -> OffsetFetchResponseGroup:
    """Answer for one group; `told` are its partitions that the answer holds already."""
    try:
        offsets = broker.groups.offsets.of_group(group.group_id)
    except KafkaError as error:
        if version >= FIRST_VERSION_OF_TOP_LEVEL_ERROR:
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
        refused = [_topic(_Asked(topic, topic.name), {}, error.code) for topic in group.topics or ()]
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=refused)
    by_id = version >= FIRST_VERSION_OF_TOPIC_IDS
    topics = _all(broker, offsets, by_id=by_id) if group.topics is None else group.topics
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=tuple(
            _topic(_left_of(item, told), offsets, ErrorCode.UNKNOWN_TOPIC_ID if item.name is None else ErrorCode.NONE)
            for item in _named(broker, topics, by_id=by_id)
        ),
    )


def _left_of(asked: _Asked, told: set[TopicPartition]) -> _Asked:
    """Drop the partitions that were answered already: metadata of 4 KB, repeated often, would make a huge answer."""
    if asked.name is None:
        return asked
    names = [TopicPartition(asked.name, index) for index in dict.fromkeys(asked.sent.partition_indexes)]
    left = [name.partition for name in names if name not in told]
    told.update(names)
    return replace(asked, sent=replace(asked.sent, partition_indexes=left))


def _all(broker: BrokerContext, offsets: _Offsets, *, by_id: bool) -> Sequence[OffsetFetchRequestTopics]:
    """Return every topic with an offset; `by_id` skips deleted topics, whose ids are unknown."""
    indexes: dict[str, list[int]] = {}
    for topic, index in offsets:
        indexes.setdefault(topic, []).append(index)
    asked = []
    for topic, of_topic in sorted(indexes.items()):
        seen = broker.view.topic(topic)
        if seen is not None or not by_id:
            topic_id = ZERO_UUID if seen is None else seen.topic_id
            sent = OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=sorted(of_topic))
            asked.append(sent)
    return asked


def _named(broker: BrokerContext, topics: Sequence[OffsetFetchRequestTopics], *, by_id: bool) -> Sequence[_Asked]:
    if not by_id:
        return [_Asked(topic, topic.name) for topic in topics]
    found = [(topic, broker.view.topic_of_id(topic.topic_id)) for topic in topics]
    return [_Asked(topic, None if seen is None else seen.name) for topic, seen in found]


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
    """Return the answer as versions before 8 give it."""
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
