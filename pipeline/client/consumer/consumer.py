"""The fetching consumer: whole batches of assigned partitions, fetched ahead in the background, one task per broker.

Low level: the caller assigns offsets and keeps them. No record is opened unless asked for through `records`.

Invariants: for each partition, what `poll_batches` hands out follows on what it handed out before, through restarts of
brokers and moves of leaders; for each broker at most `max_bytes` wait beside one answer on its way. A batch that cannot
be opened stops its own partition alone, and no position moves past records that were not handed out.
"""

import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

import structlog
import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.background import background_tasks
from pipeline.client.cluster.backoff import backoff_ms
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer.fetch_plan import (
    FetchedBatches,
    FetchOutcome,
    FetchState,
    FetchVerdict,
    begin_at,
    fetch_answers,
    fetch_request,
    judge,
    rotate,
)
from pipeline.client.consumer.opening import RecordIterator, open_payload
from pipeline.errors import CorruptBatchError, OffsetOutOfRangeError, OpenedBatchTooLargeError, PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.signals import Signal
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchResponse
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import BatchHeader, iterate_headers
from pipeline.records.builder import Header
from pipeline.records.memory import Charge
from pipeline.records.opening import open_uncharged
from pipeline.records.record import records_of_payload

logger = structlog.get_logger()

FETCH_LANE = "fetch"
POLL_TIMEOUT_S = 1.0

_RECORD_FIELDS = attrgetter("offset", "timestamp_ms", "key", "value", "headers")


Taken = list[tuple[FetchState, FetchedBatches]]
"""What one poll takes out of the buffer, in order."""
_ClosedBatch = tuple[FetchState, FetchedBatches, int, BatchHeader]
"""A batch not yet opened, with where it starts among those that were fetched."""


class PartitionOffsetOutOfRangeError(OffsetOutOfRangeError):
    """A partition's position is outside of its log. It stays assigned but rests until a seek."""

    def __init__(self, topic_partition: TopicPartition, requested: int, log_start_offset: int, log_end_offset: int):
        super().__init__(requested, log_start_offset, log_end_offset)
        self.topic_partition = topic_partition

    def __str__(self) -> str:
        """Names the partition too."""
        return f"{self.topic_partition}: {super().__str__()}"


class PartitionFetchError(PipelineError):
    """A partition cannot be fetched, and trying again would not help. It stays assigned but rests until a seek."""

    def __init__(self, topic_partition: TopicPartition, cause: Exception) -> None:
        super().__init__(f"{topic_partition}: {cause}")
        self.topic_partition = topic_partition
        self.cause = cause


class PartitionBatchError(PartitionFetchError):
    """A batch cannot be opened. Its partition stays assigned but rests until a seek, or `Consumer.skip_batch`.

    `offset` is the first one that was not handed out, `next_offset` the one behind the batch.
    """

    def __init__(
        self, topic_partition: TopicPartition, cause: CorruptBatchError, offset: int, next_offset: int
    ) -> None:
        super().__init__(topic_partition, cause)
        self.offset = offset
        self.next_offset = next_offset

    def __str__(self) -> str:
        """Return the message, with the way to go on."""
        return f"{super().__str__()}. To leave it out, go on at offset {self.next_offset} (`skip_batch`)"


class ConsumerRecord(NamedTuple):
    """One record and where it comes from. A tuple, because these are made by the million."""

    topic_partition: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class Consumer:
    """Fetches assigned partitions. Made by `open_consumer`; used by one task."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._states: dict[TopicPartition, FetchState] = {}
        self._ready: deque[tuple[BrokerId, FetchState, FetchedBatches]] = deque()
        self._buffered_bytes: Counter[BrokerId] = Counter()
        self._errors: deque[tuple[FetchState, PipelineError]] = deque()
        self._fetching: set[BrokerId] = set()
        self._changed = Signal()
        self._arrived = Signal()
        self._changes = 0
        self._is_over = False
        self._closed: Iterator[_ClosedBatch] = iter(())
        self._next_closed: _ClosedBatch | None = None
        self._records = RecordIterator(self._open_next)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What is being fetched."""
        return frozenset(self._states)

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Fetch these partitions from these offsets on, and nothing else. Raises as `add`, and changes nothing then."""
        states = {topic_partition: begin_at(topic_partition, offset) for topic_partition, offset in offsets.items()}
        self._cluster.track(topic_partition.topic for topic_partition in states)
        self._states = states
        self._forget_stale()

    def add(self, topic_partition: TopicPartition, offset: int, topic_id: UUID | None = None) -> None:
        """Fetch one more partition, from this offset on; one that is assigned starts anew there.

        With `topic_id` the offset belongs to that topic alone, not to one created anew under the same name. Raises
        ValueError, TypeError, or KafkaError for what can be no offset, partition, or name of a topic.
        """
        state = begin_at(topic_partition, offset, topic_id)
        self._cluster.track((topic_partition.topic,))
        self._states[topic_partition] = state
        self._forget_stale()

    def remove(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition. What was fetched ahead is dropped."""
        self._states.pop(topic_partition, None)
        self._forget_stale()

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on with an assigned partition at another offset."""
        if topic_partition not in self._states:
            raise KeyError(f"{topic_partition} is not assigned")
        self.add(topic_partition, offset)

    def skip_batch(self, topic_partition: TopicPartition) -> int:
        """Go on behind the bad batch that PartitionBatchError told of. Returns the offset it goes on at.

        Raises KeyError for a partition that is not assigned, ValueError where no bad batch was told of.
        """
        state = self._states[topic_partition]
        if state.skip_to is None:
            raise ValueError(f"{topic_partition} does not rest at a bad batch")
        self.add(topic_partition, state.skip_to, state.topic_id)
        return state.skip_to

    def position(self, topic_partition: TopicPartition) -> int:
        """The next offset that will be handed out. Raises KeyError for a partition that is not assigned."""
        return self._states[topic_partition].position

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """The end of the partition as of the last answer; what lies before it and was not handed out is the lag."""
        return self._states[topic_partition].high_watermark

    async def poll_batches(self, timeout_s: float = POLL_TIMEOUT_S) -> list[FetchedBatches]:
        """All that was fetched, as soon as there is something; an empty list after `timeout_s`.

        Raises PartitionOffsetOutOfRangeError where the reset policy is NONE, and PartitionFetchError; each once, after
        what precedes it in its partition was handed out. What else was fetched stays for the next call.
        """
        taken = await self._take(timeout_s)
        for state, batches in taken:
            state.position = batches.next_offset
        return [batches for _, batches in taken]

    def records(self) -> AsyncIterator[ConsumerRecord]:
        """Every record as an object, for ever. `position` moves with each one. Raises as `poll_batches` does.

        A batch that cannot be opened raises PartitionBatchError, after the records of other partitions that were
        fetched with it; iterating again goes on with these partitions. One iterator goes on where another was left.
        Do not poll batches of the same consumer as well. MemoryExhaustedError: other consumers of this process hold
        open batches; iterating again tries again.
        """
        return self._records

    async def _open_next(self) -> Iterator[ConsumerRecord]:
        """The records of the next batches. Where opening one fails or is cancelled, that batch stays the next one.

        Raises MemoryExhaustedError, and as `poll_batches` does.
        """
        if self._next_closed is None:
            self._closed = _closed_batches(await self._take(POLL_TIMEOUT_S))
            return self._open_on(iter(()))
        records = await self._open_charged(*self._next_closed)
        self._next_closed = None
        return self._open_on(records)

    async def _open_charged(
        self, state: FetchState, batches: FetchedBatches, start: int, header: BatchHeader
    ) -> Iterator[ConsumerRecord]:
        if not self._is_current(state):
            return iter(())
        try:
            charge, payload = await open_payload(batches.data, start, header, self._config.max_opened_bytes)
        except CorruptBatchError as error:
            self._reject_batch(state, header, error)
            return iter(())
        return self._made_records(state, batches, header, payload, charge)

    def _open_on(self, records: Iterator[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Yield these records, then those of the batches behind them, up to one that has to be charged.

        Most batches are small: they cost neither a coroutine nor a charge each.
        """
        yield from records
        for closed in self._closed:
            state, batches, start, header = closed
            if not self._is_current(state) or state.rejected:
                continue
            if header.is_control:
                state.position = header.next_offset
                continue
            try:
                payload = open_uncharged(batches.data, start, header, self._config.max_opened_bytes)
            except CorruptBatchError as error:
                self._reject_batch(state, header, error)
                continue
            if payload is None:
                self._next_closed = closed
                return
            yield from self._made_records(state, batches, header, payload)

    def _made_records(
        self,
        state: FetchState,
        batches: FetchedBatches,
        header: BatchHeader,
        payload: bytes,
        charge: Charge | None = None,
    ) -> Iterator[ConsumerRecord]:
        position, topic_partition, changes = batches.position, state.topic_partition, self._changes
        try:
            for offset, timestamp_ms, key, value, headers in map(_RECORD_FIELDS, records_of_payload(payload, header)):
                if offset < position:
                    continue
                state.position = offset + 1
                yield ConsumerRecord(topic_partition, offset, timestamp_ms, key, value, headers)
                if changes != self._changes and not self._is_current(state):
                    return
            state.position = header.next_offset
        except CorruptBatchError as error:
            self._reject_batch(state, header, error)
        finally:
            if charge is not None:
                charge.close()

    def close(self) -> None:
        """Give back the memory of a batch whose records were not all taken. Nothing is handed out any more."""
        self._is_over = True
        self._arrived.notify()
        self._records.close()

    def _reject_batch(self, state: FetchState, header: BatchHeader, error: CorruptBatchError) -> None:
        """Have the partition rest at a batch that cannot be opened, and forget what was fetched behind it."""
        state.rejected = True
        if isinstance(error, OpenedBatchTooLargeError):
            error = CorruptBatchError(f"{error.reason}; raise max_opened_bytes of ConsumerConfig", header.base_offset)
        elif error.offset is None:
            error = CorruptBatchError(error.reason, header.base_offset)
        self._park(state, PartitionBatchError(state.topic_partition, error, state.position, header.next_offset))
        self._keep_ready(lambda other: other is not state)

    async def _take(self, timeout_s: float) -> Taken:
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout_s):
            while not self._ready and not self._errors and not self._is_over:
                await self._arrived.wait()
        if self._is_over:
            raise PipelineError("the consumer is closed: its block has ended")
        if self._errors and not any(state is self._errors[0][0] for _, state, _ in self._ready):
            state, error = self._errors.popleft()
            if isinstance(error, PartitionBatchError):
                state.skip_to = error.next_offset
            raise error
        taken = [(state, batches) for _, state, batches in self._ready]
        self._ready.clear()
        self._buffered_bytes.clear()
        self._changed.notify()
        return taken

    def _forget_stale(self) -> None:
        """Drop what was fetched for, or went wrong with, partitions that were removed or sought since."""
        self._changes += 1
        self._keep_ready(self._is_current)
        self._errors = deque(entry for entry in self._errors if self._is_current(entry[0]))
        self._changed.notify()

    def _keep_ready(self, is_kept: Callable[[FetchState], bool]) -> None:
        """Drop what was fetched for other partitions than these."""
        kept = [entry for entry in self._ready if is_kept(entry[1])]
        if len(kept) != len(self._ready):
            self._ready = deque(kept)
            self._buffered_bytes.clear()
            for broker, _, batches in kept:
                self._buffered_bytes[broker] += len(batches.data)

    def _is_current(self, state: FetchState) -> bool:
        return self._states.get(state.topic_partition) is state

    async def run(self) -> None:
        """Keep one fetcher at work for each broker that leads an assigned partition, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_leaders)
            while True:
                leaderless = False
                for state in self._states.values():
                    leader = self._cluster.view.leader_of(state.topic_partition)
                    if leader is None:
                        leaderless = leaderless or not state.parked
                        self._note_leaderless(state)
                    elif leader not in self._fetching:
                        self._fetching.add(leader)
                        nursery.start_soon(self._fetch_from, leader, nursery)
                if leaderless:
                    self._cluster.refresh_soon()
                pause_s = self._cluster.config.retry_backoff_ms / 1000 if leaderless else math.inf
                with trio.move_on_after(pause_s):
                    await self._changed.wait()

    async def _watch_leaders(self) -> None:
        while True:
            await self._cluster.wait_for_new_view()
            self._changed.notify()

    def _note_leaderless(self, state: FetchState) -> None:
        """A topic that stays unknown is an error; a leader that stays away is waited for."""
        if self._cluster.view.errors.get(state.topic_partition.topic) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            state.unknown_since_ms = None
            return
        now = _now_ms()
        if state.unknown_since_ms is None:
            state.unknown_since_ms = now
        elif not state.parked and now - state.unknown_since_ms > self._cluster.config.default_api_timeout_ms:
            self._park(state, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no broker knows it any more"))

    async def _fetch_from(self, broker: BrokerId, nursery: trio.Nursery) -> None:
        """Fetch ahead from a broker as long as it leads an assigned partition."""
        turn = failures = 0
        while True:
            led = [
                state
                for state in self._states.values()
                if self._cluster.view.leader_of(state.topic_partition) == broker
            ]
            if not led:
                break
            now = _now_ms()
            active = [state for state in led if not (state.parked or state.is_asking) and self._same_topic(state)]
            due = [state for state in active if state.not_before_ms <= now]
            if not due or self._buffered_bytes[broker] >= self._config.max_bytes:
                wake_ms = min((state.not_before_ms for state in active if state.not_before_ms > now), default=math.inf)
                with trio.move_on_at(math.inf if due else wake_ms / 1000):
                    await self._changed.wait()
                continue
            turn += 1
            try:
                await self._fetch_once(broker, rotate(due, turn), nursery)
                failures = 0
            except PipelineError as error:
                failures += 1
                self._fail_request(broker, due, error, failures)
        self._fetching.discard(broker)
        self._changed.notify()

    def _same_topic(self, state: FetchState) -> bool:
        """Parks the partition if its topic was deleted and created again: its offsets mean other records now."""
        topic_id = self._cluster.view.topics[state.topic_partition.topic].id
        if state.topic_id is None or state.topic_id == ZERO_UUID:
            state.topic_id = topic_id
        elif topic_id not in (state.topic_id, ZERO_UUID):
            reason = "the topic was deleted and created again, so the offsets have lost their meaning; assign it anew"
            self._park(state, KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, reason))
            return False
        return True

    async def _fetch_once(self, broker: BrokerId, states: Sequence[FetchState], nursery: trio.Nursery) -> None:
        """One request and what its answer means. Raises PipelineError when the whole request failed."""
        asked = {state.topic_partition: (state, state.offset) for state in states}
        ids = self._cluster.view.topic_ids(state.topic_partition.topic for state in states)
        timeout_s = (self._config.max_wait_ms + self._cluster.config.request_timeout_ms) / 1000
        response: FetchResponse = await self._cluster.request(
            broker, fetch_request(states, self._cluster.view, self._config), timeout_s=timeout_s, lane=FETCH_LANE
        )
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code, f"fetch from broker {broker}")
        for topic_partition, data in fetch_answers(response, ids):
            state, offset = asked.get(topic_partition, (None, 0))
            if state is None or state.parked or not self._is_current(state) or state.offset != offset:
                continue
            outcome = judge(topic_partition, offset, data)
            if outcome.verdict is FetchVerdict.OUT_OF_RANGE:
                state.is_asking = True
                nursery.start_soon(self._resolve_out_of_range, broker, state)
            else:
                state.high_watermark = data.high_watermark if outcome.error is None else state.high_watermark
                self._apply(broker, state, outcome)

    def _fail_request(
        self, broker: BrokerId, states: Sequence[FetchState], error: PipelineError, failures: int
    ) -> None:
        """Try again later, or tell the caller, if the broker will never answer such a request."""
        logger.warning("fetch_failed", broker=broker, error=str(error))
        self._cluster.refresh_soon()
        for state in filter(self._is_current, states):
            if isinstance(error, KafkaError) and not error.retriable:
                self._park(state, error)
            else:
                self._postpone(state, failures)

    def _apply(self, broker: BrokerId, state: FetchState, outcome: FetchOutcome) -> None:
        if outcome.batches is not None:
            state.offset = outcome.batches.next_offset
            self._ready.append((broker, state, outcome.batches))
            self._buffered_bytes[broker] += len(outcome.batches.data)
            self._arrived.notify()
        if outcome.error is None:
            state.failures = 0
        elif isinstance(outcome.error, CorruptBatchError) and outcome.skip_to is not None:
            error = PartitionBatchError(state.topic_partition, outcome.error, state.offset, outcome.skip_to)
            self._park(state, error)
        elif outcome.verdict is FetchVerdict.FATAL:
            self._park(state, outcome.error)
        else:
            logger.info("fetch_retried", partition=str(state.topic_partition), error=str(outcome.error))
            if outcome.verdict is FetchVerdict.LEADER_MOVED:
                self._cluster.refresh_soon()
            state.failures += 1
            self._postpone(state, state.failures)

    async def _resolve_out_of_range(self, broker: BrokerId, state: FetchState) -> None:
        """Have the position reset, while other partitions of the broker are fetched."""
        try:
            await self._reset(state)
        except PipelineError as error:
            state.failures += 1
            self._fail_request(broker, [state], error, state.failures)
        state.is_asking = False
        self._changed.notify()

    async def _reset(self, state: FetchState) -> None:
        """Reset the position as the policy says, or park the partition with an error that tells the log's bounds."""
        topic_partition = state.topic_partition
        timeout_s = self._cluster.config.request_timeout_ms / 1000
        earliest = await list_offsets(self._cluster, {topic_partition: EARLIEST}, timeout_s=timeout_s)
        latest = await list_offsets(self._cluster, {topic_partition: LATEST}, timeout_s=timeout_s)
        start, end = earliest[topic_partition].offset, latest[topic_partition].offset
        if not self._is_current(state):
            return
        if start <= state.offset <= end:
            state.failures += 1
            self._postpone(state, state.failures)
        elif self._config.auto_offset_reset is OffsetReset.NONE:
            self._park(state, PartitionOffsetOutOfRangeError(topic_partition, state.offset, start, end))
        else:
            target = start if self._config.auto_offset_reset is OffsetReset.EARLIEST else end
            logger.warning("offset_reset", partition=str(topic_partition), position=state.offset, offset=target)
            if state.position == state.offset:  # else what was fetched before is still being handed out
                state.position = target
            state.offset = target

    def _postpone(self, state: FetchState, failures: int) -> None:
        settings = self._cluster.config
        state.not_before_ms = _now_ms() + backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)

    def _park(self, state: FetchState, error: Exception) -> None:
        """Stop fetching the partition and have the next poll raise why."""
        state.parked = True
        if not isinstance(error, (PartitionOffsetOutOfRangeError, PartitionFetchError)):
            error = PartitionFetchError(state.topic_partition, error)
        self._errors.append((state, error))
        self._arrived.notify()


def _closed_batches(taken: Taken) -> Iterator[_ClosedBatch]:
    for state, batches in taken:
        # Checksums were verified when the batches came, so a header tells truly where its batch ends.
        for start, header in iterate_headers(batches.data):
            yield state, batches, start, header


def _now_ms() -> int:
    return round(trio.current_time() * 1000)


@asynccontextmanager
async def open_consumer(cluster: Cluster, config: ConsumerConfig) -> AsyncIterator[Consumer]:
    """A consumer without assignment, until the block ends."""
    consumer = Consumer(cluster, config)
    async with background_tasks() as nursery:
        nursery.start_soon(consumer.run)
        try:
            yield consumer
        finally:
            consumer.close()
