"""DeleteRecords (21): the start of partitions moves forward (KIP-107). Offset -1 stands for the high watermark.

Answered, with the lowest start of all live replicas, when the leader's would survive a crash and the others have moved
theirs; after the timeout with REQUEST_TIMED_OUT, and the records go nevertheless, but for those of partitions whose
turn had not come by then. Only topics whose `cleanup.policy` contains `delete` lose records.
"""

from collections.abc import Awaitable

import trio

from pipeline.broker.failures import failure_of
from pipeline.broker.replication.partition import Partition
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.runtime.slicing import for_each
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
MIN_WORK_S = 5.0
"""The leader moves starts for so long, whatever the request's timeout: with one of 0 clients want it done."""
MAX_AT_A_TIME = 50
"""Partitions of a request whose start moves at a time."""


def handle(
    broker: BrokerContext, request: DeleteRecordsRequest, _version: int, _caller: Caller
) -> Awaitable[DeleteRecordsResponse]:
    """Answers when all partitions have their new start."""
    return _handle(broker, request)


async def _handle(broker: BrokerContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    results: dict[TopicPartition, DeleteRecordsPartitionResult] = {}
    moved: dict[TopicPartition, tuple[Partition, Offset]] = {}
    began = trio.current_time()
    deadline = began + max(0, min(request.timeout_ms, MAX_WAIT_MS)) / 1000
    last_turn = max(deadline, began + MIN_WORK_S)

    def answer(topic_partition: TopicPartition, code: ErrorCode, low_watermark: int = NO_LOW_WATERMARK) -> None:
        results[topic_partition] = DeleteRecordsPartitionResult(
            partition_index=topic_partition.partition, low_watermark=low_watermark, error_code=code
        )

    async def move(asked: tuple[TopicPartition, int]) -> None:
        topic_partition, offset = asked
        try:
            partition = _find(broker, topic_partition)
            if trio.current_time() >= last_turn:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "too many partitions for the timeout")
            moved[topic_partition] = partition, await partition.delete_records(Offset(offset))
        except PipelineError as error:
            answer(topic_partition, failure_of(error).code)

    async def wait(topic_partition: TopicPartition) -> None:
        partition, start = moved[topic_partition]
        try:
            leadership = partition.leading()
            await leadership.wait_deleted(start, deadline)
            answer(topic_partition, ErrorCode.NONE, leadership.low_watermark)
        except PipelineError as error:
            answer(topic_partition, failure_of(error).code)

    wanted = (
        (TopicPartition(topic.name, asked.partition_index), asked.offset)
        for topic in request.topics
        for asked in topic.partitions
    )
    await for_each(wanted, MAX_AT_A_TIME, move)
    await for_each(moved, MAX_AT_A_TIME, wait)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[results[TopicPartition(topic.name, asked.partition_index)] for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _find(broker: BrokerContext, topic_partition: TopicPartition) -> Partition:
    topic = broker.view.topic(topic_partition.topic)
    if topic is not None and topic.is_internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "records of an internal topic are not deleted")
    partition = broker.find_partition(topic_partition.topic, topic_partition.partition)
    if not partition.settings.is_deleted_from:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "cleanup.policy of the topic does not contain delete")
    return partition
