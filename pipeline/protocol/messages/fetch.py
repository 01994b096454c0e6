"""Fetch (1), versions 4 to 18: reads batches from partitions.

Version 4 brings batches and isolation levels (KIP-98), 5 the log start offset, 7 fetch sessions (KIP-227), 9 leader
epochs (KIP-320), 10 zstd (KIP-110), 11 fetching from a near replica (KIP-392), 12 is flexible and tells divergence
(KIP-595), 13 addresses topics by id (KIP-516), 15 moves the replica's id into a tagged field (KIP-903), 16 names
present leaders (KIP-951), 17 has replica directories (KIP-853), 18 the follower's high watermark (KIP-1166).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import ZERO_UUID, Int8, Int16, Int32, Int64, Message, Records, String, Uuid, Wire

READ_COMMITTED = 1
"""The isolation level of requests (here and in ListOffsets) that end at the last stable offset."""
FIRST_VERSION_OF_ZSTD = 10
FIRST_VERSION_OF_TOPIC_IDS = 13
FIRST_VERSION_OF_REPLICA_STATE = 15

NO_SESSION = 0
INITIAL_EPOCH = 0
"""The epoch of a request that asks for a fetch session, and names all its partitions."""
FINAL_EPOCH = -1
"""The epoch of a request outside of sessions; it ends the session that it names."""
FIRST_EPOCH = 1
MAX_EPOCH = 2**31 - 1
"""The epoch after which `FIRST_EPOCH` follows."""

NOT_TOLD = 9223372036854775807
"""High watermark of a fetcher that does not tell its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The follower that fetches."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """A partition and where to read from."""

    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, Wire(since=9, ignorable=True)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, Wire(since=12)] = -1
    log_start_offset: Annotated[Int64, Wire(since=5, ignorable=True)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, Wire(since=17, tag=0, ignorable=True)] = ZERO_UUID
    high_watermark: Annotated[Int64, Wire(since=18, tag=1, ignorable=True)] = NOT_TOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    """The partitions of one topic."""

    topic: Annotated[String, Wire(until=12, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=13, ignorable=True)] = ZERO_UUID
    partitions: Sequence[FetchPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    """Partitions to take out of the fetch session."""

    topic: Annotated[String, Wire(until=12, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=13, ignorable=True)] = ZERO_UUID
    partitions: Sequence[Int32] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(Message):
    """Partitions to read, bounds in bytes, and the time to wait for `min_bytes`."""

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[tuple[int, int]] = (4, 18)
    FLEXIBLE_SINCE: ClassVar[int] = 12

    cluster_id: Annotated[String | None, Wire(since=12, tag=0, ignorable=True)] = None
    replica_id: Annotated[Int32, Wire(until=14)] = -1
    replica_state: Annotated[ReplicaState, Wire(since=15, tag=1)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2147483647
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Wire(since=7, ignorable=True)] = 0
    session_epoch: Annotated[Int32, Wire(since=7, ignorable=True)] = -1
    topics: Sequence[FetchTopic] = ()
    forgotten_topics_data: Annotated[Sequence[ForgottenTopic], Wire(since=7)] = ()
    rack_id: Annotated[String, Wire(since=11, ignorable=True)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    """The largest common epoch and its end: the follower's log diverges from the leader's there."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    """The present leader."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    """The snapshot to fetch instead."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """A transaction whose records a read-committed consumer skips."""

    producer_id: Int64 = 0
    first_offset: Int64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    """The batches of one partition. The first may start before the offset asked for, the last may be cut."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Wire(since=5, ignorable=True)] = -1
    diverging_epoch: Annotated[EpochEndOffset, Wire(since=12, tag=0, ignorable=True)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, Wire(since=12, tag=1, ignorable=True)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, Wire(since=12, tag=2, ignorable=True)] = SnapshotId()
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: Annotated[Int32, Wire(since=11, ignorable=True)] = -1
    records: Records | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableTopicResponse:
    """The partitions of one topic."""

    topic: Annotated[String, Wire(until=12, ignorable=True)] = ""
    topic_id: Annotated[Uuid, Wire(since=13, ignorable=True)] = ZERO_UUID
    partitions: Sequence[PartitionData] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    """The address of a leader named in this response."""

    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse(Message):
    """Batches, or errors, by partition."""

    API_KEY: ClassVar[int] = 1
    VERSIONS: ClassVar[tuple[int, int]] = (4, 18)
    FLEXIBLE_SINCE: ClassVar[int] = 12

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Wire(since=7, ignorable=True)] = 0
    session_id: Annotated[Int32, Wire(since=7, ignorable=True)] = 0
    responses: Sequence[FetchableTopicResponse] = ()
    node_endpoints: Annotated[Sequence[NodeEndpoint], Wire(since=16, tag=0, ignorable=True)] = ()
