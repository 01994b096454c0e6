"""OffsetDelete (47), version 0: a group forgets offsets of topics it no longer reads (KIP-496)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestPartition:
    """A partition to forget."""

    partition_index: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestTopic:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[OffsetDeleteRequestPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest(Message):
    """What to forget."""

    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    group_id: String = ""
    topics: Sequence[OffsetDeleteRequestTopic] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    """Whether a partition was forgotten."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[OffsetDeleteResponsePartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse(Message):
    """What became of it."""

    API_KEY: ClassVar[int] = 47
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 1

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetDeleteResponseTopic] = ()
