"""Which offset is the first, the last, or that of a time: ListOffsets, asked of each partition's leader."""

from collections.abc import Mapping
from dataclasses import dataclass

import trio

from pipeline.client.cluster import UNREACHABLE, Cluster
from pipeline.errors import NetworkError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST = -1
"""The offset after the last record."""
EARLIEST = -2
"""The first offset the log still holds."""
MAX_TIMESTAMP = -3
"""The offset of the record with the highest timestamp (KIP-734)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """`offset` is -1 where no record is as late as the time asked for; `timestamp_ms` is -1 for EARLIEST and LATEST."""

    offset: int
    timestamp_ms: int


async def list_offsets(
    cluster: Cluster, positions: Mapping[TopicPartition, int], *, timeout_s: float
) -> dict[TopicPartition, ListedOffset]:
    """For each partition the offset of EARLIEST, LATEST, MAX_TIMESTAMP, or of the first record from that time (ms) on.

    Retries while leaders move. Raises KafkaError, NetworkError or DeadlineExceededError when one stays without answer.
    """
    deadline = trio.current_time() + timeout_s
    found: dict[TopicPartition, ListedOffset] = {}
    failures = 0
    cluster.track(topic_partition.topic for topic_partition in positions)
    while True:
        errors: list[Exception] = []
        shares: dict[BrokerId | None, dict[TopicPartition, int]] = {}
        for topic_partition, timestamp in positions.items():
            if topic_partition not in found:
                leader = cluster.view.leader_of(topic_partition)
                shares.setdefault(leader, {})[topic_partition] = timestamp
        async with trio.open_nursery() as nursery:
            for leader, share in shares.items():
                nursery.start_soon(_ask, cluster, leader, share, deadline, found, errors)
        if not errors:
            return found
        for error in errors:
            if isinstance(error, KafkaError) and not error.retriable:
                raise error
        failures += 1
        cluster.refresh_soon()
        if not await cluster.back_off(failures, deadline):
            raise errors[0]


async def _ask(
    cluster: Cluster,
    leader: BrokerId | None,
    share: Mapping[TopicPartition, int],
    deadline: float,
    found: dict[TopicPartition, ListedOffset],
    errors: list[Exception],
) -> None:
    """One request; adds what it learns to `found` and what failed to `errors`."""
    if leader is None:
        errors.append(_no_leader(cluster, next(iter(share))))
        return
    timeout_s = max(0.001, min(deadline - trio.current_time(), cluster.config.request_timeout_ms / 1000))
    try:
        response: ListOffsetsResponse = await cluster.request(
            leader, _request(share, int(timeout_s * 1000)), timeout_s=timeout_s
        )
    except (*UNREACHABLE, KafkaError) as error:
        errors.append(error)
        return
    for topic in response.topics:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code == ErrorCode.NONE:
                found[topic_partition] = _listed(partition)
            else:
                errors.append(KafkaError(partition.error_code, str(topic_partition)))


def _no_leader(cluster: Cluster, topic_partition: TopicPartition) -> Exception:
    code = cluster.view.errors.get(topic_partition.topic)
    if code is not None:
        return KafkaError(code, str(topic_partition))
    return NetworkError(f"{topic_partition}: the leader is not known or not registered")


def _request(share: Mapping[TopicPartition, int], timeout_ms: int) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for topic_partition, timestamp in share.items():
        topics.setdefault(topic_partition.topic, []).append(
            ListOffsetsPartition(partition_index=topic_partition.partition, timestamp=timestamp)
        )
    return ListOffsetsRequest(
        replica_id=-1,
        topics=tuple(ListOffsetsTopic(name=name, partitions=tuple(parts)) for name, parts in topics.items()),
        timeout_ms=timeout_ms,
    )


def _listed(partition: ListOffsetsPartitionResponse) -> ListedOffset:
    return ListedOffset(offset=partition.offset, timestamp_ms=partition.timestamp)
