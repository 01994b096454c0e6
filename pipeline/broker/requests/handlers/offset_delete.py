"""OffsetDelete (47), v0: delete committed offsets of topics that the group's members do not subscribe to (KIP-496)."""

from collections.abc import Awaitable

from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import CONSUMER_PROTOCOL_TYPE
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import Turns, give_way
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

PARTITIONS_AT_ONCE = 2000
"""Partitions that are checked before other requests have a turn."""


def handle(
    broker: BrokerContext, request: OffsetDeleteRequest, _version: int, _caller: Caller
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    """Answer at once if the group has no members and there is nothing to write."""
    try:
        group = _check_group(broker, request.group_id)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    asked = sum(len(topic.partitions) for topic in request.topics)
    if asked > PARTITIONS_AT_ONCE or group.roster.members:  # reading subscriptions may take 20 ms
        return _delete_in_turns(broker, request, group)
    errors: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        for part in topic.partitions:
            _refuse(broker, group, TopicPartition(topic.name, part.partition_index), errors)
    if all(error is not ErrorCode.NONE for error in errors.values()):
        return OffsetDeleteResponse(topics=[_answer_topic(topic, errors) for topic in request.topics])
    return _delete_and_answer(broker, request, errors, Turns(PARTITIONS_AT_ONCE))


async def _delete_in_turns(broker: BrokerContext, request: OffsetDeleteRequest, group: Group) -> OffsetDeleteResponse:
    errors: dict[TopicPartition, ErrorCode] = {}
    turns = Turns(PARTITIONS_AT_ONCE)
    await give_way()
    for topic in request.topics:
        for part in topic.partitions:
            _refuse(broker, group, TopicPartition(topic.name, part.partition_index), errors)
            await turns.after()
    return await _delete_and_answer(broker, request, errors, turns)


def _check_group(broker: BrokerContext, group_id: str) -> Group:
    group = broker.groups.coordinator.find(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.roster.members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def _refuse(
    broker: BrokerContext, group: Group, topic_partition: TopicPartition, errors: dict[TopicPartition, ErrorCode]
) -> None:
    if broker.view.partition(topic_partition) is None:
        errors[topic_partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif group.subscribed_topics is not None and topic_partition.topic in group.subscribed_topics:
        errors[topic_partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    else:
        errors[topic_partition] = ErrorCode.NONE


async def _delete_and_answer(
    broker: BrokerContext, request: OffsetDeleteRequest, errors: dict[TopicPartition, ErrorCode], turns: Turns
) -> OffsetDeleteResponse:
    topic_partitions = [topic_partition for topic_partition, error in errors.items() if error is ErrorCode.NONE]
    try:
        await broker.groups.offsets.delete(request.group_id, topic_partitions)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    answers = []
    for topic in request.topics:
        answers.append(_answer_topic(topic, errors))
        await turns.after(len(topic.partitions))
    return OffsetDeleteResponse(topics=answers)


def _answer_topic(
    topic: OffsetDeleteRequestTopic, errors: dict[TopicPartition, ErrorCode]
) -> OffsetDeleteResponseTopic:
    partitions = [
        OffsetDeleteResponsePartition(
            partition_index=part.partition_index, error_code=errors[TopicPartition(topic.name, part.partition_index)]
        )
        for part in topic.partitions
    ]
    return OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)
