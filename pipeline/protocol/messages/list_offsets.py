"""ListOffsets (2), versions 1 to 11: the offset at a point in time.

A timestamp below zero asks for a special offset: `LATEST`, `EARLIEST`, from version 7 `MAX_TIMESTAMP` (KIP-734), from 8
the earliest local offset (KIP-405), from 9 the last tiered one (KIP-1005), from 11 the earliest pending upload
(KIP-1023). Version 2 adds isolation levels, 4 leader epochs (KIP-320), 10 a timeout (KIP-1075).

Our own tagged field `range_sums`, from version 6 on, asks for sums over the batches of an offset range instead; the
timestamp does not count then. Other servers skip the field, so it is sent only to brokers of the feature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pipeline.protocol.schema import Bool, Int8, Int16, Int32, Int64, Message, String, Wire

LATEST = -1
"""The offset after the last record."""
EARLIEST = -2
"""The first offset the log still holds."""
MAX_TIMESTAMP = -3
"""The offset of the record with the highest timestamp (KIP-734)."""
EARLIEST_LOCAL = -4
LATEST_REMOTE = -5
EARLIEST_PENDING_UPLOAD = -6
SPECIAL_TIMES = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_REMOTE: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The timestamps that are questions, and the first version of each."""
FIRST_VERSION_OF_OFFSET_NOT_AVAILABLE = 5

RANGE_SUMS_FEATURE = "pipeline.range_sums"
"""The feature by which ApiVersions tells that the broker answers `range_sums`."""
RANGE_SUMS_VERSIONS = (1, 2)
FIRST_VERSION_OF_KINDS = 2
"""Version of the feature from which a broker knows `AskedRange.kind`. Older brokers skip the field, and sum headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRange:
    """The batches whose last offsets lie from `from_offset` on and before `up_to_offset`.

    `kind`: what is summed; 0 headers, 1 frames (headers without what depends on the codec), 2 contents (frames and
    plain records). Checksums are computed with `is_deep`, and of contents always.
    """

    from_offset: Int64 = -1
    up_to_offset: Int64 = -1
    is_deep: Bool = False
    kind: Annotated[Int8, Wire(since=6, tag=0)] = 0


NO_RANGE = AskedRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class SummedRange:
    """Sums over the batches of a range, as far as `next_offset`: the end of the range, or where the broker stopped.

    `digest` is the sum modulo 2^63 of a hash of each batch, of what `kind` asked for. A broker that computed checksums
    counts wrong ones. Batches before `clean_offset` may have been compacted. `damage` says why the
    log cannot be read at `next_offset`.
    """

    next_offset: Int64 = -1
    batches: Int64 = 0
    records: Int64 = 0
    size_bytes: Int64 = 0
    digest: Int64 = 0
    first_offset: Int64 = -1
    last_offset: Int64 = -1
    damaged_batches: Int64 = 0
    damaged_offset: Int64 = -1
    clean_offset: Int64 = 0
    damage: String | None = None


NOTHING_SUMMED = SummedRange()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    """A partition and a timestamp."""

    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, Wire(since=4, ignorable=True)] = -1
    timestamp: Int64 = 0
    range_sums: Annotated[AskedRange, Wire(since=6, tag=10000)] = NO_RANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    """The partitions of one topic."""

    name: String = ""
    partitions: Sequence[ListOffsetsPartition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Message):
    """A search for the first record at or after a timestamp, for each partition."""

    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[tuple[int, int]] = (1, 11)
    FLEXIBLE_SINCE: ClassVar[int] = 6

    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, Wire(since=2)] = 0
    topics: Sequence[ListOffsetsTopic] = ()
    timeout_ms: Annotated[Int32, Wire(since=10, ignorable=True)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    """The first record at or after the timestamp; offset -1 if there is none."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Wire(since=4, ignorable=True)] = -1
    range_sums: Annotated[SummedRange, Wire(since=6, tag=10000, ignorable=True)] = NOTHING_SUMMED


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    """The partitions of one topic."""

    name: String = ""
    partitions: Sequence[ListOffsetsPartitionResponse] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse(Message):
    """Offsets by partition."""

    API_KEY: ClassVar[int] = 2
    VERSIONS: ClassVar[tuple[int, int]] = (1, 11)
    FLEXIBLE_SINCE: ClassVar[int] = 6

    throttle_time_ms: Annotated[Int32, Wire(since=2, ignorable=True)] = 0
    topics: Sequence[ListOffsetsTopicResponse] = ()
