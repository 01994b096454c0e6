"""Produce (0), versions 0 to 13: appends batches to partitions.

Versions 0 to 2 carry message sets of magic 0 and 1, which are not served, yet advertised: librdkafka before 2.10 stops
compressing when version 0 is missing. They decode like the others, so that each partition can be answered with
UNSUPPORTED_VERSION (`FIRST_BATCH_VERSION`). Version 3 brings batches and transactions (KIP-98), 5 the log start offset,
7 zstd (KIP-110), 8 errors by record (KIP-467), 9 is flexible, 10 names the present leader (KIP-951), 12 is for
transactions (KIP-890), 13 addresses topics by id (KIP-516).

Our own tagged fields, which other servers and clients skip: `keep_offsets` asks for the batches' base offsets to be
kept instead of assigned, `expected_end` names the end that the log must have (-1: any), `source` the partition that the
batches are copied from (`Origin.token`), `copier_epoch` the epoch of the copier that sends them (-1: none), and
`log_end_offset` tells where the log ends, after success and after an overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import ZERO_UUID, Bool, Int16, Int32, Int64, Message, Records, String, Uuid, Wire

FIRST_BATCH_VERSION = 3
"""Requests below carry message sets of magic 0 and 1: answer UNSUPPORTED_VERSION."""

FIRST_VERSION_OF_ZSTD = 7
FIRST_VERSION_OF_TOPIC_IDS = 13
ACKS_ALL = -1

KEEP_OFFSETS_FEATURE = "pipeline.keep_offsets"
"""The feature by which ApiVersions tells that the broker heeds `keep_offsets`, from version 2 on also `source`, from
version 3 on also `copier_epoch`."""
KEEP_OFFSETS_VERSIONS = (1, 3)
FIRST_VERSION_OF_SOURCES = 2
FIRST_VERSION_OF_COPIER_EPOCHS = 3
NO_COPIER_EPOCH = -1
"""Copier epoch of a mirror that shares its work with no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceData:
    """The batches for one partition."""

    index: Int32 = 0
    records: Records | None = None
    keep_offsets: Annotated[Bool, Wire(since=9, tag=10000)] = False
    expected_end: Annotated[Int64, Wire(since=9, tag=10001)] = -1
    source: Annotated[String, Wire(since=9, tag=10002)] = ""
    copier_epoch: Annotated[Int64, Wire(since=9, tag=10003)] = NO_COPIER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData:
    """The partitions of one topic."""

    name: Annotated[String, Wire(until=12, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=13, ignorable=True)] = ZERO_UUID
    partition_data: Sequence[PartitionProduceData] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(Message):
    """Batches to append; `acks` 0 wants no response, 1 the leader's, -1 that of all in-sync replicas."""

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (0, 13)
    FLEXIBLE_SINCE: ClassVar[int] = 9

    transactional_id: Annotated[String | None, Wire(since=3)] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: Sequence[TopicProduceData] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIndexAndErrorMessage:
    """A record that made its batch fail."""

    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The present leader."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceResponse:
    """The result for one partition."""

    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = -1
    log_append_time_ms: Annotated[Int64, Wire(since=2, ignorable=True)] = -1
    log_start_offset: Annotated[Int64, Wire(since=5, ignorable=True)] = -1
    record_errors: Annotated[Sequence[BatchIndexAndErrorMessage], Wire(since=8, ignorable=True)] = ()
    error_message: Annotated[String | None, Wire(since=8, ignorable=True)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Wire(since=10, tag=0, ignorable=True)] = LeaderIdAndEpoch()
    log_end_offset: Annotated[Int64, Wire(since=9, tag=10000, ignorable=True)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponse:
    """The partitions of one topic."""

    name: Annotated[String, Wire(until=12, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=13, ignorable=True)] = ZERO_UUID
    partition_responses: Sequence[PartitionProduceResponse] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    """The address of a leader named in this response."""

    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse(Message):
    """Results by partition."""

    API_KEY: ClassVar[int] = 0
    VERSIONS: ClassVar[tuple[int, int]] = (0, 13)
    FLEXIBLE_SINCE: ClassVar[int] = 9

    responses: Sequence[TopicProduceResponse] = ()
    throttle_time_ms: Annotated[Int32, Wire(since=1, ignorable=True)] = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], Wire(since=10, tag=0, ignorable=True)] = ()
