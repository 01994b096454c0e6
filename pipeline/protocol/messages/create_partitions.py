"""CreatePartitions (37), versions 0 to 3 (KIP-195); 3 may answer THROTTLING_QUOTA_EXCEEDED (KIP-599)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Bool, Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsAssignment:
    """The brokers that shall hold one new partition."""

    broker_ids: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopic:
    """A topic and its new partition count; with null assignments the cluster places the partitions."""

    name: String = ""
    count: Int32 = 0
    assignments: Sequence[CreatePartitionsAssignment] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsRequest(Message):
    """Topics that get more partitions."""

    API_KEY: ClassVar[int] = 37
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    topics: Sequence[CreatePartitionsTopic] = ()
    timeout_ms: Int32 = 0
    validate_only: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsTopicResult:
    """The result for one topic."""

    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitionsResponse(Message):
    """Results by topic."""

    API_KEY: ClassVar[int] = 37
    VERSIONS: ClassVar[tuple[int, int]] = (0, 3)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    results: Sequence[CreatePartitionsTopicResult] = ()
