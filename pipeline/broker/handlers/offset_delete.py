"""OffsetDelete (47), v0: a group forgets offsets of topics that its members do not read (KIP-496)."""

from collections.abc import Awaitable

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.groups.group import Group
from pipeline.broker.groups.model import CONSUMER_PROTOCOL_TYPE
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(
    broker: BrokerContext, request: OffsetDeleteRequest, _version: int, _caller: Caller
) -> OffsetDeleteResponse | Awaitable[OffsetDeleteResponse]:
    """Answers at once if there is nothing to be written."""
    try:
        group = _check_group(broker, request.group_id)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    errors = {
        TopicPartition(topic.name, part.partition_index): _refusal(broker, group, topic.name, part.partition_index)
        for topic in request.topics
        for part in topic.partitions
    }
    if all(error is not ErrorCode.NONE for error in errors.values()):
        return _answer(request, errors)
    return _delete_and_answer(broker, request, errors)


def _check_group(broker: BrokerContext, group_id: str) -> Group:
    group = broker.coordinator.find(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    if group.roster.members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    return group


def _refusal(broker: BrokerContext, group: Group, topic: str, index: int) -> ErrorCode:
    if broker.view.partition(TopicPartition(topic, index)) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if group.subscribed_topics is not None and topic in group.subscribed_topics:
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


async def _delete_and_answer(
    broker: BrokerContext, request: OffsetDeleteRequest, errors: dict[TopicPartition, ErrorCode]
) -> OffsetDeleteResponse:
    names = [name for name, error in errors.items() if error is ErrorCode.NONE]
    try:
        await broker.offsets.delete(request.group_id, names)
    except KafkaError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return _answer(request, errors)


def _answer(request: OffsetDeleteRequest, errors: dict[TopicPartition, ErrorCode]) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=part.partition_index,
                        error_code=errors[TopicPartition(topic.name, part.partition_index)],
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )
