"""Fetch (1): read batches, as they lie in the log. v4 (KIP-98) on; v7 brings sessions (KIP-227), v9 fences by epoch
(KIP-320), v13 names topics by id (KIP-516).

The first batch is always whole, so that a consumer makes progress whatever its limits (KIP-74). Readers of committed
records see none at or behind the last stable offset, and are told which transactions were aborted. In a session only
what may have news is looked at, and only what has is told (`broker/fetch_sessions.py`).

A follower names itself (`replica_id`, from v15 on in `replica_state`), reads up to the log end, and tells by the offset
from which it reads what it has. The high watermark moves by that, and is told with the answer.

Long poll: with less than `min_bytes` at hand the request waits until that much was appended, or `max_wait_ms` passed.
It is woken by the append itself, and waits on if what came is not to be seen yet.
"""

import uuid
from collections.abc import Awaitable, Sequence

import trio

from pipeline.broker.context import BrokerContext, Caller
from pipeline.broker.failures import failure_of
from pipeline.broker.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession, SessionPartition
from pipeline.broker.partition import Partition
from pipeline.broker.replication.throttle import is_throttled
from pipeline.broker.waiters import FetchWaiter, Waiter
from pipeline.errors import OffsetOutOfRangeError, PipelineError
from pipeline.log.reading import LogSlice
from pipeline.model import BrokerId, LeaderEpoch, Offset
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

FIRST_VERSION_OF_TOPIC_IDS = 13
FIRST_VERSION_OF_REPLICA_STATE = 15
FIRST_VERSION_OF_ZSTD = 10
MAX_WAIT_MS = 60_000
READ_COMMITTED = 1


class _Reading:
    """An answer in the making: how much it may still hold, and what it holds of which partition."""

    __slots__ = (
        "_broker",
        "_min_bytes",
        "_remaining_bytes",
        "_replica",
        "_version",
        "has_failure",
        "has_more",
        "is_committed",
        "is_limited",
        "read_bytes",
        "served",
        "throttled_bytes",
    )

    def __init__(self, broker: BrokerContext, request: FetchRequest, version: int) -> None:
        self._broker = broker
        self._version = version
        self._min_bytes = request.min_bytes
        self._replica = BrokerId(_replica_of(request, version))
        self.is_committed = request.isolation_level == READ_COMMITTED and self._replica < 0
        self._remaining_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
        self.read_bytes = 0
        self.throttled_bytes = 0
        """What counts for the rate of reassignments."""
        self.has_failure = False
        self.is_limited = False
        """Is there more than one answer holds?"""
        self.has_more = False
        """Was there something behind the position that was read last?"""
        self.served: list[tuple[Partition, LogSlice | None]] = []
        """Those without failure, and what was read of each."""

    @property
    def is_complete(self) -> bool:
        """Is there nothing to wait for?"""
        return self.read_bytes >= self._min_bytes or self.has_failure or self.is_limited

    def waiter(self) -> FetchWaiter:
        """To be woken when it could be complete. What becomes stable is not counted: any append may be what ends a
        transaction.
        """
        return FetchWaiter(1 if self.is_committed else self._min_bytes - self.read_bytes)

    def read(self, topic: str, topic_id: uuid.UUID, asked: FetchPartition, *, is_again: bool = False) -> PartitionData:
        """What there is for one partition. `is_again`: it was read for this request before, when it came."""
        aborted: Sequence[AbortedTransaction] | None = () if self.is_committed else None
        try:
            partition = self._find(topic, topic_id, asked)
            end_offset = self._end_of(partition)
            counts_for_rate = self._replica >= 0 and self._is_throttled(partition)
            found = None
            if not (counts_for_rate and self._is_pausing()):
                found = partition.read(
                    Offset(asked.fetch_offset),
                    min(asked.partition_max_bytes, self._remaining_bytes),
                    must_progress=self.read_bytes == 0,
                    up_to=end_offset,
                )
            if self.is_committed and found is not None:
                aborted = _aborted(partition, Offset(asked.fetch_offset), found.upper_bound())
            if self._replica >= 0 and not is_again:
                self._note_follower(partition, asked)
        except PipelineError as error:
            self.has_failure = True
            return PartitionData(
                partition_index=asked.partition,
                error_code=failure_of(error).code,
                high_watermark=-1,
                log_start_offset=error.log_start_offset if isinstance(error, OffsetOutOfRangeError) else -1,
                aborted_transactions=aborted,
                records=b"",
            )
        self.has_more = asked.fetch_offset < end_offset or (
            self._replica >= 0 and not partition.knows(self._replica, Offset(asked.fetch_offset))
        )
        if found is not None:
            self.read_bytes += found.region.size
            self._remaining_bytes -= found.region.size
            self.throttled_bytes += found.region.size if counts_for_rate else 0
            self.is_limited = self.is_limited or found.base_offset + found.record_count < end_offset
        elif self.read_bytes and asked.fetch_offset < end_offset:
            self.is_limited = True
        self.served.append((partition, found))
        return PartitionData(
            partition_index=asked.partition,
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=aborted,
            records=b"" if found is None else found.region,
        )

    def _is_throttled(self, partition: Partition) -> bool:
        """Whether this follower is one that a reassignment brings, and this leader is to be spared (KIP-73)."""
        replicas, own = partition.settings.leader_throttled_replicas, self._broker.config.broker_id
        index = partition.topic_partition.partition
        return bool(replicas) and self._replica not in partition.isr and is_throttled(replicas, index, own)

    def _is_pausing(self) -> bool:
        return self._broker.leader_throttle.pause_s(trio.current_time()) > 0

    def _end_of(self, partition: Partition) -> Offset:
        """The end of what may be read."""
        if self._replica >= 0:
            return partition.log.log_end_offset
        return partition.last_stable_offset if self.is_committed else partition.high_watermark

    def _note_follower(self, partition: Partition, asked: FetchPartition) -> None:
        partition.follower_fetched(
            self._replica,
            Offset(asked.fetch_offset),
            Offset(asked.log_start_offset),
            self._broker.clock(),
            has_epoch=asked.current_leader_epoch >= 0,
        )

    def watch(self, partition: Partition, waiter: Waiter) -> None:
        """Have it told of what this request waits for."""
        if self._replica >= 0:
            partition.follower_waiters[waiter] = None
        else:
            partition.waiters[waiter] = None

    def _find(self, topic: str, topic_id: uuid.UUID, asked: FetchPartition) -> Partition:
        epoch = LeaderEpoch(asked.current_leader_epoch)
        if self._version >= FIRST_VERSION_OF_TOPIC_IDS:
            return self._broker.find_partition_by_id(topic_id, asked.partition, epoch)
        partition = self._broker.find_partition(topic, asked.partition, epoch)
        if self._version < FIRST_VERSION_OF_ZSTD and partition.settings.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return partition

    def count(self, told: int, failed: int) -> None:
        """The answer goes out."""
        counts = self._broker.counts
        counts.fetch_partitions += told
        counts.failed_fetch_partitions += failed
        if self.throttled_bytes:
            self._broker.leader_throttle.count(self.throttled_bytes, trio.current_time())
        for partition, found in self.served:
            if found is not None and self._replica >= 0:
                counts.replication_bytes_out += found.region.size
            elif found is not None:
                partition.bytes_out += found.region.size
                partition.messages_out += found.record_count


def _replica_of(request: FetchRequest, version: int) -> int:
    """The follower that asks; below 0 for a consumer."""
    return request.replica_id if version < FIRST_VERSION_OF_REPLICA_STATE else request.replica_state.replica_id


def _aborted(partition: Partition, offset: Offset, up_to: Offset) -> Sequence[AbortedTransaction]:
    return [
        AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
        for aborted in partition.log.aborted_transactions(offset, up_to)
    ]


def handle(
    broker: BrokerContext, request: FetchRequest, version: int, _caller: Caller
) -> FetchResponse | Awaitable[FetchResponse]:
    """Answers at once if there is enough, or something went wrong."""
    if request.session_id == NO_SESSION and request.session_epoch == FINAL_EPOCH:
        return _fetch(broker, request, version)
    try:
        session = broker.fetch_sessions.begin(
            request.session_id,
            request.session_epoch,
            request.topics,
            request.forgotten_topics_data,
            uses_topic_ids=version >= FIRST_VERSION_OF_TOPIC_IDS,
            is_follower=_replica_of(request, version) >= 0,
            now_ms=broker.clock(),
        )
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    if session is None:
        return _fetch(broker, request, version)
    return _fetch_in_session(broker, request, version, session)


# Without a session


def _fetch(broker: BrokerContext, request: FetchRequest, version: int) -> FetchResponse | Awaitable[FetchResponse]:
    reading = _Reading(broker, request, version)
    topics = _read(reading, request, is_again=False)
    if reading.is_complete or request.max_wait_ms <= 0 or not reading.served:
        return _answer(reading, topics)
    return _wait_and_answer(broker, request, version, reading)


async def _wait_and_answer(
    broker: BrokerContext, request: FetchRequest, version: int, reading: _Reading
) -> FetchResponse:
    deadline = _deadline(request)
    while True:
        waiter = reading.waiter()
        watched = [partition for partition, _ in reading.served]
        for partition in watched:
            reading.watch(partition, waiter)
        try:
            may_wait_on = await _wait(waiter, deadline)
        finally:
            for partition in watched:
                partition.stop_waiting(waiter)
        reading = _Reading(broker, request, version)
        topics = _read(reading, request, is_again=True)
        if reading.is_complete or not may_wait_on:
            return _answer(reading, topics)


def _deadline(request: FetchRequest) -> float:
    return trio.current_time() + min(request.max_wait_ms, MAX_WAIT_MS) / 1000


async def _wait(waiter: FetchWaiter, deadline: float) -> bool:
    """Wait until it is woken or the time is over; whether it may wait once more."""
    with trio.move_on_at(deadline):
        await waiter.woken.wait()
        return not waiter.is_over
    return False


def _read(reading: _Reading, request: FetchRequest, *, is_again: bool) -> list[FetchableTopicResponse]:
    return [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                reading.read(topic.topic, topic.topic_id, asked, is_again=is_again) for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]


def _answer(reading: _Reading, topics: list[FetchableTopicResponse]) -> FetchResponse:
    told = sum(len(topic.partitions) for topic in topics)
    reading.count(told, told - len(reading.served))
    return FetchResponse(responses=topics)


# In a session

_Found = list[tuple[SessionPartition, PartitionData, bool]]
"""Of each partition what is to be told, and whether there is something behind the client's position."""


def _fetch_in_session(
    broker: BrokerContext, request: FetchRequest, version: int, session: FetchSession
) -> FetchResponse | Awaitable[FetchResponse]:
    reading = _Reading(broker, request, version)
    found = _read_due(reading, session, is_again=False)
    if reading.is_complete or request.max_wait_ms <= 0:
        return _answer_in_session(reading, session, request, found)
    return _wait_and_answer_in_session(broker, request, version, session, reading)


async def _wait_and_answer_in_session(
    broker: BrokerContext, request: FetchRequest, version: int, session: FetchSession, reading: _Reading
) -> FetchResponse:
    epoch, deadline = session.epoch, _deadline(request)
    while True:
        waiter = session.waiting = reading.waiter()
        try:
            may_wait_on = await _wait(waiter, deadline)
        finally:
            if session.waiting is waiter:
                session.waiting = None
        if session.epoch != epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        reading = _Reading(broker, request, version)
        found = _read_due(reading, session, is_again=True)
        if reading.is_complete or not may_wait_on:
            return _answer_in_session(reading, session, request, found)


def _read_due(reading: _Reading, session: FetchSession, *, is_again: bool) -> _Found:
    found = []
    for due in tuple(session.due):
        data = reading.read(due.topic, due.topic_id, due.asked, is_again=is_again)
        if data.error_code != ErrorCode.NONE:
            due.watch(None)
        else:
            partition, _ = reading.served[-1]
            due.watch(partition)
            reading.watch(partition, due)
        found.append((due, data, reading.has_more))
    return found


def _answer_in_session(reading: _Reading, session: FetchSession, request: FetchRequest, found: _Found) -> FetchResponse:
    topics: dict[tuple[str, uuid.UUID], list[PartitionData]] = {}
    told = failed = 0
    for due, data, has_more in found:
        is_failure = data.error_code != ErrorCode.NONE
        is_news = due.tell(
            high_watermark=data.high_watermark,
            log_start_offset=data.log_start_offset,
            is_failure=is_failure,
            has_more=has_more,
            size=0 if data.records is None else len(data.records),
        )
        if is_news or request.session_epoch == INITIAL_EPOCH:
            topics.setdefault((due.topic, due.topic_id), []).append(data)
            told += 1
            failed += is_failure
    reading.count(told, failed)
    return FetchResponse(
        session_id=session.id,
        responses=[
            FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=partitions)
            for (topic, topic_id), partitions in topics.items()
        ],
    )
