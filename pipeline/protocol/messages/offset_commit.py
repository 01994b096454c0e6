"""OffsetCommit (8), versions 2 to 10: a group commits offsets.

Versions 2 to 4 give a retention time, 3 adds the throttle time, 6 the leader epoch (KIP-320), 7 static membership
(KIP-345), 9 is for the consumer protocol (KIP-848), 10 names topics by id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import ZERO_UUID, Int16, Int32, Int64, Message, String, Uuid, Wire

FIRST_VERSION_OF_GROUP_ID_NOT_FOUND = 9
FIRST_VERSION_OF_TOPIC_IDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    """The next offset to read of a partition."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Wire(since=6, ignorable=True)] = -1
    committed_metadata: String | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    """A topic's partitions."""

    name: Annotated[String, Wire(until=9, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=10, ignorable=True)] = ZERO_UUID
    partitions: Sequence[OffsetCommitRequestPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(Message):
    """Offsets to commit, from a member or (generation -1) from any client while the group is empty."""

    API_KEY: ClassVar[int] = 8
    VERSIONS: ClassVar[tuple[int, int]] = (2, 10)
    FLEXIBLE_SINCE: ClassVar[int] = 8

    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    retention_time_ms: Annotated[Int64, Wire(until=4, ignorable=True)] = -1
    group_instance_id: Annotated[String | None, Wire(since=7)] = None
    topics: Sequence[OffsetCommitRequestTopic] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    """The result for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    """A topic's partitions."""

    name: Annotated[String, Wire(until=9, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=10, ignorable=True)] = ZERO_UUID
    partitions: Sequence[OffsetCommitResponsePartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse(Message):
    """Results by partition."""

    API_KEY: ClassVar[int] = 8
    VERSIONS: ClassVar[tuple[int, int]] = (2, 10)
    FLEXIBLE_SINCE: ClassVar[int] = 8

    throttle_time_ms: Annotated[Int32, Wire(since=3, ignorable=True)] = 0
    topics: Sequence[OffsetCommitResponseTopic] = ()
