"""Table of api keys: messages, and the versions that our broker serves. A new key takes a file and a line here."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from pipeline.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from pipeline.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from pipeline.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from pipeline.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from pipeline.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from pipeline.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from pipeline.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from pipeline.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from pipeline.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from pipeline.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from pipeline.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from pipeline.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from pipeline.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from pipeline.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from pipeline.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from pipeline.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from pipeline.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from pipeline.protocol.messages.fetch import FetchRequest, FetchResponse
from pipeline.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from pipeline.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from pipeline.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from pipeline.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pipeline.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from pipeline.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from pipeline.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from pipeline.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from pipeline.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from pipeline.protocol.messages.metadata import MetadataRequest, MetadataResponse
from pipeline.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from pipeline.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from pipeline.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from pipeline.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from pipeline.protocol.messages.produce import ProduceRequest, ProduceResponse
from pipeline.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from pipeline.protocol.schema import Message


class ApiKey(IntEnum):
    """An api key: its number, messages, and the versions that our broker serves."""

    request: type[Message]
    response: type[Message]
    min_version: int
    max_version: int
    """The first and the last version served."""
    flexible_since: int
    """The first flexible version (KIP-482)."""

    if not TYPE_CHECKING:

        def __new__(cls, request: type[Message], response: type[Message]) -> Self:  # noqa: D102
            member = int.__new__(cls, request.API_KEY)
            member._value_ = request.API_KEY
            member.request = request
            member.response = response
            member.min_version, member.max_version = request.VERSIONS
            member.flexible_since = request.FLEXIBLE_SINCE
            return member

    PRODUCE = ProduceRequest, ProduceResponse
    FETCH = FetchRequest, FetchResponse
    LIST_OFFSETS = ListOffsetsRequest, ListOffsetsResponse
    METADATA = MetadataRequest, MetadataResponse
    OFFSET_COMMIT = OffsetCommitRequest, OffsetCommitResponse
    OFFSET_FETCH = OffsetFetchRequest, OffsetFetchResponse
    FIND_COORDINATOR = FindCoordinatorRequest, FindCoordinatorResponse
    JOIN_GROUP = JoinGroupRequest, JoinGroupResponse
    HEARTBEAT = HeartbeatRequest, HeartbeatResponse
    LEAVE_GROUP = LeaveGroupRequest, LeaveGroupResponse
    SYNC_GROUP = SyncGroupRequest, SyncGroupResponse
    DESCRIBE_GROUPS = DescribeGroupsRequest, DescribeGroupsResponse
    LIST_GROUPS = ListGroupsRequest, ListGroupsResponse
    API_VERSIONS = ApiVersionsRequest, ApiVersionsResponse
    CREATE_TOPICS = CreateTopicsRequest, CreateTopicsResponse
    DELETE_TOPICS = DeleteTopicsRequest, DeleteTopicsResponse
    DELETE_RECORDS = DeleteRecordsRequest, DeleteRecordsResponse
    INIT_PRODUCER_ID = InitProducerIdRequest, InitProducerIdResponse
    OFFSET_FOR_LEADER_EPOCH = OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
    DESCRIBE_CONFIGS = DescribeConfigsRequest, DescribeConfigsResponse
    ALTER_CONFIGS = AlterConfigsRequest, AlterConfigsResponse
    DESCRIBE_LOG_DIRS = DescribeLogDirsRequest, DescribeLogDirsResponse
    CREATE_PARTITIONS = CreatePartitionsRequest, CreatePartitionsResponse
    DELETE_GROUPS = DeleteGroupsRequest, DeleteGroupsResponse
    ELECT_LEADERS = ElectLeadersRequest, ElectLeadersResponse
    ALTER_PARTITION_REASSIGNMENTS = AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
    LIST_PARTITION_REASSIGNMENTS = ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
    INCREMENTAL_ALTER_CONFIGS = IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
    OFFSET_DELETE = OffsetDeleteRequest, OffsetDeleteResponse
    DESCRIBE_CLIENT_QUOTAS = DescribeClientQuotasRequest, DescribeClientQuotasResponse
    ALTER_CLIENT_QUOTAS = AlterClientQuotasRequest, AlterClientQuotasResponse
    DESCRIBE_CLUSTER = DescribeClusterRequest, DescribeClusterResponse
    DESCRIBE_PRODUCERS = DescribeProducersRequest, DescribeProducersResponse
    DESCRIBE_TOPIC_PARTITIONS = DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

    def serves(self, version: int) -> bool:
        """True if our broker serves this version."""
        return self.min_version <= version <= self.max_version


API: Mapping[int, ApiKey] = MappingProxyType({key.value: key for key in ApiKey})
"""Every api key by its number."""
