"""DescribeLogDirs (35), versions 1 to 5: log directories, and the size of what lies in them (KIP-113).

Version 2 is flexible, 3 adds a top-level error, 4 the size of the volumes (KIP-827), 5 whether a directory is cordoned.
From version 2 on the tagged fields 10000 and 10001 of a directory, ours, name its strays, and say that it is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import ZERO_UUID, Bool, Int16, Int32, Int64, Message, String, Uuid, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribableLogDirTopic:
    """A topic's partitions."""

    topic: String = ""
    partitions: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequest(Message):
    """Partitions to describe; null stands for all."""

    API_KEY: ClassVar[int] = 35
    VERSIONS: ClassVar[tuple[int, int]] = (1, 5)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    topics: Sequence[DescribableLogDirTopic] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsPartition:
    """The size of a partition and its lag."""

    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsTopic:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[DescribeLogDirsPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsStray:
    """A log that is kept and belongs to no partition of the broker. The id is zero if the log has none."""

    topic: String = ""
    partition: Int32 = 0
    topic_id: Uuid = ZERO_UUID
    path: String = ""
    reason: String = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResult:
    """A directory."""

    error_code: Int16 = 0
    log_dir: String = ""
    topics: Sequence[DescribeLogDirsTopic] = ()
    total_bytes: Annotated[Int64, Wire(since=4, ignorable=True)] = -1
    usable_bytes: Annotated[Int64, Wire(since=4, ignorable=True)] = -1
    is_cordoned: Annotated[Bool, Wire(since=5, ignorable=True)] = False
    strays: Annotated[Sequence[DescribeLogDirsStray], Wire(since=2, tag=10000, ignorable=True)] = ()
    lack_of_room: Annotated[String, Wire(since=2, tag=10001, ignorable=True)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse(Message):
    """The directories."""

    API_KEY: ClassVar[int] = 35
    VERSIONS: ClassVar[tuple[int, int]] = (1, 5)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=3, ignorable=True)] = 0
    results: Sequence[DescribeLogDirsResult] = ()
