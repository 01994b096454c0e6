"""DeleteRecords (21): the start of partitions moves forward (KIP-107). Offset -1 stands for the high watermark.

Answered, with the lowest start of all live replicas, when the leader's would survive a crash and the others have moved
theirs; after the timeout with REQUEST_TIMED_OUT, and the records go nevertheless. Only topics whose `cleanup.policy`
contains `delete` lose records.
"""

from collections.abc import Awaitable

import trio

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.broker.partition import Partition
from pipeline.broker.slicing import for_each
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
MAX_WAIT_MS = 600_000
MAX_AT_A_TIME = 50
"""Partitions of a request whose start moves at a time."""


def handle(
    broker: BrokerContext, request: DeleteRecordsRequest, _version: int, _caller: Caller
) -> Awaitable[DeleteRecordsResponse]:
    """Answers when all partitions have their new start."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    results: dict[TopicPartition, DeleteRecordsPartitionResult] = {}
    deadline = trio.current_time() + max(0, min(request.timeout_ms, MAX_WAIT_MS)) / 1000

    async def delete(asked: tuple[TopicPartition, int]) -> None:
        await _delete(broker, *asked, deadline, results)

    wanted = (
        (TopicPartition(topic.name, asked.partition_index), asked.offset)
        for topic in request.topics
        for asked in topic.partitions
    )
    await for_each(wanted, MAX_AT_A_TIME, delete)
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
    deadline: float,
    results: dict[TopicPartition, DeleteRecordsPartitionResult],
) -> None:
    code, start = ErrorCode.NONE, NO_LOW_WATERMARK
    try:
        partition = _find(broker, topic_partition)
        wanted = await partition.delete_records(Offset(offset))
        await partition.wait_deleted(wanted, deadline)
        start = partition.low_watermark
    except PipelineError as error:
        code = failure_of(error).code
    results[topic_partition] = DeleteRecordsPartitionResult(
        partition_index=topic_partition.partition, low_watermark=start, error_code=code
    )


def _find(broker: BrokerContext, topic_partition: TopicPartition) -> Partition:
    topic = broker.view.topic(topic_partition.topic)
    if topic is not None and topic.is_internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "records of an internal topic are not deleted")
    partition = broker.find_partition(topic_partition.topic, topic_partition.partition)
    if not partition.settings.is_deleted_from:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "cleanup.policy of the topic does not contain delete")
    return partition
