"""Groups by the hundred: coordinators, states and committed offsets of many groups in few requests.

For services that compare all groups of a cluster again and again. Nothing is retried: an error belongs to the caller's
next round. Requests to a given broker have a connection of their own (`LANE`), so that no other request waits behind
them or fails with them. `groups.py` serves a single group, with retries.
"""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from pipeline.client.admin.groups import DEAD, CommittedOffset, GroupListing
from pipeline.client.cluster.cluster import Cluster
from pipeline.model import BrokerId, HostPort, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from pipeline.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

LANE = "groups"
OF_CONSUMERS = frozenset({"", "classic", "consumer"})
"""Types of groups that commit offsets; brokers before KIP-848 name none."""

NameOf = Callable[[str, uuid.UUID], str | None]
"""Function from a topic's name, or its id where the protocol names topics by id, to the name; None if unknown."""
Offsets = Mapping[TopicPartition, CommittedOffset | None]
"""Committed offsets; None where the coordinator has none."""


async def find_live_brokers(cluster: Cluster, *, timeout_s: float) -> list[BrokerId]:
    """Return the brokers that are alive now. Raises NetworkError, DeadlineExceededError."""
    request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
    response: MetadataResponse = await cluster.request_any(request, timeout_s=timeout_s)
    found = {BrokerId(broker.node_id): HostPort(broker.host, broker.port) for broker in response.brokers}
    if found != {broker.id: broker.address for broker in cluster.view.brokers.values()}:
        await cluster.refresh(timeout_s=timeout_s)
    return sorted(cluster.view.brokers)


async def list_groups_of(cluster: Cluster, broker: BrokerId, *, timeout_s: float) -> list[GroupListing]:
    """Return the groups that a broker coordinates and that commit offsets. Raises as `Cluster.request`, KafkaError."""
    response: ListGroupsResponse = await cluster.request(broker, ListGroupsRequest(), timeout_s=timeout_s, lane=LANE)
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(response.error_code, f"groups of broker {broker}")
    return [
        GroupListing(id=group.group_id, state=group.group_state, protocol_type=group.protocol_type, coordinator=broker)
        for group in response.groups
        if group.group_type.lower() in OF_CONSUMERS
    ]


async def find_coordinators(
    cluster: Cluster, groups: Sequence[str], *, timeout_s: float
) -> Mapping[str, BrokerId | KafkaError]:
    """Return the coordinator of each group, or the reason for none. Needs brokers that find several at once (KIP-699).

    Raises NetworkError, KafkaError.
    """
    request = FindCoordinatorRequest(coordinator_keys=groups)
    response: FindCoordinatorResponse = await cluster.request_any(request, timeout_s=timeout_s)
    return {
        found.key: BrokerId(found.node_id)
        if found.error_code == ErrorCode.NONE
        else KafkaError(found.error_code, f"coordinator of group {found.key}: {found.error_message or 'unknown'}")
        for found in response.coordinators
    }


async def describe_states(
    cluster: Cluster, coordinator: BrokerId, groups: Sequence[str], *, timeout_s: float
) -> Mapping[str, str | KafkaError]:
    """Return the state of each group, DEAD for an unknown group, or its error. Raises as `Cluster.request`."""
    response: DescribeGroupsResponse = await cluster.request(
        coordinator, DescribeGroupsRequest(groups=groups), timeout_s=timeout_s, lane=LANE
    )
    states: dict[str, str | KafkaError] = {}
    for group in response.groups:
        if group.error_code == ErrorCode.NONE:
            states[group.group_id] = group.group_state
        elif group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            states[group.group_id] = DEAD
        else:
            states[group.group_id] = KafkaError(group.error_code, f"group {group.group_id}")
    return states


async def fetch_offsets_of(
    cluster: Cluster,
    coordinator: BrokerId,
    wanted: Mapping[str, Collection[TopicPartition] | None],
    name_of: NameOf,
    *,
    timeout_s: float,
    require_stable: bool = False,
) -> Mapping[str, Offsets | KafkaError]:
    """Return the offsets of each group, or its error; None asks for all partitions.

    `require_stable`: UNSTABLE_OFFSET_COMMIT while a transaction with offsets of the group is open (KIP-447). One
    request, or one for each group if the broker is older than version 8 (KIP-709). Topics that `name_of` does not
    know are left out. Raises as `Cluster.request`.
    """
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group_id=group, topics=None if named is None else _topics_of(cluster, named))
            for group, named in wanted.items()
        ],
        require_stable=require_stable,
    )
    try:
        response: OffsetFetchResponse = await cluster.request(coordinator, request, timeout_s=timeout_s, lane=LANE)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_REQUEST:  # the broker's version cannot express several groups
            raise
        return {
            group: await _fetch_all_of(cluster, coordinator, group, name_of, named or (), timeout_s=timeout_s)
            for group, named in wanted.items()
        }
    return {
        group.group_id: _read_offsets(group.group_id, group.error_code, group.topics, name_of)
        for group in response.groups
    }


async def _fetch_all_of(
    cluster: Cluster,
    coordinator: BrokerId,
    group: str,
    name_of: NameOf,
    named: Collection[TopicPartition],
    *,
    timeout_s: float,
) -> Offsets | KafkaError:
    request = OffsetFetchRequest(group_id=group, topics=None)
    response: OffsetFetchResponse = await cluster.request(coordinator, request, timeout_s=timeout_s, lane=LANE)
    found = _read_offsets(group, response.error_code, response.topics, name_of)
    return found if isinstance(found, KafkaError) else {**dict.fromkeys(named), **found}


def _read_offsets(
    group: str,
    error_code: int,
    topics: Sequence[OffsetFetchResponseTopics] | Sequence[OffsetFetchResponseTopic],
    name_of: NameOf,
) -> Offsets | KafkaError:
    if error_code != ErrorCode.NONE:
        return KafkaError(error_code, f"offsets of group {group}")
    found: dict[TopicPartition, CommittedOffset | None] = {}
    for topic in topics:
        topic_id = topic.topic_id if isinstance(topic, OffsetFetchResponseTopics) else uuid.UUID(int=0)
        name = name_of(topic.name, topic_id)
        if name is None:
            continue
        for partition in topic.partitions:
            if partition.error_code != ErrorCode.NONE:
                return KafkaError(partition.error_code, f"offset of group {group} in {name}")
            found[TopicPartition(name, partition.partition_index)] = (
                None
                if partition.committed_offset < 0
                else CommittedOffset(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata or "",
                )
            )
    return found


def _topics_of(cluster: Cluster, named: Collection[TopicPartition]) -> list[OffsetFetchRequestTopics]:
    ids = cluster.view.topic_ids({topic for topic, _ in named})
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(named):
        numbers.setdefault(topic, []).append(number)
    return [
        OffsetFetchRequestTopics(name=topic, topic_id=ids[topic], partition_indexes=of_topic)
        for topic, of_topic in numbers.items()
    ]


async def commit_without_member(
    cluster: Cluster,
    coordinator: BrokerId,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    timeout_s: float,
) -> Mapping[TopicPartition, ErrorCode]:
    """Commit offsets of a group that has no members, and return each partition's error code.

    The coordinator refuses a group with members (UNKNOWN_MEMBER_ID, or REBALANCE_IN_PROGRESS), in Apache Kafka as here.
    The commit of a lost answer may have happened. Topics must be in the cluster's view. Raises as `Cluster.request`.
    """
    ids = cluster.view.topic_ids({topic for topic, _ in offsets})
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, number), committed in sorted(offsets.items()):
        partition = OffsetCommitRequestPartition(
            partition_index=number,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            committed_metadata=committed.metadata,
        )
        by_topic.setdefault(topic, []).append(partition)
    topics = [
        OffsetCommitRequestTopic(name=name, topic_id=ids[name], partitions=partitions)
        for name, partitions in by_topic.items()
    ]
    response: OffsetCommitResponse = await cluster.request(
        coordinator, OffsetCommitRequest(group_id=group, topics=topics), timeout_s=timeout_s, lane=LANE
    )
    names = {topic_id: name for name, topic_id in ids.items()}
    return {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.partition_index): ErrorCode.of(
            partition.error_code
        )
        for topic in response.topics
        for partition in topic.partitions
    }
