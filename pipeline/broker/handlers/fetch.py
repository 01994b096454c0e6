"""Fetch (1): read batches, as they lie in the log. v4 (KIP-98) on; v9 fences by epoch (KIP-320), v13 names topics by
id (KIP-516).

The first batch is always whole, so that a consumer makes progress whatever its limits (KIP-74). Fetch sessions
(KIP-227) are not kept: every answer says session 0, and clients then send all partitions each time.

Long poll: with less than `min_bytes` at hand the request waits until that much was appended, or `max_wait_ms` passed.
It is woken by the append itself.
"""

from collections.abc import Awaitable
from dataclasses import dataclass, field

import trio

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.broker.partition import FetchWaiter, Partition
from pipeline.errors import PipelineError
from pipeline.model import LeaderEpoch, Offset
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

FIRST_VERSION_OF_TOPIC_IDS = 13
MAX_WAIT_MS = 60_000
READ_COMMITTED = 1


@dataclass(slots=True)
class _Reading:
    """An answer in the making."""

    remaining_bytes: int
    read_bytes: int = 0
    has_failure: bool = False
    topics: list[FetchableTopicResponse] = field(default_factory=list)
    partitions: list[Partition] = field(default_factory=list)
    """Those without failure, for a waiter to stand at."""


def handle(
    broker: BrokerContext, request: FetchRequest, version: int, _caller: Caller
) -> FetchResponse | Awaitable[FetchResponse]:
    """Answers at once if there is enough, or something went wrong."""
    if request.session_id != 0:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    reading = _read(broker, request, version)
    is_complete = reading.read_bytes >= request.min_bytes or reading.has_failure
    if is_complete or request.max_wait_ms <= 0 or not reading.partitions:
        return _answer(broker, reading)
    return _wait_and_answer(broker, request, version, reading)


async def _wait_and_answer(
    broker: BrokerContext, request: FetchRequest, version: int, reading: _Reading
) -> FetchResponse:
    waiter = FetchWaiter(request.min_bytes - reading.read_bytes)
    watched = tuple(reading.partitions)
    for partition in watched:
        partition.waiters.add(waiter)
    try:
        with trio.move_on_after(min(request.max_wait_ms, MAX_WAIT_MS) / 1000):
            await waiter.woken.wait()
    finally:
        for partition in watched:
            partition.waiters.discard(waiter)
    return _answer(broker, _read(broker, request, version))


def _read(broker: BrokerContext, request: FetchRequest, version: int) -> _Reading:
    reading = _Reading(remaining_bytes=min(request.max_bytes, broker.config.fetch_max_bytes))
    aborted_transactions = () if request.isolation_level == READ_COMMITTED else None
    for topic in request.topics:
        reading.topics.append(
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=tuple(
                    _read_partition(broker, topic, asked, version, aborted_transactions, reading)
                    for asked in topic.partitions
                ),
            )
        )
    return reading


def _read_partition(
    broker: BrokerContext,
    topic: FetchTopic,
    asked: FetchPartition,
    version: int,
    aborted_transactions: tuple[()] | None,
    reading: _Reading,
) -> PartitionData:
    try:
        epoch = LeaderEpoch(asked.current_leader_epoch)
        if version < FIRST_VERSION_OF_TOPIC_IDS:
            partition = broker.find_partition(topic.topic, asked.partition, epoch)
        else:
            partition = broker.find_partition_by_id(topic.topic_id, asked.partition, epoch)
        is_first = reading.read_bytes == 0
        region = partition.read(
            Offset(asked.fetch_offset),
            min(asked.partition_max_bytes, reading.remaining_bytes),
            must_progress=is_first,
        )
    except PipelineError as error:
        reading.has_failure = True
        return PartitionData(
            partition_index=asked.partition,
            error_code=failure_of(error).code,
            high_watermark=-1,
            aborted_transactions=aborted_transactions,
            records=b"",
        )
    if region is not None:
        reading.read_bytes += region.size
        reading.remaining_bytes -= region.size
        partition.bytes_out += region.size
    reading.partitions.append(partition)
    return PartitionData(
        partition_index=asked.partition,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.high_watermark,
        log_start_offset=partition.log.log_start_offset,
        aborted_transactions=aborted_transactions,
        records=b"" if region is None else region,
    )


def _answer(broker: BrokerContext, reading: _Reading) -> FetchResponse:
    broker.counts.fetch_partitions += sum(len(topic.partitions) for topic in reading.topics)
    broker.counts.failed_fetch_partitions += sum(
        data.error_code != ErrorCode.NONE for topic in reading.topics for data in topic.partitions
    )
    return FetchResponse(responses=reading.topics)
