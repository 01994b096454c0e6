"""ElectLeaders (43), versions 0 to 2: elect partition leaders (KIP-183), from 1 on also unclean ones (KIP-460)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Int8, Int16, Int32, Message, String, Wire


class ElectionType(IntEnum):
    """The replica that may become leader: the first one if in sync; or any live one where no leader is left."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    """A topic's partitions."""

    topic: String = ""
    partitions: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest(Message):
    """Partitions that elect a leader; null stands for all."""

    API_KEY: ClassVar[int] = 43
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    election_type: Annotated[Int8, Wire(since=1)] = 0
    topic_partitions: Sequence[TopicPartitions] | None = ()
    timeout_ms: Int32 = 60000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """The result for one partition."""

    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaElectionResult:
    """A topic's partitions."""

    topic: String = ""
    partition_result: Sequence[PartitionResult] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse(Message):
    """Results by partition."""

    API_KEY: ClassVar[int] = 43
    VERSIONS: ClassVar[tuple[int, int]] = (0, 2)
    FLEXIBLE_SINCE: ClassVar[int] = 2

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=1, ignorable=True)] = 0
    replica_election_results: Sequence[ReplicaElectionResult] = ()
