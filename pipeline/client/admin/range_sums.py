"""Sums over the batches of offset ranges, computed by the brokers that lead the partitions (`range_sums`)."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.client.admin.offsets import list_offsets_request
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.leaders import ask_leaders
from pipeline.errors import NetworkError
from pipeline.model import TopicPartition
from pipeline.protocol.messages.list_offsets import (
    FIRST_VERSION_OF_KINDS,
    RANGE_SUMS_FEATURE,
    AskedRange,
    ListOffsetsResponse,
    SummedRange,
)
from pipeline.records.batch_sums import BatchSums, SumKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSums:
    """Sums over the batches of a partition whose last offsets lie before `next_offset`.

    That is the end of the asked range, or the offset to continue at. Batches before `clean_offset` may have been
    compacted; None: nothing is known about that. `damage` says why the log cannot be read at `next_offset`.
    """

    sums: BatchSums
    next_offset: int
    clean_offset: int | None
    damage: str | None = None


async def can_sum_ranges(cluster: Cluster, topic_partition: TopicPartition) -> bool:
    """Return True if the partition's leader answers `ask_range_sums`. Raises NetworkError, DeadlineExceededError."""
    return await _version(cluster, topic_partition) > 0


async def can_sum_contents(cluster: Cluster, topic_partition: TopicPartition) -> bool:
    """Return True if the leader can sum frames and contents. Raises NetworkError, DeadlineExceededError."""
    return await _version(cluster, topic_partition) >= FIRST_VERSION_OF_KINDS


async def _version(cluster: Cluster, topic_partition: TopicPartition) -> int:
    """Return the highest version of range sums that the leader knows; 0 if it knows none."""
    leader = cluster.view.leader_of(topic_partition)
    if leader is None:
        cluster.refresh_soon()
        raise NetworkError(f"{topic_partition}: the leader is unknown or not registered")
    _, highest = (await cluster.features(leader)).get(RANGE_SUMS_FEATURE, (0, 0))
    return highest


async def ask_range_sums(
    cluster: Cluster,
    topic_partition: TopicPartition,
    from_offset: int,
    up_to_offset: int,
    *,
    is_deep: bool = False,
    kind: SumKind = SumKind.HEADERS,
    timeout_s: float,
) -> PartitionSums:
    """Return sums over the batches whose last offsets lie from `from_offset` on and before `up_to_offset`.

    The broker stops after about a second: continue at `next_offset`, which is beyond `from_offset` unless the range is
    empty or the log is damaged. With `is_deep`, and for CONTENTS, the broker reads all batches and computes their
    checksums. Call it only for a leader that `can_sum_ranges`, and for other kinds than HEADERS one that
    `can_sum_contents`. Raises KafkaError (OFFSET_OUT_OF_RANGE outside of the log), NetworkError,
    DeadlineExceededError.
    """
    asked = AskedRange(from_offset=from_offset, up_to_offset=up_to_offset, is_deep=is_deep, kind=kind)
    found = await ask_leaders(cluster, {topic_partition: asked}, list_offsets_request, _read_sums, timeout_s=timeout_s)
    summed = found[topic_partition]
    return PartitionSums(
        sums=BatchSums(
            batches=summed.batches,
            records=summed.records,
            size_bytes=summed.size_bytes,
            digest=summed.digest,
            first_offset=summed.first_offset,
            last_offset=summed.last_offset,
            damaged_batches=summed.damaged_batches,
            damaged_offset=summed.damaged_offset,
        ),
        next_offset=summed.next_offset,
        clean_offset=summed.clean_offset,
        damage=summed.damage,
    )


def _read_sums(response: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, int, SummedRange]]:
    for topic in response.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition.error_code, partition.range_sums
