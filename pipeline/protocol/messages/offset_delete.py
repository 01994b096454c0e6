"""OffsetDelete (47), version 0: remove the committed offsets of topics that a group no longer reads (KIP-496)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestPartition:
    """A partition whose offset is removed."""

    partition_index: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestTopic:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[OffsetDeleteRequestPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest(Message):
    """Committed offsets to remove."""

    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    group_id: String = ""
    topics: Sequence[OffsetDeleteRequestTopic] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    """The result for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[OffsetDeleteResponsePartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse(Message):
    """Results by partition."""

    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetDeleteResponseTopic] = ()
