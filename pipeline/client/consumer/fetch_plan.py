"""Fetch requests to a broker, and the verdict on each partition's answer. Pure; `fetcher.py` acts.

Invariants:
- A partition's fetch offset moves only past whole batches that were passed on, so a failure skips no records; batches
  wholly before the offset are dropped, so none is repeated.
- Sound batches before a bad one are passed on. Only `FetchOutcome.skip_to` moves past a bad batch.
- An answer counts only for the offset and the leader epoch of its request; a seek in between makes it void.
- A request names the leader epoch of the metadata that chose the broker (KIP-320), so that a broker of another epoch
  refuses: the bounds of its log decide nothing.
- A position behind records of a known leader epoch is fetched in another leader epoch only after the new leader has
  confirmed that its log has these records (`enter_epoch`).
- Every answer with bytes moves the position or is an error: a broker sends at least one whole batch (KIP-74).
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import index

from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.errors import CorruptBatchError
from pipeline.model import NO_LEADER_EPOCH, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pipeline.protocol.schema import ZERO_UUID
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
MAX_LEADER_EPOCH = 2**31 - 1
MAX_INT32 = 2**31 - 1
KEPT_EPOCHS = 16
"""Leader epochs of a partition that are remembered for the offsets at which its reader may be."""

OnAnswer = Callable[[Sequence[tuple[TopicPartition, int]], float], None]
"""Notified of the partitions that were answered without error, also if there are no new records, with their high
watermarks, and of the time of the request (of trio's clock). An answer may have been on its way for long: its time says
nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Whole record batches as the broker sent them, payload closed. `data` is a view that stays valid.

    The first batch may begin before the requested `position`: skip its records before that. Continue at `next_offset`.
    """

    topic_partition: TopicPartition
    data: memoryview
    position: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    leader_epochs: tuple[tuple[int, int], ...] = ()
    """Leader epochs of the batches in order, each with the base offset of its first batch here."""
    aborted: tuple[tuple[int, int], ...] = ()
    """Producer id and first offset of the aborted transactions with records here; only with READ_COMMITTED."""


@dataclass(slots=True)
class FetchState:
    """A partition that is being fetched. A seek replaces the whole state."""

    topic_partition: TopicPartition
    offset: int
    """Next offset to fetch."""
    position: int
    """Next offset to return to the caller."""
    topic_id: uuid.UUID | None = None
    """Topic of the offsets, once known."""
    last_epoch: int = NO_LEADER_EPOCH
    """Leader epoch of the record before `offset`, -1 if it is not known."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """The newest leader epochs of fetched records, each with the base offset of its first batch."""
    is_epoch_kept: bool = False
    """True if the caller keeps epochs beside offsets, and so must hear of a leader that knows no epoch as high."""
    leader_epoch: int = NO_LEADER_EPOCH
    """Leader epoch in which `offset` may be fetched, and which requests name; -1 for none."""
    not_before_ms: int = 0
    failures: int = 0
    unknown_since_ms: int | None = None
    is_asking: bool = False
    """True while the leader is asked about its log: for its bounds, or for the end of `last_epoch`."""
    parked: bool = False
    """True if the partition pauses until a seek or a new assignment."""
    rejected: bool = False
    """True if a batch could not be opened: the fetched batches after it are not returned."""
    skip_to: int | None = None
    """Offset after the bad batch at which the partition pauses, once the caller knows of it."""
    high_watermark: int | None = None
    max_bytes: int = MAX_INT32
    """Share of its limit in the next request."""
    request: object = None
    """The request for records under way whose answer counts, if any."""
    is_behind: bool = False
    """True if the last answer left records at the broker."""
    moved_at_ms: int = 0
    """Time of the last answer with records."""


def begin_at(
    topic_partition: TopicPartition,
    offset: int,
    topic_id: uuid.UUID | None = None,
    last_epoch: int = NO_LEADER_EPOCH,
) -> FetchState:
    """Return the state of a partition that is fetched from this offset on.

    `last_epoch` is the epoch of the record before, if the caller kept it.

    Raises ValueError or TypeError for a value that no request can hold: it would fail the requests of all partitions.
    """
    if not 0 <= index(topic_partition.partition) <= MAX_PARTITION:
        raise ValueError(f"{topic_partition} is not a partition")
    if not 0 <= index(offset) <= MAX_OFFSET:
        raise ValueError(f"{topic_partition}: {offset} is not an offset")
    if not NO_LEADER_EPOCH <= index(last_epoch) <= MAX_LEADER_EPOCH:
        raise ValueError(f"{topic_partition}: {last_epoch} is not a leader epoch")
    state = FetchState(
        topic_partition,
        offset=offset,
        position=offset,
        topic_id=topic_id,
        last_epoch=last_epoch,
        is_epoch_kept=last_epoch != NO_LEADER_EPOCH,
    )
    state.epochs.append((offset - 1, last_epoch))
    return state


def note_epochs(state: FetchState, batches: FetchedBatches) -> None:
    """Take note of the leader epochs of batches that were fetched."""
    for epoch, base_offset in batches.leader_epochs:
        if epoch != state.last_epoch:
            state.epochs.append((base_offset, epoch))
            state.last_epoch = epoch
    del state.epochs[:-KEPT_EPOCHS]


def epoch_before(state: FetchState, offset: int) -> int:
    """Return the leader epoch of the record before an offset, -1 if it is not known."""
    return next((epoch for base, epoch in reversed(state.epochs) if base < offset), NO_LEADER_EPOCH)


def move(state: FetchState, offset: int, last_epoch: int) -> None:
    """Continue at an offset that follows a record of `last_epoch` (-1: not known)."""
    if state.position == state.offset:  # else what was fetched before is still being handed out
        state.position = offset
    state.offset = offset
    state.last_epoch = last_epoch
    state.epochs.append((offset - 1, last_epoch))


def enter_epoch(state: FetchState, leader_epoch: int) -> bool:
    """Return True if the position may be fetched in this leader epoch; requests name it from then on.

    False if the leader must confirm the position first: its end offset of `state.last_epoch` decides.
    """
    if leader_epoch != state.leader_epoch:
        if NO_LEADER_EPOCH not in (state.last_epoch, leader_epoch):
            return False
        state.leader_epoch = leader_epoch
    return True


def is_missing(state: FetchState, view: ClusterMetadata, now_ms: int, patience_ms: int) -> bool:
    """Return True if no broker has known the topic for `patience_ms`. A topic without leader is waited for."""
    if view.errors.get(state.topic_partition.topic) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        state.unknown_since_ms = None
        return False
    if state.unknown_since_ms is None:
        state.unknown_since_ms = now_ms
    return now_ms - state.unknown_since_ms > patience_ms


def is_of_other_topic(state: FetchState, view: ClusterMetadata) -> bool:
    """Return True if the topic was recreated, so that the position means other records now."""
    topic_id = view.topics[state.topic_partition.topic].id
    if state.topic_id is None or state.topic_id == ZERO_UUID:
        state.topic_id = topic_id
    return topic_id not in (state.topic_id, ZERO_UUID)


class FetchVerdict(Enum):
    """Meaning of an answer for one partition."""

    DATA = auto()
    NOTHING_NEW = auto()
    RETRY = auto()
    LEADER_MOVED = auto()
    OUT_OF_RANGE = auto()
    FATAL = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOutcome:
    """The verdict, with the batches and the error it is about.

    A bad batch is FATAL with a CorruptBatchError: `batches` precede it, `skip_to` is the offset after it.
    """

    verdict: FetchVerdict
    batches: FetchedBatches | None = None
    error: Exception | None = None
    skip_to: int | None = None
    bad_batch: memoryview | None = None
    """The bytes of the bad batch, if its length can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SoundBatches:
    """The sound bytes of an answer, the offset after them, and the bad batch that follows, if any."""

    start: int
    end: int
    next_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    error: CorruptBatchError | None = None
    skip_to: int | None = None
    bad_batch: memoryview | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBounds:
    """Bounds of one request."""

    max_bytes: int
    max_partition_bytes: int
    max_wait_ms: int


def fetch_request(
    states: Sequence[FetchState], view: ClusterMetadata, config: ConsumerConfig, bounds: FetchBounds
) -> FetchRequest:
    """Return one request for these partitions, in this order, without fetch session (KIP-227)."""
    topics: dict[str, list[FetchPartition]] = {}
    for state in states:
        topics.setdefault(state.topic_partition.topic, []).append(
            FetchPartition(
                partition=state.topic_partition.partition,
                current_leader_epoch=state.leader_epoch,
                fetch_offset=state.offset,
                partition_max_bytes=min(bounds.max_partition_bytes, state.max_bytes),
            )
        )
    topic_ids = view.topic_ids(topics)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=bounds.max_wait_ms,
        min_bytes=config.min_bytes,
        max_bytes=bounds.max_bytes,
        isolation_level=config.isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=tuple(
            FetchTopic(topic=topic, topic_id=topic_ids[topic], partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )


def fetch_answers(
    response: FetchResponse, topic_ids: Mapping[str, uuid.UUID]
) -> Iterable[tuple[TopicPartition, PartitionData]]:
    """Yield each partition of a response by name, also if the response has topic ids only."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    for topic in response.responses:
        name = topic.topic or names.get(topic.topic_id)
        if name is not None:
            for partition in topic.partitions:
                yield TopicPartition(name, partition.partition_index), partition


def judge_answer(topic_partition: TopicPartition, asked_offset: int, data: PartitionData) -> FetchOutcome:
    """Judge the broker's answer to a fetch at `asked_offset`."""
    code = ErrorCode.of(data.error_code)
    if code is ErrorCode.NONE:
        return _judge_data(topic_partition, asked_offset, data)
    if code is ErrorCode.CORRUPT_MESSAGE:
        damaged = CorruptBatchError("is damaged in the log of the partition's leader", asked_offset)
        return FetchOutcome(verdict=FetchVerdict.FATAL, error=damaged, skip_to=asked_offset + 1)
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return FetchOutcome(verdict=FetchVerdict.OUT_OF_RANGE, error=KafkaError(code, str(topic_partition)))
    return judge_refusal(topic_partition, code)


def judge_refusal(topic_partition: TopicPartition, code: ErrorCode) -> FetchOutcome:
    """Judge an error that is no verdict on the position."""
    error = KafkaError(code, str(topic_partition))
    if code in _LEADER_MOVED:
        return FetchOutcome(verdict=FetchVerdict.LEADER_MOVED, error=error)
    return FetchOutcome(verdict=FetchVerdict.RETRY if error.retriable else FetchVerdict.FATAL, error=error)


def _judge_data(topic_partition: TopicPartition, offset: int, data: PartitionData) -> FetchOutcome:
    records = data.records
    if not isinstance(records, memoryview):  # a decoded response has a view or nothing
        return FetchOutcome(verdict=FetchVerdict.NOTHING_NEW)
    sound = _sound_batches(records, offset, data.high_watermark)
    batches = None
    if sound.start < sound.end:
        batches = FetchedBatches(
            topic_partition=topic_partition,
            data=records[sound.start : sound.end],
            position=offset,
            next_offset=sound.next_offset,
            high_watermark=data.high_watermark,
            log_start_offset=data.log_start_offset,
            leader_epochs=sound.leader_epochs,
            aborted=tuple((each.producer_id, each.first_offset) for each in data.aborted_transactions or ()),
        )
    if sound.error is not None:
        return FetchOutcome(
            verdict=FetchVerdict.FATAL,
            batches=batches,
            error=sound.error,
            skip_to=sound.skip_to,
            bad_batch=sound.bad_batch,
        )
    return FetchOutcome(verdict=FetchVerdict.NOTHING_NEW if batches is None else FetchVerdict.DATA, batches=batches)


def _sound_batches(view: memoryview, offset: int, high_watermark: int) -> _SoundBatches:
    """Return the whole batches that reach `offset` or beyond, checksums verified, up to the first bad one.

    Compaction leaves gaps, but long before the high watermark. So the last batch has a wrong base offset if it follows
    a gap and ends after the high watermark; without a gap the answer's high watermark may be outdated.
    """
    start = end = 0
    next_offset = offset
    suspect: BatchHeader | None = None
    before_gap: _SoundBatches | None = None
    epoch: int | None = None
    epochs: list[tuple[int, int]] = []
    try:
        for position, header in iterate_headers(view):
            base_offset = header.base_offset
            if base_offset != next_offset:
                if start == end and header.next_offset <= offset:
                    start = end = position + header.size_bytes
                    continue
                if start < end and base_offset < next_offset:
                    return before_gap or _misplaced(header, start, end, next_offset, epochs)
            suspect = header
            verify_crc(view, position, header)
            suspect = None
            is_gap = base_offset > next_offset
            before_gap = _misplaced(header, start, end, next_offset, epochs) if is_gap else None
            if header.partition_leader_epoch != epoch:
                epoch = header.partition_leader_epoch
                epochs.append((epoch, base_offset))
            end = position + header.size_bytes
            next_offset = header.next_offset
        if next_offset == offset and len(view):
            suspect = read_header(view, end)
            verify_crc(view, end, suspect)
    except CorruptBatchError as error:
        skip_to = next_offset + 1 if suspect is None else _offset_behind(suspect, next_offset)
        named = error if error.offset is not None else CorruptBatchError(error.reason, next_offset)
        # The batch lies behind the sound ones, since those before the offset were left out.
        is_whole = suspect is not None and suspect.size_bytes <= len(view) - end
        return _SoundBatches(
            start=start,
            end=end,
            next_offset=next_offset,
            leader_epochs=tuple(epochs),
            error=named,
            skip_to=skip_to,
            bad_batch=view[end : end + suspect.size_bytes] if suspect is not None and is_whole else None,
        )
    if before_gap is not None and 0 <= high_watermark < next_offset:
        return before_gap
    return _SoundBatches(start=start, end=end, next_offset=next_offset, leader_epochs=tuple(epochs))


def _misplaced(
    header: BatchHeader, start: int, end: int, next_offset: int, epochs: Iterable[tuple[int, int]]
) -> _SoundBatches:
    """Return the batches before one with a wrong base offset, which no checksum covers: the offsets of an answer rise.

    After a gap the wrong batch is the one before the offsets fall, otherwise the one at which they fall.
    """
    error = CorruptBatchError(f"has the wrong offset {header.base_offset}", next_offset)
    skip_to = next_offset + header.last_offset_delta + 1
    return _SoundBatches(
        start=start, end=end, next_offset=next_offset, leader_epochs=tuple(epochs), error=error, skip_to=skip_to
    )


def _offset_behind(header: BatchHeader, position: int) -> int:
    """Return the offset after a batch with a wrong checksum: its end, if the header is consistent about that.

    Otherwise the next offset, where the same batch is refused again if it continues there.
    """
    is_consistent = header.last_offset_delta == header.record_count - 1
    return max(position + 1, header.next_offset) if is_consistent else position + 1
