"""Requests of the ACL matrix: one or more for each api key, on topics and groups that exist, and on some that do not.

What a request changes is the user's own, or is validated only, so that all users find the same.
"""

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from pipeline.protocol.api import ApiKey
from pipeline.protocol.messages import alter_client_quotas as quotas
from pipeline.protocol.messages import (
    alter_configs,
    fetch,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
)
from pipeline.protocol.messages import alter_partition_reassignments as reassignments
from pipeline.protocol.messages import alter_user_scram_credentials as scram
from pipeline.protocol.messages import create_partitions as partitions
from pipeline.protocol.messages import delete_records as records
from pipeline.protocol.messages import describe_configs as configs
from pipeline.protocol.messages import describe_log_dirs as log_dirs
from pipeline.protocol.messages import describe_producers as producers
from pipeline.protocol.messages import describe_topic_partitions as described
from pipeline.protocol.messages import elect_leaders as elections
from pipeline.protocol.messages import offset_for_leader_epoch as epochs
from pipeline.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from pipeline.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from pipeline.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from pipeline.protocol.messages.delete_groups import DeleteGroupsRequest
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from pipeline.protocol.messages.describe_acls import (
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    DescribeAclsRequest,
)
from pipeline.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, EntityData
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest
from pipeline.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest
from pipeline.protocol.messages.heartbeat import HeartbeatRequest
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from pipeline.protocol.messages.list_groups import ListGroupsRequest
from pipeline.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from pipeline.protocol.messages.sync_group import SyncGroupRequest
from pipeline.protocol.schema import Message
from tests.support.broker_in_process import batch

TOPICS = ("a", "ab", "b")
"""Topics that exist."""
GROUPS = ("g", "h")
MISSING = "missing"
NO_BROKER = 99
"""Id of a follower that is not there."""
NAMED = (*TOPICS, MISSING)
Build = Callable[[int, str, Mapping[str, UUID]], Sequence[Message]]
"""Builds requests of a version for a user, with the ids of all topics."""


def own_topic(user: str) -> str:
    """A topic that this user alone may try to delete."""
    return f"gone-{user}"


def _produce(version: int, _: str, ids: Mapping[str, UUID]) -> Sequence[Message]:
    names = NAMED if version < 13 else TOPICS
    data = [
        produce.TopicProduceData(
            name=name,
            topic_id=ids.get(name, UUID(int=0)),
            partition_data=[_data(0), *([_data(7)] if name == "a" else [])],
        )
        for name in names
    ]
    return [
        produce.ProduceRequest(acks=1, timeout_ms=5000, topic_data=data),
        produce.ProduceRequest(acks=-1, timeout_ms=5000, topic_data=data[:1]),
    ]


def _data(index: int) -> produce.PartitionProduceData:
    return produce.PartitionProduceData(index=index, records=batch(b"v"))


def _fetch(version: int, _: str, ids: Mapping[str, UUID]) -> Sequence[Message]:
    unknown = UUID(int=99)
    topics = [
        fetch.FetchTopic(
            topic=name,
            topic_id=ids.get(name, unknown),
            partitions=[fetch.FetchPartition(partition=0, partition_max_bytes=1000)],
        )
        for name in NAMED
    ]
    as_follower = (
        {"replica_id": NO_BROKER} if version < 15 else {"replica_state": fetch.ReplicaState(replica_id=NO_BROKER)}
    )
    return [fetch.FetchRequest(topics=topics), fetch.FetchRequest(topics=topics, **as_follower)]


def _list_offsets(version: int, _: str, __: Mapping[str, UUID]) -> Sequence[Message]:
    topics = [
        list_offsets.ListOffsetsTopic(
            name=name, partitions=[list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)]
        )
        for name in NAMED
    ]
    return [list_offsets.ListOffsetsRequest(topics=topics)]


def _metadata(version: int, user: str, ids: Mapping[str, UUID]) -> Sequence[Message]:
    # the oldest version creates topics that are missing
    named = [metadata.MetadataRequestTopic(name=name) for name in (NAMED if version >= 4 else TOPICS)]
    more = {"include_topic_authorized_operations": version >= 8} | (
        {"include_cluster_authorized_operations": True} if 8 <= version <= 10 else {}
    )
    asked: list[Message] = [
        metadata.MetadataRequest(topics=named, allow_auto_topic_creation=version < 4, **more),
        metadata.MetadataRequest(topics=None if version else (), allow_auto_topic_creation=True, **more),
        metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=f"made-{user}-{version}")],
            allow_auto_topic_creation=True,
            **more,
        ),
    ]
    if version >= 12:
        by_id = [metadata.MetadataRequestTopic(topic_id=ids[name], name=None) for name in TOPICS]
        by_id.append(metadata.MetadataRequestTopic(topic_id=UUID(int=99), name=None))
        asked.append(metadata.MetadataRequest(topics=by_id, allow_auto_topic_creation=False, **more))
    return asked


def _offset_commit(version: int, user: str, ids: Mapping[str, UUID]) -> Sequence[Message]:
    topics = [
        offset_commit.OffsetCommitRequestTopic(
            name=name,
            topic_id=ids.get(name, UUID(int=99)),
            partitions=[offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
        )
        for name in NAMED
    ]
    return [offset_commit.OffsetCommitRequest(group_id=group, topics=topics) for group in GROUPS]


def _offset_fetch(version: int, _: str, ids: Mapping[str, UUID]) -> Sequence[Message]:
    if version < 8:
        old = [offset_fetch.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in NAMED]
        asked: list[Message] = [offset_fetch.OffsetFetchRequest(group_id="g", topics=old)]
        if version >= 2:
            asked.append(offset_fetch.OffsetFetchRequest(group_id="h", topics=None))
        return asked
    topics = [
        offset_fetch.OffsetFetchRequestTopics(name=name, topic_id=ids.get(name, UUID(int=99)), partition_indexes=[0])
        for name in NAMED
    ]
    return [
        offset_fetch.OffsetFetchRequest(
            groups=[
                offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=topics),
                offset_fetch.OffsetFetchRequestGroup(group_id="h", topics=None),
                offset_fetch.OffsetFetchRequestGroup(group_id="unheard", topics=topics),
            ]
        )
    ]


def _find_coordinator(version: int, _: str, __: Mapping[str, UUID]) -> Sequence[Message]:
    if version < 4:
        return [FindCoordinatorRequest(key="g")]
    return [FindCoordinatorRequest(coordinator_keys=GROUPS)]


def _leave(version: int, _: str, __: Mapping[str, UUID]) -> Sequence[Message]:
    if version < 3:
        return [LeaveGroupRequest(group_id=group, member_id="m") for group in GROUPS]
    return [LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="m")]) for group in GROUPS]


def _join(_: int, __: str, ___: Mapping[str, UUID]) -> Sequence[Message]:
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    return [
        JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        for group in GROUPS
    ]


def _create_topics(_: int, user: str, __: Mapping[str, UUID]) -> Sequence[Message]:
    names = ("a", f"a-{user}", f"new-{user}")
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return [CreateTopicsRequest(topics=topics, validate_only=True, timeout_ms=5000)]


def _delete_topics(version: int, user: str, ids: Mapping[str, UUID]) -> Sequence[Message]:
    name = own_topic(user)
    if version < 6:
        return [DeleteTopicsRequest(topic_names=[MISSING], timeout_ms=5000)]
    named = [
        DeleteTopicState(name=MISSING),
        DeleteTopicState(topic_id=UUID(int=99)),
        DeleteTopicState(topic_id=ids[name]),
    ]
    return [DeleteTopicsRequest(topics=named, timeout_ms=5000)]


def _resources() -> list[tuple[int, str]]:
    return [*((2, name) for name in NAMED), (4, "1")]


def _alter_configs(_: int, __: str, ___: Mapping[str, UUID]) -> Sequence[Message]:
    changed = [alter_configs.AlterableConfig(name="retention.ms", value="100000")]
    resources = [
        alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=changed if kind == 2 else [])
        for kind, name in _resources()
    ]
    return [alter_configs.AlterConfigsRequest(resources=resources, validate_only=True)]


def _incremental(_: int, __: str, ___: Mapping[str, UUID]) -> Sequence[Message]:
    changed = [incremental_alter_configs.AlterableConfig(name="retention.ms", value="100000")]
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=changed if kind == 2 else []
        )
        for kind, name in _resources()
    ]
    return [incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources, validate_only=True)]


def _offset_delete(_: int, user: str, __: Mapping[str, UUID]) -> Sequence[Message]:
    topics = [
        offset_delete.OffsetDeleteRequestTopic(
            name=name, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
        )
        for name in NAMED
    ]
    return [offset_delete.OffsetDeleteRequest(group_id=group, topics=topics) for group in ("g", "unheard")]


def _create_acls(_: int, __: str, ___: Mapping[str, UUID]) -> Sequence[Message]:
    return [
        CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=AclResourceType.TOPIC,
                    resource_name="z",
                    resource_pattern_type=AclPatternType.LITERAL,
                    principal="User:z",
                    host="*",
                    operation=AclOperation.READ,
                    permission_type=AclPermission.ALLOW,
                ),
                AclCreation(
                    resource_type=AclResourceType.CLUSTER,
                    resource_name="not-the-cluster",
                    resource_pattern_type=AclPatternType.LITERAL,
                    principal="User:z",
                    host="*",
                    operation=AclOperation.ALTER,
                    permission_type=AclPermission.ALLOW,
                ),
            ]
        )
    ]


def _filter(name: str) -> dict[str, int | str]:
    return {
        "resource_type_filter": AclResourceType.TOPIC,
        "resource_name_filter": name,
        "pattern_type_filter": AclPatternType.LITERAL,
        "principal_filter": "User:z",
        "host_filter": "*",
        "operation": AclOperation.ANY,
        "permission_type": AclPermission.ANY,
    }


BUILDERS: Mapping[ApiKey, Build] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _join,
    ApiKey.HEARTBEAT: lambda *_: [HeartbeatRequest(group_id=group, member_id="m") for group in GROUPS],
    ApiKey.LEAVE_GROUP: _leave,
    ApiKey.SYNC_GROUP: lambda *_: [
        SyncGroupRequest(group_id=group, member_id="m", protocol_type="consumer", protocol_name="range")
        for group in GROUPS
    ],
    ApiKey.DESCRIBE_GROUPS: lambda version, *_: [
        DescribeGroupsRequest(groups=(*GROUPS, "unheard"), include_authorized_operations=version >= 3)
    ],
    ApiKey.LIST_GROUPS: lambda *_: [ListGroupsRequest()],
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: lambda *_: [
        records.DeleteRecordsRequest(
            topics=[
                records.DeleteRecordsTopic(name=name, partitions=[records.DeleteRecordsPartition(offset=0)])
                for name in NAMED
            ],
            timeout_ms=5000,
        )
    ],
    ApiKey.INIT_PRODUCER_ID: lambda *_: [InitProducerIdRequest()],
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda *_: [
        epochs.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                epochs.OffsetForLeaderTopic(topic=name, partitions=[epochs.OffsetForLeaderPartition()])
                for name in NAMED
            ],
        )
    ],
    ApiKey.DESCRIBE_ACLS: lambda *_: [DescribeAclsRequest(**_filter("none"))],  # type: ignore[arg-type]
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: lambda *_: [DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter("none"))])],  # type: ignore[arg-type]
    ApiKey.DESCRIBE_CONFIGS: lambda *_: [
        configs.DescribeConfigsRequest(
            resources=[
                configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
                for kind, name in _resources()
            ]
        )
    ],
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: lambda *_: [
        log_dirs.DescribeLogDirsRequest(topics=[log_dirs.DescribableLogDirTopic(topic="a", partitions=[0])])
    ],
    ApiKey.CREATE_PARTITIONS: lambda *_: [
        partitions.CreatePartitionsRequest(
            topics=[partitions.CreatePartitionsTopic(name=name, count=3) for name in NAMED],
            timeout_ms=5000,
            validate_only=True,
        )
    ],
    ApiKey.DELETE_GROUPS: lambda *_: [DeleteGroupsRequest(groups_names=["unheard", "g-unheard"])],
    ApiKey.ELECT_LEADERS: lambda *_: [
        elections.ElectLeadersRequest(
            topic_partitions=[elections.TopicPartitions(topic=name, partitions=[0]) for name in NAMED], timeout_ms=5000
        )
    ],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda *_: [
        reassignments.AlterPartitionReassignmentsRequest(
            topics=[
                reassignments.ReassignableTopic(name=name, partitions=[reassignments.ReassignablePartition()])
                for name in NAMED
            ],
            timeout_ms=5000,
        )
    ],
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda *_: [ListPartitionReassignmentsRequest()],
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda *_: [DescribeClientQuotasRequest()],
    ApiKey.ALTER_CLIENT_QUOTAS: lambda *_: [
        quotas.AlterClientQuotasRequest(
            entries=[
                quotas.EntryData(
                    entity=[EntityData(entity_type="user", entity_name="z")],
                    ops=[quotas.OpData(key="producer_byte_rate", value=1e6)],
                )
            ],
            validate_only=True,
        )
    ],
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda *_: [
        DescribeUserScramCredentialsRequest(users=[UserName(name="z")])
    ],
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda *_: [
        scram.AlterUserScramCredentialsRequest(deletions=[scram.ScramCredentialDeletion(name="z", mechanism=1)])
    ],
    ApiKey.DESCRIBE_CLUSTER: lambda *_: [DescribeClusterRequest(include_cluster_authorized_operations=True)],
    ApiKey.DESCRIBE_PRODUCERS: lambda *_: [
        producers.DescribeProducersRequest(
            topics=[producers.TopicRequest(name=name, partition_indexes=[0]) for name in NAMED]
        )
    ],
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda *_: [
        described.DescribeTopicPartitionsRequest(topics=[described.TopicRequest(name=name) for name in NAMED])
    ],
}
"""Requests by api key."""

NEWEST_ALONE = frozenset({ApiKey.JOIN_GROUP, ApiKey.DELETE_TOPICS})
"""Keys asked in the newest version alone: old ones make a member at once, or lack ids."""
