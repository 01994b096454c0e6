"""Consumer groups: list, describe and delete them, read and set their offsets.

Each call has a deadline, and retries while a coordinator moves or loads its groups. Needs brokers that find several
coordinators at once (KIP-699, since Apache Kafka 3.0).
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.errors import PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from pipeline.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pipeline.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseTopics,
)
from pipeline.protocol.schema import Message

DEFAULT_TIMEOUT_S = 30.0
DEAD = "Dead"
EMPTY = "Empty"

_MOVING = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group, and the broker that coordinates it."""

    id: str
    state: str
    protocol_type: str
    coordinator: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member. `assignment` has the format of the group's protocol; `consumer_protocol` reads that of consumers."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """The current state of a group. `protocol` is the assignor that its members agreed on."""

    id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: BrokerId
    members: Sequence[GroupMember]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The next offset that a group wants to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


async def list_groups(cluster: Cluster, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[GroupListing]:
    """Return all groups of all brokers, by id. Raises as `Cluster.request` if a broker stays without answer."""
    deadline = trio.current_time() + timeout_s
    failures = 0
    while True:
        try:
            return await _list_all(cluster, deadline)
        except (*UNREACHABLE, KafkaError) as error:
            if isinstance(error, KafkaError) and error.code not in _MOVING:
                raise
            last_error: PipelineError = error
        failures += 1
        if not await cluster.back_off(failures, deadline):
            raise last_error


async def _list_all(cluster: Cluster, deadline: float) -> list[GroupListing]:
    view = await cluster.refresh(timeout_s=max(0.001, deadline - trio.current_time()))
    found: dict[str, GroupListing] = {}
    for broker in view.brokers:
        response: ListGroupsResponse = await _ask(cluster, broker, ListGroupsRequest(), _top_level, deadline)
        for group in response.groups:
            found[group.group_id] = GroupListing(
                id=group.group_id, state=group.group_state, protocol_type=group.protocol_type, coordinator=broker
            )
    return [found[name] for name in sorted(found)]


async def describe_group(cluster: Cluster, group: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> GroupDescription:
    """Return state and members. Raises KafkaError (GROUP_ID_NOT_FOUND) for an unknown group, and for one of another
    protocol than consumers have had up to KIP-848.
    """
    coordinator, response = await _ask_coordinator(
        cluster, group, DescribeGroupsRequest(groups=[group]), _errors_of_described, timeout_s
    )
    described: DescribeGroupsResponse = response
    (told,) = described.groups
    if told.group_state == DEAD:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group} does not exist")
    return GroupDescription(
        id=group,
        state=told.group_state,
        protocol_type=told.protocol_type,
        protocol=told.protocol_data,
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=member.member_assignment,
            )
            for member in told.members
        ),
    )


async def fetch_offsets(
    cluster: Cluster, group: str, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> dict[TopicPartition, CommittedOffset]:
    """Return all committed offsets of a group; none for an unknown group. Raises KafkaError."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    _, response = await _ask_coordinator(cluster, group, request, _errors_of_offsets, timeout_s)
    fetched: OffsetFetchResponse = response
    (told,) = fetched.groups
    view = await cluster.fetch_all_topics(timeout_s=timeout_s)
    names = {topic.id: topic.name for topic in view.topics.values()}
    return {
        TopicPartition(_name_of(topic, names), partition.partition_index): CommittedOffset(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.metadata,
        )
        for topic in told.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


async def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> None:
    """Set offsets of a group without members. Raises KafkaError (UNKNOWN_MEMBER_ID if it has members).

    If a topic does not exist no offset is set (UNKNOWN_TOPIC_OR_PARTITION). A coordinator may refuse some partitions
    and set the others: the error says how many.
    """
    view = await cluster.fetch_all_topics(timeout_s=timeout_s)
    named = {topic_partition.topic for topic_partition in offsets}
    if missing := sorted(named - view.topics.keys()):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {missing[0]} does not exist; no offset was set")
    ids = view.topic_ids(named)
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for topic_partition, committed in sorted(offsets.items()):
        partition = OffsetCommitRequestPartition(
            partition_index=topic_partition.partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            committed_metadata=committed.metadata,
        )
        by_topic.setdefault(topic_partition.topic, []).append(partition)
    topics = [
        OffsetCommitRequestTopic(name=name, topic_id=ids[name], partitions=partitions)
        for name, partitions in by_topic.items()
    ]
    request = OffsetCommitRequest(group_id=group, topics=topics)
    names = {topic_id: name for name, topic_id in ids.items()}

    def errors_of(response: OffsetCommitResponse) -> Iterable[tuple[int, str]]:
        return [
            (part.error_code, f"partition {part.partition_index} of {topic.name or names.get(topic.topic_id)}")
            for topic in response.topics
            for part in topic.partitions
        ]

    await _ask_coordinator(cluster, group, request, errors_of, timeout_s)


async def delete_group(cluster: Cluster, group: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Remove a group and its offsets. Raises KafkaError (NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND)."""
    await _ask_coordinator(cluster, group, DeleteGroupsRequest(groups_names=[group]), _errors_of_deletions, timeout_s)


async def delete_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition], *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> None:
    """Delete committed offsets of a group, in topics that no member reads (KIP-496).

    Raises KafkaError (GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC). Partitions without offset are no error.
    """
    by_topic: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=number))
    topics = [OffsetDeleteRequestTopic(name=name, partitions=numbers) for name, numbers in by_topic.items()]
    request = OffsetDeleteRequest(group_id=group, topics=topics)
    await _ask_coordinator(cluster, group, request, _errors_of_deleted_offsets, timeout_s)


async def find_coordinator(cluster: Cluster, group: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> BrokerId:
    """Return the current coordinator of a group. Raises KafkaError, NetworkError."""
    response: FindCoordinatorResponse = await cluster.request_any(
        FindCoordinatorRequest(coordinator_keys=[group]), timeout_s=timeout_s
    )
    (found,) = response.coordinators
    if found.error_code != ErrorCode.NONE:
        raise KafkaError(found.error_code, f"coordinator of group {group}: {found.error_message or 'unknown'}")
    return BrokerId(found.node_id)


def _name_of(topic: OffsetFetchResponseTopics, names: Mapping[uuid.UUID, str]) -> str:
    """Return a topic's name, which version 10 and later replace by the id; a deleted topic has its id as name."""
    return topic.name or names.get(topic.topic_id, str(topic.topic_id))


_ErrorsOf = Callable[[Any], Iterable[tuple[int, str]]]
"""Function from a response to its error codes, each with its subject."""


async def _ask_coordinator(
    cluster: Cluster, group: str, message: Message, errors_of: _ErrorsOf, timeout_s: float
) -> tuple[BrokerId, Any]:
    deadline = trio.current_time() + timeout_s
    failures = 0
    while True:
        try:
            left_s = max(0.001, deadline - trio.current_time())
            coordinator = await find_coordinator(cluster, group, timeout_s=left_s)
            return coordinator, await _ask(cluster, coordinator, message, errors_of, deadline)
        except (*UNREACHABLE, KafkaError) as error:
            if isinstance(error, KafkaError) and error.code not in _MOVING:
                raise
            last_error: PipelineError = error
        failures += 1
        if not await cluster.back_off(failures, deadline):
            raise last_error
        await cluster.refresh(timeout_s=max(0.001, deadline - trio.current_time()))


async def _ask(cluster: Cluster, broker: BrokerId, message: Message, errors_of: _ErrorsOf, deadline: float) -> Any:
    timeout_s = max(0.001, min(deadline - trio.current_time(), cluster.config.request_timeout_ms / 1000))
    response = await cluster.request(broker, message, timeout_s=timeout_s)
    outcomes = list(errors_of(response))
    refused = [(code, about) for code, about in outcomes if code != ErrorCode.NONE]
    if refused:
        code, about = refused[0]
        parts = f"; {len(outcomes) - len(refused)} of {len(outcomes)} were done" if len(outcomes) > 1 else ""
        raise KafkaError(code, f"{about}: {ErrorCode.of(code).message}{parts}")
    return response


def _top_level(response: ListGroupsResponse) -> Iterable[tuple[int, str]]:
    return [(response.error_code, "groups")]


def _errors_of_described(response: DescribeGroupsResponse) -> Iterable[tuple[int, str]]:
    return [
        (group.error_code, f"group {group.group_id}" + (f": {group.error_message}" if group.error_message else ""))
        for group in response.groups
    ]


def _errors_of_offsets(response: OffsetFetchResponse) -> Iterable[tuple[int, str]]:
    return [(group.error_code, f"group {group.group_id}") for group in response.groups]


def _errors_of_deletions(response: DeleteGroupsResponse) -> Iterable[tuple[int, str]]:
    return [(result.error_code, f"group {result.group_id}") for result in response.results]


def _errors_of_deleted_offsets(response: OffsetDeleteResponse) -> Iterable[tuple[int, str]]:
    of_partitions = [
        (partition.error_code, f"offset of partition {partition.partition_index} of {topic.name}")
        for topic in response.topics
        for partition in topic.partitions
    ]
    return of_partitions if response.error_code == ErrorCode.NONE else [(response.error_code, "group")]
