"""DeleteRecords (21), v0 to v2: advance the log start offset of partitions (KIP-107); -1: to the high watermark.

- The answer holds the lowest log start offset of all live replicas. It comes when the leader's would survive a crash
  and the other replicas have advanced theirs.
- After the timeout it is REQUEST_TIMED_OUT; the records are deleted all the same, except in partitions not begun yet.
- Only topics whose `cleanup.policy` contains `delete` lose records.
"""

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
"""Minimum time in which the leader advances log start offsets: clients that send a timeout of 0 want it done."""
MAX_AT_A_TIME = 50
"""Partitions of a request that are changed concurrently."""


async def handle(
    broker: BrokerContext, request: DeleteRecordsRequest, _version: int, _caller: Caller
) -> DeleteRecordsResponse:
    """Answer when all partitions have their new log start offset, or at the request's timeout."""
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
