"""DescribeTopicPartitions (75), version 0: partitions of topics, a page at a time (KIP-966)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import ZERO_UUID, Bool, Int16, Int32, Message, String, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """A topic."""

    name: String = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The partition at which a page begins."""

    topic_name: String = ""
    partition_index: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsRequest(Message):
    """Topics to describe, the partition to begin with, and the size of a page."""

    API_KEY: ClassVar[int] = 75
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    topics: Sequence[TopicRequest] = ()
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponsePartition:
    """A partition: leader, replicas, in-sync replicas."""

    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: Sequence[Int32] = ()
    isr_nodes: Sequence[Int32] = ()
    eligible_leader_replicas: Sequence[Int32] | None = None
    last_known_elr: Sequence[Int32] | None = None
    offline_replicas: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponseTopic:
    """A topic."""

    error_code: Int16 = 0
    name: String | None = ""
    topic_id: Uuid = ZERO_UUID
    is_internal: Bool = False
    partitions: Sequence[DescribeTopicPartitionsResponsePartition] = ()
    topic_authorized_operations: Int32 = -2147483648


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponse(Message):
    """A page, and where the next one begins."""

    API_KEY: ClassVar[int] = 75
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    throttle_time_ms: Int32 = 0
    topics: Sequence[DescribeTopicPartitionsResponseTopic] = ()
    next_cursor: Cursor | None = None
