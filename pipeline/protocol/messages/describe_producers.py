"""DescribeProducers (61), version 0: idempotent producers of partitions (KIP-664)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pipeline.protocol.schema import Int16, Int32, Int64, Message, String


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """A topic."""

    name: String = ""
    partition_indexes: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest(Message):
    """Partitions to describe."""

    API_KEY: ClassVar[int] = 61
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    topics: Sequence[TopicRequest] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """A producer as the partition knows it."""

    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """A partition's producers."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: Sequence[ProducerState] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """A topic's partitions."""

    name: String = ""
    partitions: Sequence[PartitionResponse] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse(Message):
    """The producers."""

    API_KEY: ClassVar[int] = 61
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_SINCE: ClassVar[int] = 0

    throttle_time_ms: Int32 = 0
    topics: Sequence[TopicResponse] = ()
