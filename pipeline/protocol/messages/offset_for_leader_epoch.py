"""OffsetForLeaderEpoch (23), versions 2 to 4: the end offset of a leader epoch (KIP-101, KIP-320).

Version 3 names the replica that asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Int16, Int32, Int64, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderPartition:
    """A partition and the epoch asked about."""

    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopic:
    """A topic's partitions."""

    topic: String = ""
    partitions: Sequence[OffsetForLeaderPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest(Message):
    """Leader epochs by partition."""

    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[tuple[int, int]] = (2, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    replica_id: Annotated[Int32, Wire(since=3, ignorable=True)] = -2
    topics: Sequence[OffsetForLeaderTopic] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    """The largest epoch not above the one asked about, and its end offset."""

    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopicResult:
    """A topic's partitions."""

    topic: String = ""
    partitions: Sequence[EpochEndOffset] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse(Message):
    """End offsets by partition."""

    API_KEY: ClassVar[int] = 23
    VERSIONS: ClassVar[tuple[int, int]] = (2, 4)
    FLEXIBLE_SINCE: ClassVar[int] = 4

    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetForLeaderTopicResult] = ()
