"""Progress of consumer groups: committed offsets beside the ends of the partitions, of one group and of many."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import trio

from pipeline.cli.terminal.connect import TIMEOUT_S, find_offsets_at
from pipeline.client.admin import groups
from pipeline.client.admin.groups import GroupDescription, GroupListing, GroupMember
from pipeline.client.admin.many_groups import Offsets, fetch_offsets_of
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.client.consumer.consumer_protocol import CONSUMER, decode_assignment
from pipeline.errors import DeadlineExceededError, NetworkError, ProtocolError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import KafkaError
from pipeline.protocol.messages.list_offsets import LATEST

GROUPS_PER_REQUEST = 100
RETRIED_AT_ONCE = 8
"""Groups that are asked for alone at the same time, because a request for many did not answer for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """Progress of a group in a partition. `end` (the high watermark) is None if the partition is gone or has no leader
    that answers.
    """

    topic_partition: TopicPartition
    committed: int | None
    end: int | None
    member: GroupMember | None
    is_silent: bool = False
    """True if the partition exists, and no broker reports its end."""

    @property
    def lag(self) -> int | None:
        """Number of records that the group has not read yet; None if unknown."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)

    def to_json(self) -> dict[str, object]:
        """The progress as `--json` prints it."""
        return {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "committed": self.committed,
            "end": self.end,
            "lag": self.lag,
            "member": None if self.member is None else self.member.id,
            "client_id": None if self.member is None else self.member.client_id,
            "host": None if self.member is None else self.member.host,
        }


def lag_of_all(progress: Iterable[PartitionProgress]) -> int | None:
    """Return the lag over all partitions that exist; None if it is unknown for one, or there are none."""
    lags = [partition.lag for partition in progress if partition.end is not None or partition.is_silent]
    return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)


async def lags_of(cluster: Cluster, listed: Sequence[GroupListing]) -> dict[str, int | None]:
    """Return the lag of each group over all partitions that it has committed; None if it is unknown, or there are none.

    Coordinators are asked at the same time, each for many groups in a request, and leaders for the ends once for all.
    """
    view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
    committed = await _offsets_of_many(cluster, view, listed)
    leaders = _leaders_in(view, {partition for offsets in committed.values() for partition in offsets})
    ends = await reported_offsets(cluster, leaders, LATEST)
    return {
        group.id: None if group.id not in committed else _lag(committed[group.id], leaders, ends) for group in listed
    }


def _lag(
    committed: Offsets, leaders: Mapping[TopicPartition, BrokerId | None], ends: Mapping[TopicPartition, int]
) -> int | None:
    if not committed:
        return None
    lag = 0
    for topic_partition, offset in committed.items():
        if offset is None or topic_partition not in leaders:  # a partition that does not exist any more
            continue
        if topic_partition not in ends:
            return None
        lag += max(0, ends[topic_partition] - offset.offset)
    return lag


async def _offsets_of_many(
    cluster: Cluster, view: ClusterMetadata, listed: Sequence[GroupListing]
) -> dict[str, Offsets]:
    """Return the offsets of those groups whose coordinators answer."""
    names = {topic.id: topic.name for topic in view.topics.values()}
    found: dict[str, Offsets] = {}
    by_coordinator: dict[BrokerId, list[str]] = {}
    for group in listed:
        by_coordinator.setdefault(group.coordinator, []).append(group.id)

    def name_of(name: str, topic_id: UUID) -> str | None:
        return name or names.get(topic_id)

    async def ask(coordinator: BrokerId, ids: Sequence[str]) -> None:
        for first in range(0, len(ids), GROUPS_PER_REQUEST):
            wanted = dict.fromkeys(ids[first : first + GROUPS_PER_REQUEST])
            with suppress(KafkaError, NetworkError, DeadlineExceededError, ProtocolError):
                answers = await fetch_offsets_of(cluster, coordinator, wanted, name_of, timeout_s=TIMEOUT_S)
                found.update({group: told for group, told in answers.items() if not isinstance(told, KafkaError)})

    async def ask_again(group: str, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            with suppress(KafkaError, NetworkError, DeadlineExceededError):
                found[group] = await groups.fetch_offsets(cluster, group, timeout_s=TIMEOUT_S)

    async with trio.open_nursery() as nursery:
        for coordinator, ids in by_coordinator.items():
            nursery.start_soon(ask, coordinator, ids)
    limiter = trio.CapacityLimiter(RETRIED_AT_ONCE)
    async with trio.open_nursery() as nursery:
        for group in listed:
            if group.id not in found:  # its coordinator moves, say
                nursery.start_soon(ask_again, group.id, limiter)
    return found


async def progress_of(
    cluster: Cluster, group: str, owners: Mapping[TopicPartition, GroupMember]
) -> list[PartitionProgress]:
    """Return the progress of a group in each partition that it has committed or that a member owns.

    Ends that leaders do not report are None. Raises KafkaError, NetworkError or DeadlineExceededError if the
    coordinator does not answer.
    """
    committed = await groups.fetch_offsets(cluster, group, timeout_s=TIMEOUT_S)
    partitions = sorted(committed.keys() | owners.keys())
    leaders = await leaders_of(cluster, partitions)
    ends = await reported_offsets(cluster, leaders, LATEST)
    return [
        PartitionProgress(
            topic_partition=topic_partition,
            committed=committed[topic_partition].offset if topic_partition in committed else None,
            end=ends.get(topic_partition),
            member=owners.get(topic_partition),
            is_silent=topic_partition in leaders and topic_partition not in ends,
        )
        for topic_partition in partitions
    ]


async def leaders_of(
    cluster: Cluster, topic_partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, BrokerId | None]:
    """Return the leaders of those partitions that exist."""
    return _leaders_in(await cluster.fetch_all_topics(timeout_s=TIMEOUT_S), topic_partitions)


def _leaders_in(
    view: ClusterMetadata, topic_partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, BrokerId | None]:
    found = {topic_partition: view.partition_of(topic_partition) for topic_partition in topic_partitions}
    return {each: partition.leader for each, partition in found.items() if partition is not None}


def read_assignments(group: GroupDescription) -> tuple[dict[TopicPartition, GroupMember], list[GroupMember]]:
    """Return the owner of each partition of a consumer group, and the members whose assignment is unreadable. Pure."""
    owners: dict[TopicPartition, GroupMember] = {}
    unreadable = []
    for member in group.members if group.protocol_type == CONSUMER else ():
        try:
            owners.update(dict.fromkeys(decode_assignment(member.assignment), member))
        except ProtocolError:
            unreadable.append(member)
    return owners, unreadable


async def reported_offsets(
    cluster: Cluster, leaders: Mapping[TopicPartition, BrokerId | None], position: int
) -> dict[TopicPartition, int]:
    """Return the offset of a position (EARLIEST, LATEST) in those partitions whose leaders answer."""
    found: dict[TopicPartition, int] = {}
    shares: dict[BrokerId, list[TopicPartition]] = {}
    for topic_partition, leader in leaders.items():
        if leader is not None:
            shares.setdefault(leader, []).append(topic_partition)

    async def ask(share: Sequence[TopicPartition]) -> None:
        with suppress(KafkaError, NetworkError, DeadlineExceededError):
            found.update(await find_offsets_at(cluster, share, position))

    async with trio.open_nursery() as nursery:
        for share in shares.values():
            nursery.start_soon(ask, share)
    return found
