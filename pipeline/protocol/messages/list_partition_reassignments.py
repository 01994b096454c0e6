"""ListPartitionReassignments (46), version 0: the reassignments under way (KIP-455)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int16, Int32, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsTopics:
    """A topic's partitions."""

    name: String = ""
    partition_indexes: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsRequest(Message):
    """Partitions to list; null stands for all."""

    API_KEY: ClassVar[int] = 46
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    timeout_ms: Int32 = 60000
    topics: Sequence[ListPartitionReassignmentsTopics] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingPartitionReassignment:
    """A partition under reassignment: all its replicas, those being added, and those being removed."""

    partition_index: Int32 = 0
    replicas: Sequence[Int32] = ()
    adding_replicas: Sequence[Int32] = ()
    removing_replicas: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingTopicReassignment:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[OngoingPartitionReassignment] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponse(Message):
    """Reassignments under way."""

    API_KEY: ClassVar[int] = 46
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: Sequence[OngoingTopicReassignment] = ()
