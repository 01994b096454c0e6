"""ListOffsets (2), v1 to v11: the first offset at or after a timestamp, or an end of the log (KIP-79). v4: KIP-320.

Special timestamps: -1 end, -2 start, -3 the record with the largest timestamp (KIP-734, v7), -4 start on local disk
(KIP-405, v8), the same as -2, -5 end on remote storage (KIP-1005, v9) and -6 start of what must still be uploaded there
(KIP-1023, v11), both unknown. Other negative ones are UNSUPPORTED_VERSION, as in Kafka: a client must not take the
first record for an end that this broker does not know.

- The end is the last stable offset for read_committed, the high watermark for other clients, the log end offset for
  followers. A new leader whose high watermark is below the start of its epoch does not know how far consumers have
  read, and refuses to name an end that might be lower (KIP-207).
- A search by timestamp opens one batch, in pieces, in threads of its log dir: at most SEARCHERS, so that flushes find
  threads, and a hung disk holds up its own partitions alone. It ends when its client leaves, or after MAX_SEARCH_S once
  its disk answers.
- A batch that cannot be opened, or holds too much, is found at its base offset with its largest timestamp: readers
  begin a little earlier.
- A partition that asks for `range_sums` (`range_summing`) is summed in the same threads and turns.
"""

from collections.abc import Awaitable
from functools import partial
from typing import NamedTuple

import trio

from pipeline.broker.failures import failure_of
from pipeline.broker.replication.partition import Partition
from pipeline.broker.requests.context import BrokerContext, Caller
from pipeline.broker.requests.range_summing import SLICE_S, check_range, sum_range_of
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, LeaderEpoch, Offset
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import READ_COMMITTED
from pipeline.protocol.messages.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    FIRST_VERSION_OF_OFFSET_NOT_AVAILABLE,
    LATEST,
    LATEST_REMOTE,
    MAX_TIMESTAMP,
    NO_RANGE,
    SPECIAL_TIMES,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from pipeline.records.memory import max_opened_bytes
from pipeline.records.turns import Steps

NEVER = 2**15
UNKNOWN = -1
MAX_SEARCH_S = 30.0
"""Time for all searches of a request; later partitions are answered with REQUEST_TIMED_OUT."""


class _Reader(NamedTuple):
    """The client or follower that sends the request."""

    version: int
    is_committed: bool
    is_follower: bool

    def end_of(self, partition: Partition) -> Offset:
        """Return the end of the records that the reader may see."""
        if self.is_follower:
            return partition.log.log_end_offset
        return partition.last_stable_offset if self.is_committed else partition.high_watermark

    def check_known(self, partition: Partition) -> None:
        """Raise KafkaError if consumers may have seen records beyond the high watermark that a new leader knows."""
        leadership = partition.leadership
        if leadership is not None and leadership.is_behind_epoch and not self.is_follower:
            is_known_code = self.version >= FIRST_VERSION_OF_OFFSET_NOT_AVAILABLE
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE if is_known_code else ErrorCode.LEADER_NOT_AVAILABLE)


def handle(
    broker: BrokerContext, request: ListOffsetsRequest, version: int, _caller: Caller
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Answer at once if no timestamp must be searched for."""
    reader = _Reader(
        version, request.isolation_level == READ_COMMITTED, broker.is_other_broker(BrokerId(request.replica_id))
    )
    answers: dict[tuple[str, int], ListOffsetsPartitionResponse] = {}
    searches: list[tuple[str, Partition, ListOffsetsPartition]] = []
    for topic in request.topics:
        for asked in topic.partitions:
            try:
                partition = broker.find_partition(
                    topic.name, asked.partition_index, LeaderEpoch(asked.current_leader_epoch)
                )
                end = _find_end(partition, asked, reader)
            except PipelineError as error:
                end = _failed(asked, error)
            if end is None:
                searches.append((topic.name, partition, asked))
            else:
                answers[topic.name, asked.partition_index] = end
    if searches:
        return _search_and_answer(broker, request, searches, answers, reader)
    return _answer(request, answers)


async def _search_and_answer(
    broker: BrokerContext,
    request: ListOffsetsRequest,
    searches: list[tuple[str, Partition, ListOffsetsPartition]],
    answers: dict[tuple[str, int], ListOffsetsPartitionResponse],
    reader: _Reader,
) -> ListOffsetsResponse:
    begun_s = trio.current_time()
    for topic, partition, asked in searches:
        try:
            log_dir = partition.log.directory.parent
            in_thread = partial(broker.replicas.disks.run, log_dir)
            search = partial(broker.fetch.searchers[log_dir].run, deadline=begun_s + MAX_SEARCH_S, in_thread=in_thread)
            if asked.range_sums != NO_RANGE:
                summed = await search(sum_range_of(partition, asked.range_sums, begun_s + SLICE_S))
                answers[topic, asked.partition_index] = ListOffsetsPartitionResponse(
                    partition_index=asked.partition_index, leader_epoch=partition.leader_epoch, range_sums=summed
                )
                continue
            timestamp_or_newest = None if asked.timestamp == MAX_TIMESTAMP else asked.timestamp
            found = await search(find_timestamp(partition, timestamp_or_newest))
            if found is not None and found[1] >= reader.end_of(partition):
                found = None
            if found is None:
                reader.check_known(partition)
        except PipelineError as error:
            answers[topic, asked.partition_index] = _failed(asked, error)
            continue
        timestamp, offset = found if found is not None else (UNKNOWN, UNKNOWN)
        answers[topic, asked.partition_index] = ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=partition.log.snapshot.epochs.epoch_at(found[1]) if found is not None else UNKNOWN,
        )
    return _answer(request, answers)


def find_timestamp(partition: Partition, timestamp: int | None) -> Steps[tuple[int, Offset] | None]:
    """Find the first record at or after a timestamp (None: the newest), and return its timestamp and offset.

    Raises what the log's `offset_for_timestamp` raises.
    """
    newest = partition.log.snapshot.max_timestamp
    if timestamp is None and newest < 0:
        return None
    return (
        yield from partition.log.offset_for_timestamp(
            newest if timestamp is None else timestamp, max_opened_bytes(partition.settings.max_message_bytes)
        )
    )


def _find_end(
    partition: Partition, asked: ListOffsetsPartition, reader: _Reader
) -> ListOffsetsPartitionResponse | None:
    """Return the answer; None if the log must be searched or summed. Raises KafkaError, OffsetOutOfRangeError."""
    epoch: int = partition.leader_epoch
    if asked.range_sums != NO_RANGE:
        reader.check_known(partition)
        check_range(partition, asked.range_sums)
        return None
    if asked.timestamp < 0 and reader.version < SPECIAL_TIMES.get(asked.timestamp, NEVER):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if asked.timestamp == LATEST:
        reader.check_known(partition)
        offset: int = reader.end_of(partition)
    elif asked.timestamp in {EARLIEST, EARLIEST_LOCAL}:
        offset = partition.log.log_start_offset
        epoch = partition.log.snapshot.epochs.epoch_at(partition.log.log_start_offset)
    elif asked.timestamp in {LATEST_REMOTE, EARLIEST_PENDING_UPLOAD}:
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
