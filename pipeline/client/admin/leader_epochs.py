"""End offsets of leader epochs (OffsetForLeaderEpoch), by which a reader notices a truncated log (KIP-320)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.leaders import ask_broker, ask_leaders
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """The largest epoch of a log that is not above an epoch, and its end offset; -1 and -1 if the leader knows none."""

    leader_epoch: int
    end_offset: int


NO_EPOCH_END = EpochEnd(leader_epoch=-1, end_offset=-1)


async def ends_of_epochs(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, timeout_s: float
) -> dict[TopicPartition, EpochEnd]:
    """Return where each partition's leader epoch ends in the log of the leader.

    If the end offset is below the position of a reader that read records of the epoch up to there, the log was
    truncated, and the records from the end offset on that were read no longer exist.

    Retries while leaders move; a leader in another epoch than the known one does not answer. Raises KafkaError,
    NetworkError or DeadlineExceededError if a partition stays without answer.
    """
    return await ask_leaders(cluster, epochs, _ask_ends, _read_ends, timeout_s=timeout_s)


async def ask_ends_once(
    cluster: Cluster,
    view: ClusterMetadata,
    leader: BrokerId,
    epochs: Mapping[TopicPartition, int],
    *,
    timeout_s: float,
    lane: str = "",
) -> dict[TopicPartition, tuple[int, EpochEnd]]:
    """Ask the leader of all these partitions as `ends_of_epochs` does, in the leader epochs of `view`, without a retry.

    Return an error code and an answer for each partition of the response. Raises as `Cluster.request`. Requests of
    other lanes do not wait behind this one.
    """
    return await ask_broker(cluster, view, leader, epochs, _ask_ends, _read_ends, timeout_s=timeout_s, lane=lane)


def _ask_ends(
    topics: Mapping[str, Mapping[int, int]], view: ClusterMetadata, _timeout_ms: int
) -> OffsetForLeaderEpochRequest:
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=tuple(
            OffsetForLeaderTopic(
                topic=name,
                partitions=tuple(
                    OffsetForLeaderPartition(
                        partition=number,
                        current_leader_epoch=view.leader_epoch_of(TopicPartition(name, number)),
                        leader_epoch=epoch,
                    )
                    for number, epoch in epochs.items()
                ),
            )
            for name, epochs in topics.items()
        ),
    )


def _read_ends(response: OffsetForLeaderEpochResponse) -> Iterator[tuple[TopicPartition, int, EpochEnd]]:
    for topic in response.topics:
        for partition in topic.partitions:
            end = EpochEnd(leader_epoch=partition.leader_epoch, end_offset=partition.end_offset)
            yield TopicPartition(topic.topic, partition.partition), partition.error_code, end
