"""CreateTopics (19), versions 2 to 7.

Version 4 takes -1 for the broker's defaults (KIP-464), 5 is flexible and returns the topic as created (KIP-525), 6 may
answer THROTTLING_QUOTA_EXCEEDED (KIP-599), 7 returns the topic id (KIP-516).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import ZERO_UUID, Bool, Int8, Int16, Int32, Message, String, Uuid, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableReplicaAssignment:
    """The brokers that shall hold one partition."""

    partition_index: Int32 = 0
    broker_ids: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicConfig:
    """A setting of the new topic."""

    name: String = ""
    value: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic:
    """A topic to create; with assignments, partitions and replication factor are -1."""

    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: Sequence[CreatableReplicaAssignment] = ()
    configs: Sequence[CreatableTopicConfig] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest(Message):
    """Topics to create."""

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (2, 7)
    FLEXIBLE_SINCE: ClassVar[int] = 5

    topics: Sequence[CreatableTopic] = ()
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicConfigs:
    """A setting of the topic as created."""

    name: String = ""
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicResult:
    """The result for one topic."""

    name: String = ""
    topic_id: Annotated[Uuid, Wire(since=7, ignorable=True)] = ZERO_UUID
    error_code: Int16 = 0
    error_message: String | None = None
    topic_config_error_code: Annotated[Int16, Wire(since=5, tag=0, ignorable=True)] = 0
    num_partitions: Annotated[Int32, Wire(since=5, ignorable=True)] = -1
    replication_factor: Annotated[Int16, Wire(since=5, ignorable=True)] = -1
    configs: Annotated[Sequence[CreatableTopicConfigs] | None, Wire(since=5, ignorable=True)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse(Message):
    """Results by topic."""

    API_KEY: ClassVar[int] = 19
    VERSIONS: ClassVar[tuple[int, int]] = (2, 7)
    FLEXIBLE_SINCE: ClassVar[int] = 5

    throttle_time_ms: Int32 = 0
    topics: Sequence[CreatableTopicResult] = ()
