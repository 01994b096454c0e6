"""What to fetch next from a broker, and what its answer means for each partition. Pure; `fetcher.py` acts.

Invariants:
- A partition's fetch position moves only past whole batches that were handed on, so after any failure the same
  position is asked for again: nothing is skipped, and batches wholly before it are cut off: nothing is repeated.
- Sound batches in front of a bad one are handed on. Nothing moves past the bad batch but `FetchOutcome.skip_to`.
- An answer counts only for the position it was asked for; a seek in between makes it void.
- A request names the leader epoch of the metadata that chose the broker (KIP-320), so that a broker of another epoch
  refuses: the bounds of its log decide nothing.
- Each request begins with another partition, so that a full response starves none (KIP-74).
- Every answer with bytes moves the position or is an error: a broker sends at least one whole batch (KIP-74).
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import index

from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.cluster.metadata import ClusterView
from pipeline.errors import CorruptBatchError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pipeline.records.batch import BatchHeader, iterate_headers, read_header, verify_crc

_LEADER_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


MAX_PARTITION = 2**31 - 1
MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Whole record batches as the broker sent them, payload closed. `data` is a view that stays valid.

    The first batch may begin before `position`, which was asked for: its records before it are to be skipped.
    `next_offset` is where to go on.
    """

    topic_partition: TopicPartition
    data: memoryview
    position: int
    next_offset: int
    high_watermark: int
    log_start_offset: int


@dataclass(slots=True)
class FetchState:
    """A partition that is being fetched. A seek replaces the whole state."""

    topic_partition: TopicPartition
    offset: int
    """The next one to fetch."""
    position: int
    """The next one to hand out."""
    topic_id: uuid.UUID | None = None
    """The topic the offsets belong to, once known."""
    not_before_ms: int = 0
    failures: int = 0
    unknown_since_ms: int | None = None
    is_asking: bool = False
    """Its leader is being asked for the bounds of the log, in which the offset is not."""
    parked: bool = False
    """Rests until it is sought or assigned anew."""
    rejected: bool = False
    """A batch in front could not be opened: what was fetched behind it is not handed out."""
    skip_to: int | None = None
    """The offset behind the bad batch at which the partition rests, once the caller knows of it."""
    high_watermark: int | None = None


def begin_at(topic_partition: TopicPartition, offset: int, topic_id: uuid.UUID | None = None) -> FetchState:
    """A partition that is to be fetched from this offset on.

    Raises ValueError or TypeError for what no request can hold: it would fail the requests of all other partitions.
    """
    if not 0 <= index(topic_partition.partition) <= MAX_PARTITION:
        raise ValueError(f"{topic_partition} is no partition")
    if not 0 <= index(offset) <= MAX_OFFSET:
        raise ValueError(f"{topic_partition}: {offset} is no offset")
    return FetchState(topic_partition, offset=offset, position=offset, topic_id=topic_id)


class FetchVerdict(Enum):
    """What an answer means for one partition."""

    DATA = auto()
    NOTHING_NEW = auto()
    RETRY = auto()
    LEADER_MOVED = auto()
    OUT_OF_RANGE = auto()
    FATAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOutcome:
    """The verdict, with the batches and the error it is about.

    A bad batch is FATAL with a CorruptBatchError: `batches` precede it, `skip_to` is the offset behind it.
    """

    verdict: FetchVerdict
    batches: FetchedBatches | None = None
    error: Exception | None = None
    skip_to: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The bytes of an answer that are handed on, the offset after them, and the bad batch that follows, if any."""

    start: int
    end: int
    next_offset: int
    error: CorruptBatchError | None = None
    skip_to: int | None = None


def fetch_request(states: Sequence[FetchState], view: ClusterView, config: ConsumerConfig) -> FetchRequest:
    """One request for these partitions, in this order. No fetch session (KIP-227): each request is complete."""
    topics: dict[str, list[FetchPartition]] = {}
    for state in states:
        topics.setdefault(state.topic_partition.topic, []).append(
            FetchPartition(
                partition=state.topic_partition.partition,
                current_leader_epoch=view.leader_epoch_of(state.topic_partition),
                fetch_offset=state.offset,
                partition_max_bytes=min(config.max_partition_bytes, config.max_bytes),
            )
        )
    topic_ids = view.topic_ids(topics)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=config.max_wait_ms,
        min_bytes=config.min_bytes,
        max_bytes=config.max_bytes,
        session_id=0,
        session_epoch=-1,
        topics=tuple(
            FetchTopic(topic=topic, topic_id=topic_ids[topic], partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )


def rotate(states: Sequence[FetchState], turn: int) -> list[FetchState]:
    """The states in the order of this turn; topics stay together, as the request groups by topic."""
    first = turn % len(states) if states else 0
    return [*states[first:], *states[:first]]


def fetch_answers(
    response: FetchResponse, topic_ids: Mapping[str, uuid.UUID]
) -> Iterable[tuple[TopicPartition, PartitionData]]:
    """Each partition of a response, named also where the response names topics by id."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    for topic in response.responses:
        name = topic.topic or names.get(topic.topic_id)
        if name is not None:
            for partition in topic.partitions:
                yield TopicPartition(name, partition.partition_index), partition


def judge(topic_partition: TopicPartition, asked_offset: int, data: PartitionData) -> FetchOutcome:
    """What the broker's answer to a fetch at `asked_offset` means. Changes nothing."""
    code = ErrorCode.of(data.error_code)
    if code is ErrorCode.NONE:
        return _judge_data(topic_partition, asked_offset, data)
    if code is ErrorCode.CORRUPT_MESSAGE:
        damaged = CorruptBatchError("is damaged in the log of the partition's leader", asked_offset)
        return FetchOutcome(verdict=FetchVerdict.FATAL, error=damaged, skip_to=asked_offset + 1)
    error = KafkaError(code, str(topic_partition))
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return FetchOutcome(verdict=FetchVerdict.OUT_OF_RANGE, error=error)
    if code in _LEADER_MOVED:
        return FetchOutcome(verdict=FetchVerdict.LEADER_MOVED, error=error)
    return FetchOutcome(verdict=FetchVerdict.RETRY if error.retriable else FetchVerdict.FATAL, error=error)


def _judge_data(topic_partition: TopicPartition, offset: int, data: PartitionData) -> FetchOutcome:
    records = data.records
    if not isinstance(records, memoryview):  # a decoded response has a view or nothing
        return FetchOutcome(verdict=FetchVerdict.NOTHING_NEW)
    cut = _cut(records, offset, data.high_watermark)
    batches = None
    if cut.start < cut.end:
        batches = FetchedBatches(
            topic_partition=topic_partition,
            data=records[cut.start : cut.end],
            position=offset,
            next_offset=cut.next_offset,
            high_watermark=data.high_watermark,
            log_start_offset=data.log_start_offset,
        )
    if cut.error is not None:
        return FetchOutcome(verdict=FetchVerdict.FATAL, batches=batches, error=cut.error, skip_to=cut.skip_to)
    return FetchOutcome(verdict=FetchVerdict.NOTHING_NEW if batches is None else FetchVerdict.DATA, batches=batches)


def _cut(view: memoryview, offset: int, high_watermark: int) -> _Cut:
    """The whole batches that reach `offset` or beyond, checksums verified, up to the first bad one.

    A gap comes about by compaction, long before the high watermark. So the last batch bears a wrong base offset if it
    lies behind a gap and ends behind the high watermark; without a gap it may be that the answer's is an older one.
    """
    start = end = 0
    next_offset = offset
    suspect: BatchHeader | None = None
    before_gap: _Cut | None = None
    try:
        for position, header in iterate_headers(view):
            if header.base_offset != next_offset:
                if start == end and header.next_offset <= offset:
                    start = end = position + header.size_bytes
                    continue
                if start < end and header.base_offset < next_offset:
                    return before_gap or _misplaced(header, start, end, next_offset)
            suspect = header
            verify_crc(view, position, header)
            suspect = None
            before_gap = None if header.base_offset <= next_offset else _misplaced(header, start, end, next_offset)
            end = position + header.size_bytes
            next_offset = header.next_offset
        if next_offset == offset and len(view):
            suspect = read_header(view, end)
            verify_crc(view, end, suspect)
    except CorruptBatchError as error:
        skip_to = next_offset + 1 if suspect is None else _offset_behind(suspect, next_offset)
        named = error if error.offset is not None else CorruptBatchError(error.reason, next_offset)
        return _Cut(start=start, end=end, next_offset=next_offset, error=named, skip_to=skip_to)
    if before_gap is not None and 0 <= high_watermark < next_offset:
        return before_gap
    return _Cut(start=start, end=end, next_offset=next_offset)


def _misplaced(header: BatchHeader, start: int, end: int, next_offset: int) -> _Cut:
    """The batches in front of one that bears a wrong base offset, which no checksum covers: the offsets of an answer
    rise. Behind a gap that is the batch after which they go back, else the one that goes back.
    """
    error = CorruptBatchError(f"bears the wrong offset {header.base_offset}", next_offset)
    skip_to = next_offset + header.last_offset_delta + 1
    return _Cut(start=start, end=end, next_offset=next_offset, error=error, skip_to=skip_to)


def _offset_behind(header: BatchHeader, position: int) -> int:
    """Where to go on behind a batch whose checksum is wrong: at its end, if its header agrees with itself on that.

    Else at the next offset, where the same batch is refused again if it goes on there.
    """
    is_consistent = header.last_offset_delta == header.record_count - 1
    return max(position + 1, header.next_offset) if is_consistent else position + 1
