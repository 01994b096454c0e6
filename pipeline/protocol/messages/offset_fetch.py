"""OffsetFetch (9), versions 1 to 10: the committed offsets of groups.

Version 2 takes null for all topics and adds a top-level error, 3 the throttle time, 5 the leader epoch (KIP-320), 7 can
wait for open transactions (KIP-447), 8 asks for many groups at once (KIP-709), 9 is for the consumer protocol
(KIP-848), 10 names topics by id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import ZERO_UUID, Bool, Int16, Int32, Int64, Message, String, Uuid, Wire

FIRST_VERSION_OF_TOP_LEVEL_ERROR = 2
FIRST_VERSION_OF_GROUPS = 8
FIRST_VERSION_OF_TOPIC_IDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics:
    """A topic's partitions (version 8 on)."""

    name: Annotated[String, Wire(until=9, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=10, ignorable=True)] = ZERO_UUID
    partition_indexes: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup:
    """A group and its topics; null stands for all."""

    group_id: String = ""
    member_id: Annotated[String | None, Wire(since=9, ignorable=True)] = None
    member_epoch: Annotated[Int32, Wire(since=9, ignorable=True)] = -1
    topics: Sequence[OffsetFetchRequestTopics] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    """A topic's partitions (before version 8)."""

    name: String = ""
    partition_indexes: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(Message):
    """Groups, topics and partitions to look up."""

    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[tuple[int, int]] = (1, 10)
    FLEXIBLE_SINCE: ClassVar[int] = 6

    group_id: Annotated[String, Wire(until=7)] = ""
    topics: Annotated[Sequence[OffsetFetchRequestTopic] | None, Wire(until=7, nullable_since=2)] = ()
    groups: Annotated[Sequence[OffsetFetchRequestGroup], Wire(since=8)] = ()
    require_stable: Annotated[Bool, Wire(since=7)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartitions:
    """The offset of a partition, -1 if there is none (version 8 on)."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: String | None = ""
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopics:
    """A topic's partitions (version 8 on)."""

    name: Annotated[String, Wire(until=9, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=10, ignorable=True)] = ZERO_UUID
    partitions: Sequence[OffsetFetchResponsePartitions] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    """The offsets of a group."""

    group_id: String = ""
    topics: Sequence[OffsetFetchResponseTopics] = ()
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    """The offset of a partition, -1 if there is none (before version 8)."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Wire(since=5, ignorable=True)] = -1
    metadata: String | None = ""
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    """A topic's partitions (before version 8)."""

    name: String = ""
    partitions: Sequence[OffsetFetchResponsePartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse(Message):
    """Committed offsets by partition."""

    API_KEY: ClassVar[int] = 9
    VERSIONS: ClassVar[tuple[int, int]] = (1, 10)
    FLEXIBLE_SINCE: ClassVar[int] = 6

    throttle_time_ms: Annotated[Int32, Wire(since=3, ignorable=True)] = 0
    topics: Annotated[Sequence[OffsetFetchResponseTopic], Wire(until=7, ignorable=True)] = ()
    error_code: Annotated[Int16, Wire(since=2, until=7, ignorable=True)] = 0
    groups: Annotated[Sequence[OffsetFetchResponseGroup], Wire(since=8, ignorable=True)] = ()
