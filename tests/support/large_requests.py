"""The largest requests of each kind that a broker takes, made to cost it as much as they can."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData, OpData
from pipeline.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from pipeline.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.delete_groups import DeleteGroupsRequest
from pipeline.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.describe_client_quotas import EntityData
from pipeline.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest
from pipeline.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from pipeline.protocol.messages.describe_producers import DescribeProducersRequest
from pipeline.protocol.messages.describe_producers import TopicRequest as ProducersOfTopic
from pipeline.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from pipeline.protocol.messages.describe_topic_partitions import TopicRequest as PageOfTopic
from pipeline.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from pipeline.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pipeline.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from pipeline.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from pipeline.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from pipeline.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from pipeline.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from pipeline.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pipeline.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pipeline.protocol.schema import Message

TOPIC, BROKER = 2, 4
TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic that the broker has."""

    name: str
    id: uuid.UUID
    partitions: int


@dataclass(frozen=True, slots=True)
class LargeRequest:
    """A request, what is large about it, and its version."""

    label: str
    message: Message
    version: int


def large_requests(topics: Sequence[KnownTopic], group: str, size: int) -> Iterator[LargeRequest]:
    """Requests of about so many elements; `group` has committed offsets, or none."""
    yield from _of_clients(topics, group, size)
    yield from _of_groups(topics, group, size)
    yield from _of_administrators(topics, size)


def _spread(topics: Sequence[KnownTopic], size: int, kind: Any, **fields: Any) -> list[list[Any]]:
    """Elements for all partitions of the topics, again and again: so many in all, a list for each topic."""
    number = next(iter(fields))
    rest = {name: value for name, value in fields.items() if name != number}
    each = size // len(topics)
    return [[kind(**{number: index % topic.partitions}, **rest) for index in range(each)] for topic in topics]


def _indexes(topics: Sequence[KnownTopic], size: int) -> list[list[int]]:
    """Distinct numbers of partitions, of which a topic has few."""
    return [list(range(size // len(topics))) for _ in topics]


def _of_clients(topics: Sequence[KnownTopic], group: str, size: int) -> Iterator[LargeRequest]:
    fetched = [
        FetchTopic(topic=topic.name, topic_id=topic.id, partitions=partitions)
        for topic, partitions in zip(
            topics, _spread(topics, size, FetchPartition, partition=0, partition_max_bytes=1000), strict=True
        )
    ]
    yield LargeRequest("fetch", FetchRequest(max_wait_ms=0, topics=fetched), 13)
    waiting = FetchRequest(max_wait_ms=300, min_bytes=1 << 30, topics=fetched)
    yield LargeRequest("fetch that waits", waiting, 13)
    yield LargeRequest("fetch session", FetchRequest(max_wait_ms=0, session_epoch=0, topics=fetched), 13)
    distinct = [
        FetchTopic(topic_id=topic.id, partitions=[FetchPartition(partition=index) for index in indexes])
        for topic, indexes in zip(topics, _indexes(topics, size), strict=True)
    ]
    yield LargeRequest("fetch session of distinct", FetchRequest(session_epoch=0, topics=distinct), 13)
    refused = [PartitionProduceData(index=0, records=None)] * (size - 1)
    yield LargeRequest(
        "produce", ProduceRequest(acks=1, topic_data=[TopicProduceData(name=topics[0].name, partition_data=refused)]), 9
    )
    ends = [
        ListOffsetsTopic(name=topic.name, partitions=partitions)
        for topic, partitions in zip(
            topics, _spread(topics, size, ListOffsetsPartition, partition_index=0, timestamp=-1), strict=True
        )
    ]
    yield LargeRequest("list offsets", ListOffsetsRequest(topics=ends), 8)
    epochs = [
        OffsetForLeaderTopic(topic=topic.name, partitions=partitions)
        for topic, partitions in zip(
            topics, _spread(topics, size, OffsetForLeaderPartition, partition=0, leader_epoch=0), strict=True
        )
    ]
    yield LargeRequest("offset for leader epoch", OffsetForLeaderEpochRequest(topics=epochs), 4)
    missing = [MetadataRequestTopic(name=f"none-{number}") for number in range(size)]
    yield LargeRequest("metadata", MetadataRequest(topics=missing, allow_auto_topic_creation=False), 12)
    yield LargeRequest("metadata of all", MetadataRequest(topics=None), 12)


def _of_groups(topics: Sequence[KnownTopic], group: str, size: int) -> Iterator[LargeRequest]:
    names = [f"none-{number}" for number in range(size)]
    yield LargeRequest("find coordinator", FindCoordinatorRequest(coordinator_keys=names), 4)
    yield LargeRequest("describe groups", DescribeGroupsRequest(groups=names), 5)
    yield LargeRequest("delete groups", DeleteGroupsRequest(groups_names=names), 2)
    yield LargeRequest(
        "leave group", LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=name) for name in names]), 5
    )
    for label, part in (("offset commit", size), ("offset commit that fits", min(size, 12_000))):
        committed = [
            OffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=partitions)
            for topic, partitions in zip(
                topics,
                _spread(topics, part, OffsetCommitRequestPartition, partition_index=0, committed_offset=1),
                strict=True,
            )
        ]
        yield LargeRequest(label, OffsetCommitRequest(group_id=group, topics=committed), 9)
    asked = [
        OffsetFetchRequestTopics(name=topic.name, partition_indexes=indexes)
        for topic, indexes in zip(topics, _indexes(topics, size), strict=True)
    ]
    one = OffsetFetchRequestGroup(group_id=group, topics=asked)
    yield LargeRequest("offset fetch of one group", OffsetFetchRequest(groups=[one]), 9)
    whole = OffsetFetchRequestGroup(group_id=group, topics=None)
    yield LargeRequest("offset fetch of all of a group", OffsetFetchRequest(groups=[whole]), 9)
    many = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names[: size // 2]]
    yield LargeRequest("offset fetch of groups", OffsetFetchRequest(groups=many), 9)
    deleted = [
        OffsetDeleteRequestTopic(
            name=topic.name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        )
        for topic, indexes in zip(topics, _indexes(topics, size), strict=True)
    ]
    yield LargeRequest("offset delete", OffsetDeleteRequest(group_id=group, topics=deleted), 0)


def _of_administrators(topics: Sequence[KnownTopic], size: int) -> Iterator[LargeRequest]:
    indexes = _indexes(topics, size)
    pairs = list(zip([topic.name for topic in topics], indexes, strict=True))
    yield LargeRequest(
        "describe producers",
        DescribeProducersRequest(
            topics=[ProducersOfTopic(name=name, partition_indexes=of_topic) for name, of_topic in pairs]
        ),
        0,
    )
    yield LargeRequest(
        "describe log dirs",
        DescribeLogDirsRequest(
            topics=[DescribableLogDirTopic(topic=name, partitions=of_topic) for name, of_topic in pairs]
        ),
        4,
    )
    yield LargeRequest("all log dirs", DescribeLogDirsRequest(topics=None), 4)
    yield LargeRequest(
        "elect leaders",
        ElectLeadersRequest(
            timeout_ms=TIMEOUT_MS,
            topic_partitions=[TopicPartitions(topic=name, partitions=of_topic) for name, of_topic in pairs],
        ),
        2,
    )
    yield LargeRequest("elect all leaders", ElectLeadersRequest(timeout_ms=TIMEOUT_MS, topic_partitions=None), 2)
    yield LargeRequest(
        "list reassignments",
        ListPartitionReassignmentsRequest(
            topics=[ListPartitionReassignmentsTopics(name=name, partition_indexes=of_topic) for name, of_topic in pairs]
        ),
        0,
    )
    yield LargeRequest(
        "alter reassignments",
        AlterPartitionReassignmentsRequest(
            timeout_ms=TIMEOUT_MS,
            topics=[
                ReassignableTopic(
                    name=name, partitions=[ReassignablePartition(partition_index=index) for index in of_topic]
                )
                for name, of_topic in pairs
            ],
        ),
        0,
    )
    yield LargeRequest(
        "describe topic partitions",
        DescribeTopicPartitionsRequest(topics=[PageOfTopic(name=f"none-{number}") for number in range(size)]),
        0,
    )
    refused = [CreatableTopic(name=f"new-{number}", num_partitions=1, replication_factor=9) for number in range(size)]
    yield LargeRequest("create topics", CreateTopicsRequest(topics=refused, timeout_ms=TIMEOUT_MS), 7)
    yield LargeRequest(
        "delete topics",
        DeleteTopicsRequest(
            topics=[DeleteTopicState(name=f"none-{number}") for number in range(size)], timeout_ms=TIMEOUT_MS
        ),
        6,
    )
    yield LargeRequest(
        "create partitions",
        CreatePartitionsRequest(
            timeout_ms=TIMEOUT_MS,
            topics=[CreatePartitionsTopic(name=f"none-{number}", count=2) for number in range(size)],
        ),
        3,
    )
    yield LargeRequest(
        "delete records",
        DeleteRecordsRequest(
            timeout_ms=TIMEOUT_MS,
            topics=[
                DeleteRecordsTopic(
                    name=name,
                    partitions=[DeleteRecordsPartition(partition_index=index, offset=0) for index in of_topic],
                )
                for name, of_topic in pairs
            ],
        ),
        2,
    )
    resources = [DescribeConfigsResource(resource_type=TOPIC, resource_name=topic.name) for topic in topics]
    yield LargeRequest(
        "describe configs",
        DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True),
        4,
    )
    settings = [AlterableConfig(name=f"none-{number}", value="1") for number in range(size - 2)]
    yield LargeRequest(
        "alter configs of one",
        AlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=TOPIC, resource_name=topics[0].name, configs=settings)]
        ),
        2,
    )
    yield LargeRequest(
        "alter configs",
        AlterConfigsRequest(
            resources=[
                AlterConfigsResource(resource_type=TOPIC, resource_name=f"none-{number}") for number in range(size)
            ]
        ),
        2,
    )
    yield LargeRequest(
        "alter client quotas",
        AlterClientQuotasRequest(
            entries=[
                EntryData(
                    entity=[EntityData(entity_type="client-id", entity_name=f"none-{number}")],
                    ops=[OpData(key="producer_byte_rate", value=0.5)],
                )
                for number in range(size // 3)
            ]
        ),
        1,
    )
