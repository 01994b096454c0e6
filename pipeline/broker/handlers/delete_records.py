"""DeleteRecords (21): the start of partitions moves forward (KIP-107). Offset -1 stands for the high watermark.

Answered when the new start would survive a crash. Only topics whose `cleanup.policy` contains `delete` lose records.
"""

from collections.abc import Awaitable

import trio

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.errors import PipelineError
from pipeline.model import Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_LOW_WATERMARK = -1


def handle(
    broker: BrokerContext, request: DeleteRecordsRequest, _version: int, _caller: Caller
) -> Awaitable[DeleteRecordsResponse]:
    """Answers when all partitions have their new start."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    results: dict[TopicPartition, DeleteRecordsPartitionResult] = {}
    async with trio.open_nursery() as nursery:
        for topic in request.topics:
            for asked in topic.partitions:
                nursery.start_soon(
                    _delete, broker, TopicPartition(topic.name, asked.partition_index), asked.offset, results
                )
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[results[TopicPartition(topic.name, asked.partition_index)] for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _delete(
    broker: BrokerContext,
    topic_partition: TopicPartition,
    offset: int,
    results: dict[TopicPartition, DeleteRecordsPartitionResult],
) -> None:
    code, start = ErrorCode.NONE, NO_LOW_WATERMARK
    try:
        start = await _delete_records(broker, topic_partition, offset)
    except PipelineError as error:
        code = failure_of(error).code
    results[topic_partition] = DeleteRecordsPartitionResult(
        partition_index=topic_partition.partition, low_watermark=start, error_code=code
    )


async def _delete_records(broker: BrokerContext, topic_partition: TopicPartition, offset: int) -> Offset:
    topic = broker.view.topic(topic_partition.topic)
    if topic is not None and topic.is_internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "records of an internal topic are not deleted")
    partition = broker.find_partition(topic_partition.topic, topic_partition.partition)
    if not partition.settings.is_deleted_from:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "cleanup.policy of the topic does not contain delete")
    return await partition.delete_records(Offset(offset))
