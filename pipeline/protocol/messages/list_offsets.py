"""ListOffsets (2), versions 1 to 11: the offset at a point in time.

A timestamp below zero asks for a special offset: `LATEST`, `EARLIEST`, from version 7 `MAX_TIMESTAMP` (KIP-734), from 8
the earliest local offset (KIP-405), from 9 the last tiered one (KIP-1005), from 11 the earliest pending upload
(KIP-1023). Version 2 adds isolation levels, 4 leader epochs (KIP-320), 10 a timeout (KIP-1075).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Int8, Int16, Int32, Int64, Message, String, Wire

LATEST = -1
"""The offset after the last record."""
EARLIEST = -2
"""The first offset the log still holds."""
MAX_TIMESTAMP = -3
"""The offset of the record with the highest timestamp (KIP-734)."""
EARLIEST_LOCAL = -4
LATEST_REMOTE = -5
EARLIEST_PENDING_UPLOAD = -6
SPECIAL_TIMES = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_REMOTE: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The timestamps that are questions, and the first version of each."""
FIRST_VERSION_OF_OFFSET_NOT_AVAILABLE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    """A partition and a timestamp."""

    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, Wire(since=4, ignorable=True)] = -1
    timestamp: Int64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: String = ""
    partitions: Sequence[ListOffsetsPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Message):
    """A search for the first record at or after a timestamp, for each partition."""

    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[tuple[int, int]] = (1, 11)
    FLEXIBLE_SINCE: ClassVar[int] = 6

    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, Wire(since=2)] = 0
    topics: Sequence[ListOffsetsTopic] = ()
    timeout_ms: Annotated[Int32, Wire(since=10, ignorable=True)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    """The first record at or after the timestamp; offset -1 if there is none."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Wire(since=4, ignorable=True)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    """The partitions of one topic."""

    name: String = ""
    partitions: Sequence[ListOffsetsPartitionResponse] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse(Message):
    """Offsets by partition."""

    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[tuple[int, int]] = (1, 11)
    FLEXIBLE_SINCE: ClassVar[int] = 6

    throttle_time_ms: Annotated[Int32, Wire(since=2, ignorable=True)] = 0
    topics: Sequence[ListOffsetsTopicResponse] = ()
