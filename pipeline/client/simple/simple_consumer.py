"""The low-level consumer: fetches at offsets that the program keeps, one answer for each call (0.7's SimpleConsumer).

Owns nothing but connections for its long polls. Invariants:
- A call depends on its arguments alone: no position, nothing fetched ahead, so any number of tasks may share one.
- What a call returns begins with the batch of the offset that was asked for. An error of one partition takes nothing
  from the others of a `multi_fetch`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from operator import index

import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.config import ConsumerConfig, IsolationLevel, OffsetReset
from pipeline.client.cluster.leaders import by_leader
from pipeline.client.cluster.metadata import ClusterMetadata
from pipeline.client.consumer.errors import PartitionBatchError, PartitionFetchError, PartitionOffsetOutOfRangeError
from pipeline.client.consumer.fetch_plan import (
    FetchBounds,
    FetchedBatches,
    FetchOutcome,
    FetchState,
    FetchVerdict,
    begin_at,
    fetch_answers,
    fetch_request,
    judge_answer,
)
from pipeline.client.consumer.opening import each_record
from pipeline.client.consumer.record import ConsumerRecord
from pipeline.client.simple.fetch_sizes import MAX_ANSWER_BYTES, MAX_FETCH_BYTES, grown_bytes
from pipeline.client.simple.offsets_before import divided_offsets
from pipeline.errors import ConfigurationError, CorruptBatchError, DeadlineExceededError, NetworkError, PipelineError
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchResponse, PartitionData
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.record import Record

_LANE = "simple fetch"


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiFetchResponse:
    """The answers to a `multi_fetch`: each partition is in `batches` or in `errors`.

    `batches` are empty (`data` without bytes, `next_offset` the offset that was asked for) at the end of a log.
    """

    batches: Mapping[TopicPartition, FetchedBatches]
    errors: Mapping[TopicPartition, PipelineError]


@dataclass(slots=True)
class _Call:
    """A `multi_fetch` under way."""

    pending: dict[TopicPartition, FetchState]
    deadline: float
    batches: dict[TopicPartition, FetchedBatches] = field(default_factory=dict)
    errors: dict[TopicPartition, PipelineError] = field(default_factory=dict)
    obstacles: dict[TopicPartition, PipelineError] = field(default_factory=dict)
    """Why the partition has no answer yet."""
    is_asked_again: bool = False
    """True if a partition is asked again at once: for a larger size, or for what others left no room for."""

    def obstruct(self, topic_partition: TopicPartition, error: PipelineError) -> None:
        """Note why a partition has no answer yet, which is its answer if a retry would not help."""
        self.obstacles[topic_partition] = error
        if isinstance(error, KafkaError) and not error.retriable:
            self.end(topic_partition, error)

    def end(self, topic_partition: TopicPartition, answer: FetchedBatches | PipelineError) -> None:
        """Note the answer of a partition."""
        del self.pending[topic_partition]
        if isinstance(answer, FetchedBatches):
            self.batches[topic_partition] = answer
        else:
            self.errors[topic_partition] = answer


class SimpleConsumer:
    """Made by `open_simple_consumer`; all tasks of one trio run may share it."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._idle_lanes: list[str] = []
        self._is_closed = False

    async def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        *,
        max_bytes: int | None = None,
        timeout_s: float | None = None,
    ) -> FetchedBatches:
        """Return the batches from an offset on, of about `max_bytes`. Continue at their `next_offset`.

        At least one whole batch is returned, however large; none (`data` is empty) if there are no records yet after
        `max_wait_ms`. The first batch may begin before the offset. Raises PartitionOffsetOutOfRangeError with the
        valid range, PartitionBatchError for a damaged batch, PartitionFetchError, and NetworkError, KafkaError or
        DeadlineExceededError if no leader answers within `timeout_s` (`default_api_timeout_ms`).
        """
        response = await self.multi_fetch({topic_partition: offset}, max_bytes=max_bytes, timeout_s=timeout_s)
        for error in response.errors.values():
            raise error
        return response.batches[topic_partition]

    async def multi_fetch(
        self, offsets: Mapping[TopicPartition, int], *, max_bytes: int | None = None, timeout_s: float | None = None
    ) -> MultiFetchResponse:
        """Fetch several partitions as `fetch` does, of each about `max_bytes`, with one request to each leader.

        What `fetch` raises for a partition is in `errors`. Raises ValueError or TypeError for what is no offset, no
        partition or no size.
        """
        size = self._config.max_partition_bytes if max_bytes is None else max_bytes
        if size < 1:
            raise ValueError(f"max_bytes is {size}, must be at least 1")
        if self._is_closed:
            raise PipelineError("the consumer is closed: its block has ended")
        if timeout_s is None:
            timeout_s = self._cluster.config.default_api_timeout_ms / 1000
        pending = {topic_partition: begin_at(topic_partition, offset) for topic_partition, offset in offsets.items()}
        for state in pending.values():
            state.max_bytes = min(size, MAX_FETCH_BYTES)
        call = _Call(pending, trio.current_time() + timeout_s)
        self._cluster.track(topic_partition.topic for topic_partition in pending)
        failures = 0
        while call.pending:
            call.is_asked_again = False
            await self._fetch_pending(call)
            if not call.pending or call.is_asked_again:
                continue
            failures += 1
            self._cluster.refresh_soon()
            if not await self._cluster.back_off(failures, call.deadline):
                for topic_partition in list(call.pending):
                    call.end(topic_partition, call.obstacles.get(topic_partition) or _late(topic_partition, timeout_s))
        return MultiFetchResponse(batches=call.batches, errors=call.errors)

    async def offsets_before(
        self, topic_partition: TopicPartition, timestamp_ms: int, max_offsets: int, *, timeout_s: float | None = None
    ) -> list[int]:
        """Return up to `max_offsets` offsets to read from, descending (0.7's getOffsetsBefore).

        All records before the first of them are older than `timestamp_ms`. It is followed by offsets that divide the
        records before it into parts of about the same number, down to the log start offset. LATEST begins with the
        offset after the last record; EARLIEST returns the log start offset alone. Raises as `list_offsets`, and
        ValueError or TypeError for what is no time.
        """
        if max_offsets < 1:
            raise ValueError(f"max_offsets is {max_offsets}, must be at least 1")
        if index(timestamp_ms) < 0 and timestamp_ms not in (EARLIEST, LATEST):
            raise ValueError(f"{timestamp_ms} is neither a time in ms since 1970, nor EARLIEST or LATEST")
        if timeout_s is None:
            timeout_s = self._cluster.config.default_api_timeout_ms / 1000
        deadline = trio.current_time() + timeout_s

        async def offset_of(position: int) -> int:
            left_s = max(0.0, deadline - trio.current_time())
            level = self._config.isolation_level
            asked = {topic_partition: position}
            found = await list_offsets(self._cluster, asked, timeout_s=left_s, isolation_level=level)
            return found[topic_partition].offset

        start = await offset_of(EARLIEST)
        if timestamp_ms == EARLIEST:
            return [start]
        newest = await offset_of(LATEST)  # before the search: a record that comes meanwhile is none of the older ones
        if timestamp_ms != LATEST:
            found = await offset_of(timestamp_ms)
            newest = newest if found < 0 else found
        return divided_offsets(start, newest, max_offsets)

    async def records(self, batches: FetchedBatches) -> list[ConsumerRecord]:
        """Return the records of fetched batches from the position on. Raises CorruptBatchError, MemoryExhaustedError.

        Control records are left out, and with READ_COMMITTED records of aborted transactions.
        """
        found: list[ConsumerRecord] = []

        def take(record: Record) -> None:
            found.append(
                ConsumerRecord(
                    batches.topic_partition, record.offset, record.timestamp_ms, record.key, record.value,
                    record.headers,
                )
            )  # fmt: skip

        await each_record(batches, take)
        return found

    def close(self) -> None:
        """Close the connections; a fetch under way closes its own. Closing twice does nothing."""
        self._is_closed = True
        while self._idle_lanes:
            self._cluster.close_lane(self._idle_lanes.pop())

    async def _fetch_pending(self, call: _Call) -> None:
        """Ask each leader once for its pending partitions."""
        view = self._cluster.view
        if not all(view.knows(topic_partition.topic) for topic_partition in call.pending):
            try:
                view = await self._cluster.refresh(timeout_s=max(0.0, call.deadline - trio.current_time()))
            except UNREACHABLE as error:
                for topic_partition in call.pending:
                    call.obstacles[topic_partition] = error
                return
        async with trio.open_nursery() as nursery:
            for leader, states in by_leader(view, call.pending).items():
                if leader is None:
                    for topic_partition in states:
                        code = view.errors.get(topic_partition.topic, ErrorCode.LEADER_NOT_AVAILABLE)
                        call.obstruct(topic_partition, KafkaError(code, str(topic_partition)))
                else:
                    nursery.start_soon(self._fetch_from, leader, view, list(states.values()), call)

    async def _fetch_from(self, leader: BrokerId, view: ClusterMetadata, states: list[FetchState], call: _Call) -> None:
        """Send one request, and take its answers."""
        try:
            answers = await self._request(leader, view, states, call.deadline)
        except PipelineError as error:
            for state in states:
                call.obstruct(state.topic_partition, error)
            return
        is_crowded = any(data.records for data in answers.values())
        for state in states:
            data = answers.get(state.topic_partition)
            if data is None:
                reason = f"{state.topic_partition}: broker {leader} left the partition out"
                call.obstruct(state.topic_partition, NetworkError(reason))
            else:
                await self._take(state, data, call, is_crowded=is_crowded)

    async def _request(
        self, leader: BrokerId, view: ClusterMetadata, states: list[FetchState], deadline: float
    ) -> Mapping[TopicPartition, PartitionData]:
        for state in states:
            state.leader_epoch = view.leader_epoch_of(state.topic_partition)
        left_ms = max(1, round((deadline - trio.current_time()) * 1000))
        largest = max(state.max_bytes for state in states)
        bounds = FetchBounds(
            max_bytes=min(sum(state.max_bytes for state in states), max(largest, MAX_ANSWER_BYTES)),
            max_partition_bytes=largest,
            max_wait_ms=min(self._config.max_wait_ms, left_ms // 2),
        )
        request = fetch_request(states, view, self._config, bounds)
        timeout_ms = min(left_ms, bounds.max_wait_ms + self._cluster.config.request_timeout_ms)
        lane = self._idle_lanes.pop() if self._idle_lanes else self._cluster.new_lane(_LANE)
        try:
            response: FetchResponse = await self._cluster.request(
                leader, request, timeout_s=timeout_ms / 1000, lane=lane
            )
        except BaseException:
            self._cluster.close_lane(lane)  # the next request would wait behind this one
            raise
        if self._is_closed:
            self._cluster.close_lane(lane)
        else:
            self._idle_lanes.append(lane)
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code, f"fetch from broker {leader}")
        topic_ids = view.topic_ids({state.topic_partition.topic for state in states})
        return dict(fetch_answers(response, topic_ids))

    async def _take(self, state: FetchState, data: PartitionData, call: _Call, *, is_crowded: bool) -> None:
        topic_partition = state.topic_partition
        if data.error_code == ErrorCode.NONE:
            grown = grown_bytes(state.offset, state.max_bytes, data, self._config.isolation_level)
            if grown is not None:
                if data.records or not is_crowded:  # otherwise the records of others have filled the answer
                    state.max_bytes = grown
                call.is_asked_again = True
                return
        outcome = judge_answer(topic_partition, state.offset, data)
        match outcome.verdict:
            case FetchVerdict.OUT_OF_RANGE:
                await self._take_out_of_range(state, call)
            case FetchVerdict.RETRY | FetchVerdict.LEADER_MOVED:
                call.obstruct(topic_partition, _as_error(state, outcome))
            case FetchVerdict.FATAL if outcome.batches is None:
                call.end(topic_partition, _as_error(state, outcome))
            case _:
                call.end(topic_partition, outcome.batches or _no_batches(state, data))

    async def _take_out_of_range(self, state: FetchState, call: _Call) -> None:
        """Ask for the valid range. A leader that is not up to date yet is asked again."""
        topic_partition, bounds = state.topic_partition, []
        for position in (EARLIEST, LATEST):
            left_s = max(0.0, call.deadline - trio.current_time())
            try:
                found = await list_offsets(
                    self._cluster,
                    {topic_partition: position},
                    timeout_s=left_s,
                    isolation_level=IsolationLevel.READ_UNCOMMITTED,
                )
            except PipelineError as error:
                call.obstruct(topic_partition, error)
                return
            bounds.append(found[topic_partition].offset)
        earliest, latest = bounds
        out_of_range = PartitionOffsetOutOfRangeError(topic_partition, state.offset, earliest, latest)
        if earliest <= state.offset <= latest:
            call.obstacles[topic_partition] = out_of_range
        else:
            call.end(topic_partition, out_of_range)


def _as_error(state: FetchState, outcome: FetchOutcome) -> PipelineError:
    error = outcome.error
    if isinstance(error, CorruptBatchError) and outcome.skip_to is not None:
        return PartitionBatchError(state.topic_partition, error, state.offset, outcome.skip_to, outcome.bad_batch)
    if outcome.verdict is FetchVerdict.FATAL and error is not None:
        return PartitionFetchError(state.topic_partition, error)
    return error if isinstance(error, PipelineError) else NetworkError(f"{state.topic_partition}: {error}")


def _no_batches(state: FetchState, data: PartitionData) -> FetchedBatches:
    return FetchedBatches(
        topic_partition=state.topic_partition,
        data=memoryview(b""),
        position=state.offset,
        next_offset=state.offset,
        high_watermark=data.high_watermark,
        log_start_offset=data.log_start_offset,
    )


def _late(topic_partition: TopicPartition, timeout_s: float) -> PipelineError:
    return DeadlineExceededError(f"{topic_partition}: no leader answered within {timeout_s:g} s")


@asynccontextmanager
async def open_simple_consumer(cluster: Cluster, config: ConsumerConfig) -> AsyncIterator[SimpleConsumer]:
    """Open a low-level consumer until the block ends.

    Of `config` it uses `max_wait_ms`, `min_bytes`, `max_partition_bytes` (the size of a fetch that names none) and
    `isolation_level`. Raises ConfigurationError for a reset policy: an offset out of range is always an error here.
    """
    if config.auto_offset_reset is not OffsetReset.NONE:
        raise ConfigurationError("auto.offset.reset", "must be none: the program keeps the offsets")
    consumer = SimpleConsumer(cluster, config)
    try:
        yield consumer
    finally:
        consumer.close()
