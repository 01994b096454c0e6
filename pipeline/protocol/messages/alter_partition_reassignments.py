"""AlterPartitionReassignments (45), versions 0 and 1: begin or cancel reassignments of partitions (KIP-455).

Version 1 may forbid a change of the replication factor (KIP-860).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bool, Int16, Int32, Message, String, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartition:
    """A partition's new replicas; null cancels the reassignment under way."""

    partition_index: Int32 = 0
    replicas: Sequence[Int32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopic:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[ReassignablePartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest(Message):
    """Reassignments to begin or cancel."""

    API_KEY: ClassVar[int] = 45
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, Wire(since=1)] = True
    topics: Sequence[ReassignableTopic] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartitionResponse:
    """The result for one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopicResponse:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[ReassignablePartitionResponse] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse(Message):
    """Results by partition."""

    API_KEY: ClassVar[int] = 45
    VERSIONS: ClassVar[tuple[int, int]] = (0, 1)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Wire(since=1)] = True
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Sequence[ReassignableTopicResponse] = ()
