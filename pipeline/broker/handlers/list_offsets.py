"""ListOffsets (2): the first offset at or after a time, or one of the ends. v1 (KIP-79), v4 fences by epoch (KIP-320).

Special times: -1 end, -2 start, -3 the record with the newest time (KIP-734, v7), -4 start of what is on local disk
(KIP-405, v8), which is the start, -5 end of what is on remote storage (KIP-1005, v9), of which there is none.
Each answer tells the epoch in which the record was written. Finding a record by its time opens one batch, in a thread.
For readers of committed records the log ends at its last stable offset.
"""

from collections.abc import Awaitable

import trio

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.broker.partition import Partition
from pipeline.errors import PipelineError
from pipeline.model import LeaderEpoch
from pipeline.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_REMOTE = -5
UNKNOWN = -1
READ_COMMITTED = 1


def handle(
    broker: BrokerContext, request: ListOffsetsRequest, _version: int, _caller: Caller
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Answers at once if only ends are asked for."""
    is_committed = request.isolation_level == READ_COMMITTED
    answers: dict[tuple[str, int], ListOffsetsPartitionResponse] = {}
    searches: list[tuple[str, Partition, ListOffsetsPartition]] = []
    for topic in request.topics:
        for asked in topic.partitions:
            try:
                partition = broker.find_partition(
                    topic.name, asked.partition_index, LeaderEpoch(asked.current_leader_epoch)
                )
                end = _find_end(partition, asked, is_committed=is_committed)
            except PipelineError as error:
                end = _failed(asked, error)
            if end is None:
                searches.append((topic.name, partition, asked))
            else:
                answers[topic.name, asked.partition_index] = end
    if searches:
        return _search_and_answer(request, searches, answers, is_committed=is_committed)
    return _answer(request, answers)


async def _search_and_answer(
    request: ListOffsetsRequest,
    searches: list[tuple[str, Partition, ListOffsetsPartition]],
    answers: dict[tuple[str, int], ListOffsetsPartitionResponse],
    *,
    is_committed: bool,
) -> ListOffsetsResponse:
    for topic, partition, asked in searches:
        try:
            found = await trio.to_thread.run_sync(partition.find_timestamp, _search_time(asked))
            if found is not None and is_committed and found[1] >= partition.last_stable_offset:
                found = None
        except PipelineError as error:
            answers[topic, asked.partition_index] = _failed(asked, error)
            continue
        timestamp, offset = found if found is not None else (UNKNOWN, UNKNOWN)
        answers[topic, asked.partition_index] = ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=partition.log.epoch_at(found[1]) if found is not None else UNKNOWN,
        )
    return _answer(request, answers)


def _search_time(asked: ListOffsetsPartition) -> int | None:
    return None if asked.timestamp == MAX_TIMESTAMP else asked.timestamp


def _find_end(
    partition: Partition, asked: ListOffsetsPartition, *, is_committed: bool
) -> ListOffsetsPartitionResponse | None:
    """The answer, if no search is needed for it."""
    epoch: int = partition.leader_epoch
    if asked.timestamp == LATEST:
        offset: int = partition.last_stable_offset if is_committed else partition.high_watermark
    elif asked.timestamp in {EARLIEST, EARLIEST_LOCAL}:
        offset = partition.log.log_start_offset
        epoch = partition.log.epoch_at(partition.log.log_start_offset)
    elif asked.timestamp == LATEST_REMOTE:
        offset = epoch = UNKNOWN
    else:
        return None
    return ListOffsetsPartitionResponse(partition_index=asked.partition_index, offset=offset, leader_epoch=epoch)


def _failed(asked: ListOffsetsPartition, error: PipelineError) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=failure_of(error).code)


def _answer(
    request: ListOffsetsRequest, answers: dict[tuple[str, int], ListOffsetsPartitionResponse]
) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(answers[topic.name, asked.partition_index] for asked in topic.partitions),
            )
            for topic in request.topics
        )
    )
