"""DeleteRecords (21), versions 0 to 2: delete the records before an offset (KIP-107)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int16, Int32, Int64, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartition:
    """A partition and its new log start offset, -1 for its high watermark."""

    partition_index: Int32 = 0
    offset: Int64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopic:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[DeleteRecordsPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest(Message):
    """New log start offsets by partition."""

    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    topics: Sequence[DeleteRecordsTopic] = ()
    timeout_ms: Int32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartitionResult:
    """The log start offset now (the low watermark)."""

    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopicResult:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[DeleteRecordsPartitionResult] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse(Message):
    """Results by partition."""

    API_KEY: ClassVar[int] = 21
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    topics: Sequence[DeleteRecordsTopicResult] = ()
