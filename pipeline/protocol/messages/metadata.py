"""Metadata (3), versions 0 to 13: brokers, topics, partitions and their leaders.

Version 1 adds rack and controller and takes null for all topics (before, the empty list meant all), 2 the cluster id,
3 the throttle time, 4 automatic creation as the client's choice (KIP-4), 5 offline replicas (KIP-112), 7 leader epochs
(KIP-320), 8 to 10 authorized operations (KIP-430), 9 is flexible, 10 adds topic ids (KIP-516), 12 lookup by topic id
alone, 13 a top-level error (KIP-1102).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import ZERO_UUID, Bool, Int16, Int32, Message, String, Uuid, Wire

FIRST_VERSION_OF_ASKING_BY_ID = 12

NOT_ASKED_FOR = -2147483648
"""Authorized operations when the client did not ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic:
    """A topic asked about, by id or by name."""

    topic_id: Annotated[Uuid, Wire(since=10, ignorable=True)] = ZERO_UUID
    name: Annotated[String | None, Wire(nullable_since=10)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(Message):
    """Topics to describe; null stands for all of them."""

    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[tuple[int, int]] = (0, 13)
    FLEXIBLE_SINCE: ClassVar[int] = 9

    topics: Annotated[Sequence[MetadataRequestTopic] | None, Wire(nullable_since=1)] = ()
    allow_auto_topic_creation: Annotated[Bool, Wire(since=4)] = True
    include_cluster_authorized_operations: Annotated[Bool, Wire(since=8, until=10)] = False
    include_topic_authorized_operations: Annotated[Bool, Wire(since=8)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseBroker:
    """A live broker."""

    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, Wire(since=1, ignorable=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponsePartition:
    """A partition: leader, replicas, in-sync replicas."""

    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, Wire(since=7, ignorable=True)] = -1
    replica_nodes: Sequence[Int32] = ()
    isr_nodes: Sequence[Int32] = ()
    offline_replicas: Annotated[Sequence[Int32], Wire(since=5, ignorable=True)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseTopic:
    """A topic and its partitions."""

    error_code: Int16 = 0
    name: Annotated[String | None, Wire(nullable_since=12)] = ""
    topic_id: Annotated[Uuid, Wire(since=10, ignorable=True)] = ZERO_UUID
    is_internal: Annotated[Bool, Wire(since=1, ignorable=True)] = False
    partitions: Sequence[MetadataResponsePartition] = ()
    topic_authorized_operations: Annotated[Int32, Wire(since=8, ignorable=True)] = NOT_ASKED_FOR


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(Message):
    """The cluster as this broker sees it."""

    API_KEY: ClassVar[int] = 3
    VERSIONS: ClassVar[tuple[int, int]] = (0, 13)
    FLEXIBLE_SINCE: ClassVar[int] = 9

    throttle_time_ms: Annotated[Int32, Wire(since=3, ignorable=True)] = 0
    brokers: Sequence[MetadataResponseBroker] = ()
    cluster_id: Annotated[String | None, Wire(since=2, ignorable=True)] = None
    controller_id: Annotated[Int32, Wire(since=1, ignorable=True)] = -1
    topics: Sequence[MetadataResponseTopic] = ()
    cluster_authorized_operations: Annotated[Int32, Wire(since=8, until=10, ignorable=True)] = NOT_ASKED_FOR
    error_code: Annotated[Int16, Wire(since=13, ignorable=True)] = 0
