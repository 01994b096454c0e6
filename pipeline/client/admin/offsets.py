"""Offsets of positions and times (ListOffsets), and deletion of records (DeleteRecords)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import IsolationLevel
from pipeline.client.cluster.leaders import ask_broker, ask_leaders, by_leader
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import NetworkError, PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from pipeline.protocol.messages.list_offsets import (
    LATEST,
    NO_RANGE,
    AskedRange,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

ALL_RECORDS = -1
"""Delete all records before the high watermark."""
MAX_NAMED = 5
"""Partitions named in one message."""


class PartlyDeletedError(KafkaError):
    """Records of some partitions were deleted, `deleted` (with their new log start offsets), before one failed.

    REQUEST_TIMED_OUT: a leader stayed without answer, and may have deleted records.
    """

    def __init__(self, reason: PipelineError, deleted: Mapping[TopicPartition, int]) -> None:
        self.deleted = dict(deleted)
        code, detail = ErrorCode.REQUEST_TIMED_OUT, str(reason)
        if isinstance(reason, KafkaError):
            code, detail = reason.code, reason.detail or reason.code.message
        named = ", ".join(map(str, sorted(deleted)[:MAX_NAMED])) + (" and more" if len(deleted) > MAX_NAMED else "")
        super().__init__(code, f"{detail}; records of {named} were deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """An offset and its time. `offset` is -1 if all records are older; `timestamp_ms` is -1 for EARLIEST, LATEST."""

    offset: int
    timestamp_ms: int


async def list_offsets(
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, ListedOffset]:
    """Return each partition's offset of EARLIEST, LATEST, MAX_TIMESTAMP, or of the first record since a time in ms.

    With READ_COMMITTED, LATEST is the last stable offset, and times are sought before it.
    Retries while leaders move; a leader in another epoch than the known one does not answer. Raises KafkaError,
    NetworkError or DeadlineExceededError if a partition stays without answer.
    """
    request = partial(list_offsets_request, isolation_level=isolation_level)
    return await ask_leaders(cluster, positions, request, _read_offsets, timeout_s=timeout_s)


async def list_offsets_once(
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    lane: str,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> tuple[dict[TopicPartition, ListedOffset], list[PipelineError]]:
    """Ask each leader once for offsets as `list_offsets` does. Return the answers, and why others are missing.

    A partition without leader costs no time. Requests of other lanes do not wait behind these.
    """
    cluster.track(topic_partition.topic for topic_partition in positions)
    found: dict[TopicPartition, ListedOffset] = {}
    errors: list[PipelineError] = []
    if not all(cluster.view.knows(topic_partition.topic) for topic_partition in positions):
        try:
            await cluster.refresh(timeout_s=timeout_s)
        except PipelineError as error:
            return found, [error]

    async def ask(leader: BrokerId, asked: Mapping[TopicPartition, int]) -> None:
        try:
            with unwrapped_errors():
                answers = await list_offsets_at(
                    cluster, leader, asked, timeout_s=timeout_s, lane=lane, isolation_level=isolation_level
                )
        except PipelineError as error:
            errors.append(error)
        else:
            found.update(answers)
            if missing := asked.keys() - answers.keys():
                errors.append(NetworkError(f"{min(missing)}: broker {leader} did not tell its offsets"))

    async with trio.open_nursery() as nursery:
        for leader, asked in by_leader(cluster.view, positions).items():
            if leader is None:
                errors.append(NetworkError(f"{min(asked)}: the leader is unknown or not registered"))
            else:
                nursery.start_soon(ask, leader, asked)
    if errors:
        cluster.refresh_soon()
    return found, errors


async def list_offsets_at(
    cluster: Cluster,
    broker: BrokerId,
    positions: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    lane: str,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, ListedOffset]:
    """Ask one broker once for offsets as `list_offsets` does. Partitions that it answers with an error are left out.

    Raises as `Cluster.request`. Requests of other lanes do not wait behind this one.
    """
    request = partial(list_offsets_request, isolation_level=isolation_level)
    answers = await ask_broker(
        cluster, cluster.view, broker, positions, request, _read_offsets, timeout_s=timeout_s, lane=lane
    )
    return {
        topic_partition: listed
        for topic_partition, (code, listed) in answers.items()
        if code == ErrorCode.NONE and topic_partition in positions
    }


def list_offsets_request(
    topics: Mapping[str, Mapping[int, int | AskedRange]],
    view: ClusterMetadata,
    timeout_ms: int,
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> ListOffsetsRequest:
    """Return a request for the offset of each partition's position, or for sums over a range of its offsets."""
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=tuple(
            ListOffsetsTopic(
                name=name,
                partitions=tuple(
                    ListOffsetsPartition(
                        partition_index=number,
                        current_leader_epoch=view.leader_epoch_of(TopicPartition(name, number)),
                        timestamp=LATEST if isinstance(asked, AskedRange) else asked,
                        range_sums=asked if isinstance(asked, AskedRange) else NO_RANGE,
                    )
                    for number, asked in partitions.items()
                ),
            )
            for name, partitions in topics.items()
        ),
        timeout_ms=timeout_ms,
    )


def _read_offsets(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, int, ListedOffset]]:
    for topic in response.topics:
        for partition in topic.partitions:
            listed = ListedOffset(offset=partition.offset, timestamp_ms=partition.timestamp)
            yield TopicPartition(topic.name, partition.partition_index), partition.error_code, listed


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], *, timeout_s: float
) -> dict[TopicPartition, int]:
    """Delete the records before each partition's offset (or ALL_RECORDS), and return the new log start offsets.

    Retries while leaders move. Raises KafkaError, NetworkError or DeadlineExceededError if a partition stays without
    answer, and PartlyDeletedError if records of others were deleted.
    """
    deleted: dict[TopicPartition, int] = {}

    def read(response: DeleteRecordsResponse) -> Iterator[tuple[TopicPartition, int, int]]:
        for topic_partition, code, start in _read_deletion(response):
            if code == ErrorCode.NONE:
                deleted[topic_partition] = start
            yield topic_partition, code, start

    try:
        return await ask_leaders(cluster, before, _ask_deletion, read, timeout_s=timeout_s)
    except PipelineError as error:
        if not deleted:
            raise
        raise PartlyDeletedError(error, deleted) from error


def _ask_deletion(
    topics: Mapping[str, Mapping[int, int]], _view: ClusterMetadata, timeout_ms: int
) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        topics=tuple(
            DeleteRecordsTopic(
                name=name,
                partitions=tuple(
                    DeleteRecordsPartition(partition_index=number, offset=offset) for number, offset in before.items()
                ),
            )
            for name, before in topics.items()
        ),
        timeout_ms=timeout_ms,
    )


def _read_deletion(response: DeleteRecordsResponse) -> Iterator[tuple[TopicPartition, int, int]]:
    for topic in response.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition.error_code, partition.low_watermark
