"""Background fetches of a consumer: one task per broker that leads an assigned partition, and their buffer.

Invariants: for each broker at most `max_bytes` wait beside one response on its way. A partition that fails pauses
alone, and its error is raised after all batches that were fetched before it.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence

import structlog
import trio

from pipeline.client.admin.leader_epochs import EpochEnd, ask_ends_once
from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.backoff import backoff_ms
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer.byte_rate import FetchLimit
from pipeline.client.consumer.errors import (
    PartitionBatchError,
    PartitionFetchError,
    PartitionOffsetOutOfRangeError,
    PartitionTruncatedError,
)
from pipeline.client.consumer.fetch_plan import (
    MAX_INT32,
    FetchedBatches,
    FetchOutcome,
    FetchState,
    FetchVerdict,
    enter_epoch,
    fetch_answers,
    fetch_request,
    judge_answer,
    judge_refusal,
    rotate,
)
from pipeline.errors import CorruptBatchError, OpenedBatchTooLargeError, PipelineError, ProtocolError
from pipeline.model import NO_LEADER_EPOCH, BrokerId, TopicPartition
from pipeline.net.signals import Signal
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchResponse
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import BatchHeader

logger = structlog.get_logger()

Taken = list[tuple[FetchState, FetchedBatches]]
"""Batches taken out of the buffer by one poll, in order."""
OnAnswer = Callable[[TopicPartition, int, float], None]
"""Notified of the partition, its high watermark and the time of the request (of trio's clock) at each answer without
error, also if there are no new records. An answer may have been on its way for long: its time says nothing."""


LimitOf = Callable[[TopicPartition], FetchLimit | None]
"""Returns the limit that a partition shares with others, None if it has none. Asked at each request."""


def unlimited(_topic_partition: TopicPartition) -> None:
    """Return no limit."""


class Fetcher:
    """Fetches the partitions of `states` ahead, and holds the batches and errors until `take`."""

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, on_answer: OnAnswer | None = None, limit_of: LimitOf = unlimited
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._on_answer = on_answer
        self._limit_of = limit_of
        self.states: dict[TopicPartition, FetchState] = {}
        self.changes = 0
        """Number of changes of `states`: a cheap check that a state is still current."""
        self._ready: deque[tuple[BrokerId, FetchState, FetchedBatches]] = deque()
        self._buffered_bytes: Counter[BrokerId] = Counter()
        self._errors: deque[tuple[FetchState, PipelineError]] = deque()
        self._fetching: set[BrokerId] = set()
        self._changed = Signal()
        self._arrived = Signal()
        self._is_closed = False
        self._lane = cluster.new_lane("fetch")
        """A broker holds long polls: those of another consumer, perhaps closed already, must not delay ours."""

    def configure(self, config: ConsumerConfig) -> None:
        """Send all further requests with other settings."""
        self._config = config
        self._changed.notify()

    def assign(self, states: dict[TopicPartition, FetchState]) -> None:
        """Fetch these partitions and no others. Raises as `Cluster.track`, and changes nothing then."""
        self._cluster.track(topic_partition.topic for topic_partition in states)
        self.states = states
        self._forget_stale()

    def add(self, state: FetchState) -> None:
        """Fetch one more partition, or an assigned one from its new state on. Raises as `Cluster.track`."""
        self._cluster.track((state.topic_partition.topic,))
        self.states[state.topic_partition] = state
        self._forget_stale()

    def remove(self, topic_partition: TopicPartition) -> None:
        """Stop fetching a partition, if it is assigned."""
        self.states.pop(topic_partition, None)
        self._forget_stale()

    def is_current(self, state: FetchState) -> bool:
        """True if the partition was neither removed nor sought since."""
        return self.states.get(state.topic_partition) is state

    async def take(self, timeout_s: float) -> Taken:
        """Return all buffered batches, as soon as there are any; none after `timeout_s`.

        Raises the error of a partition once, after its batches were taken.
        """
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout_s):
            while not self._ready and not self._errors and not self._is_closed:
                await self._arrived.wait()
        if self._is_closed:
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

    def reject_batch(self, state: FetchState, header: BatchHeader, error: CorruptBatchError) -> None:
        """Pause the partition at a batch that cannot be opened, and drop the batches after it."""
        state.rejected = True
        if isinstance(error, OpenedBatchTooLargeError):
            error = CorruptBatchError(f"{error.reason}; raise max_opened_bytes of ConsumerConfig", header.base_offset)
        elif error.offset is None:
            error = CorruptBatchError(error.reason, header.base_offset)
        self._park(state, PartitionBatchError(state.topic_partition, error, state.position, header.next_offset))
        self._keep_ready(lambda other: other is not state)

    def _forget_stale(self) -> None:
        """Drop batches and errors of partitions that were removed or sought since."""
        self.changes += 1
        self._keep_ready(self.is_current)
        self._errors = deque(entry for entry in self._errors if self.is_current(entry[0]))
        self._changed.notify()

    def _keep_ready(self, is_kept: Callable[[FetchState], bool]) -> None:
        """Drop the batches of all other states."""
        kept = [entry for entry in self._ready if is_kept(entry[1])]
        if len(kept) != len(self._ready):
            self._ready = deque(kept)
            self._buffered_bytes.clear()
            for broker, _, batches in kept:
                self._buffered_bytes[broker] += len(batches.data)

    def close(self) -> None:
        """Have `take` raise PipelineError, now and later."""
        self._is_closed = True
        self._arrived.notify()

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            await self._fetch()
        finally:
            self._cluster.close_lane(self._lane)

    async def _fetch(self) -> None:
        """Keep one task at work for each broker that leads an assigned partition, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_leaders)
            while True:
                leaderless = False
                for state in self.states.values():
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
        """Report a topic that stays unknown as an error; wait for a leader as long as it takes."""
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
            view = self._cluster.view
            led = [state for state in self.states.values() if view.leader_of(state.topic_partition) == broker]
            if not led:
                break
            now = _now_ms()
            active = [state for state in led if not (state.parked or state.is_asking) and self._same_topic(state)]
            due = [state for state in active if self._opens_at_ms(state) <= now]
            doubtful = [state for state in due if not enter_epoch(state, view.leader_epoch_of(state.topic_partition))]
            if doubtful:
                for state in doubtful:
                    state.is_asking = True
                nursery.start_soon(self._validate, broker, doubtful)
                continue
            if not due or self._buffered_bytes[broker] >= self._config.max_bytes:
                wake_ms = min((opens for opens in map(self._opens_at_ms, active) if opens > now), default=math.inf)
                with trio.move_on_at(math.inf if due else wake_ms / 1000):
                    await self._changed.wait()
                continue
            turn += 1
            # No answer may take longer than other partitions wait for their limits.
            held = min((opens for opens in map(self._opens_at_ms, active) if opens > now), default=math.inf)
            wait_ms = int(min(self._config.max_wait_ms, held - now + 1))
            try:
                await self._fetch_once(broker, rotate(due, turn), wait_ms, nursery)
                failures = 0
            except PipelineError as error:
                failures += 1
                self._fail_request(broker, due, error, failures)
        self._fetching.discard(broker)
        self._changed.notify()

    def _opens_at_ms(self, state: FetchState) -> float:
        """Return the time from which on a partition may be requested."""
        limit = self._limit_of(state.topic_partition)
        return state.not_before_ms if limit is None else max(state.not_before_ms, limit.opens_at * 1000)

    def _share_limits(self, states: Sequence[FetchState]) -> None:
        """Divide what each limit allows in one request among its partitions."""
        limits = [self._limit_of(state.topic_partition) for state in states]
        counts = Counter(map(id, limits))
        for state, limit in zip(states, limits, strict=True):
            bound = None if limit is None else limit.max_bytes()
            state.max_bytes = MAX_INT32 if bound is None else max(1, min(MAX_INT32, bound // counts[id(limit)]))

    def _same_topic(self, state: FetchState) -> bool:
        """Return False, and park the partition, if its topic was recreated: its offsets mean other records now."""
        topic_id = self._cluster.view.topics[state.topic_partition.topic].id
        if state.topic_id is None or state.topic_id == ZERO_UUID:
            state.topic_id = topic_id
        elif topic_id not in (state.topic_id, ZERO_UUID):
            reason = "the topic was deleted and created again, so the offsets have lost their meaning; assign it anew"
            self._park(state, KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, reason))
            return False
        return True

    async def _fetch_once(
        self, broker: BrokerId, states: Sequence[FetchState], wait_ms: int, nursery: trio.Nursery
    ) -> None:
        """Send one request and apply its response. Raises PipelineError if the whole request failed."""
        self._share_limits(states)
        asked = {state.topic_partition: (state, state.offset, state.leader_epoch) for state in states}
        ids = self._cluster.view.topic_ids(state.topic_partition.topic for state in states)
        timeout_s = (self._config.max_wait_ms + self._cluster.config.request_timeout_ms) / 1000
        asked_at = trio.current_time()
        response: FetchResponse = await self._cluster.request(
            broker,
            fetch_request(states, self._cluster.view, self._config, wait_ms),
            timeout_s=timeout_s,
            lane=self._lane,
        )
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code, f"fetch from broker {broker}")
        for topic_partition, data in fetch_answers(response, ids):
            state, offset, leader_epoch = asked.get(topic_partition, (None, 0, 0))
            if state is None or state.parked or state.is_asking or not self.is_current(state):
                continue
            if (state.offset, state.leader_epoch) != (offset, leader_epoch):
                continue
            outcome = judge_answer(topic_partition, offset, data)
            if outcome.verdict is FetchVerdict.OUT_OF_RANGE:
                state.is_asking = True
                nursery.start_soon(self._resolve_out_of_range, broker, state)
            else:
                if outcome.error is None:
                    state.high_watermark = data.high_watermark
                    if self._on_answer is not None:
                        self._on_answer(topic_partition, data.high_watermark, asked_at)
                self._apply(broker, state, outcome)

    def _fail_request(
        self, broker: BrokerId, states: Sequence[FetchState], error: PipelineError, failures: int
    ) -> None:
        """Retry later, or report the error to the caller if a retry would not help."""
        logger.warning("fetch_failed", broker=broker, error=str(error))
        self._cluster.refresh_soon()
        for state in filter(self.is_current, states):
            if isinstance(error, KafkaError) and not error.retriable:
                self._park(state, error)
            else:
                self._postpone(state, failures)

    def _apply(self, broker: BrokerId, state: FetchState, outcome: FetchOutcome) -> None:
        if outcome.batches is not None:
            state.offset = outcome.batches.next_offset
            state.last_epoch = outcome.batches.leader_epochs[-1][0]
            self._ready.append((broker, state, outcome.batches))
            self._buffered_bytes[broker] += len(outcome.batches.data)
            self._arrived.notify()
            limit = self._limit_of(state.topic_partition)
            if limit is not None:
                limit.charge(len(outcome.batches.data), trio.current_time())
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
        """Reset the position while other partitions of the broker are fetched."""
        try:
            await self._reset(state)
        except PipelineError as error:
            state.failures += 1
            self._fail_request(broker, [state], error, state.failures)
        state.is_asking = False
        self._changed.notify()

    async def _reset(self, state: FetchState) -> None:
        """Reset the position by the policy, or park the partition with an error that names the log's bounds."""
        topic_partition = state.topic_partition
        timeout_s = self._cluster.config.request_timeout_ms / 1000
        earliest = await list_offsets(self._cluster, {topic_partition: EARLIEST}, timeout_s=timeout_s)
        latest = await list_offsets(self._cluster, {topic_partition: LATEST}, timeout_s=timeout_s)
        start, end = earliest[topic_partition].offset, latest[topic_partition].offset
        if not self.is_current(state):
            return
        if start <= state.offset <= end:
            state.failures += 1
            self._postpone(state, state.failures)
        elif self._config.auto_offset_reset is OffsetReset.NONE:
            self._park(state, PartitionOffsetOutOfRangeError(topic_partition, state.offset, start, end))
        else:
            target = start if self._config.auto_offset_reset is OffsetReset.EARLIEST else end
            logger.warning("offset_reset", partition=str(topic_partition), position=state.offset, offset=target)
            _move(state, target, NO_LEADER_EPOCH)

    async def _validate(self, broker: BrokerId, states: Sequence[FetchState]) -> None:
        """Ask the leader where the epochs of the last records end, while other partitions of the broker are fetched.

        A leader whose version is too old to tell leaves the positions as they are.
        """
        view = self._cluster.view
        asked = [(state, state.offset, view.leader_epoch_of(state.topic_partition)) for state in states]
        epochs = {state.topic_partition: state.last_epoch for state in states}
        answers: dict[TopicPartition, tuple[int, EpochEnd]] = {}
        failure: PipelineError = ProtocolError(f"broker {broker} left partitions out of its answer")
        try:
            timeout_s = self._cluster.config.request_timeout_ms / 1000
            answers = await ask_ends_once(self._cluster, view, broker, epochs, timeout_s=timeout_s)
        except PipelineError as error:
            failure = error
            if isinstance(error, KafkaError) and error.code is ErrorCode.UNSUPPORTED_VERSION:
                answers = {state.topic_partition: (ErrorCode.NONE, _as_it_is(state)) for state in states}
        unanswered = []
        for state, offset, leader_epoch in asked:
            state.is_asking = False
            if state.parked or not self.is_current(state) or state.offset != offset:
                continue
            if state.topic_partition not in answers:
                state.failures += 1
                unanswered.append(state)
                continue
            code, end = answers[state.topic_partition]
            if code == ErrorCode.NONE:
                self._conclude_validation(state, leader_epoch, end)
            else:
                self._apply(broker, state, judge_refusal(state.topic_partition, ErrorCode.of(code)))
        if unanswered:
            self._fail_request(broker, unanswered, failure, max(state.failures for state in unanswered))
        self._changed.notify()

    def _conclude_validation(self, state: FetchState, leader_epoch: int, end: EpochEnd) -> None:
        """Fetch in this leader epoch, unless the log was truncated and the policy is to report that.

        A leader that knows no epoch as high as the position's cannot tell: ZooKeeper, or the logs as well, are older
        than the position. A caller that keeps epochs can compare records and is told; for others the reading goes on.
        """
        state.failures = 0
        # An older epoch in the answer is no truncation by itself: compaction may have removed all records of the epoch,
        # and a replica made after that never knew it.
        is_unknown = end.end_offset < 0
        if is_unknown and not (state.is_epoch_kept and self._config.auto_offset_reset is OffsetReset.NONE):
            logger.warning("position_not_validated", partition=str(state.topic_partition), epoch=state.last_epoch)
        elif end.end_offset < state.offset:
            if self._config.auto_offset_reset is OffsetReset.NONE:
                error = PartitionTruncatedError(state.topic_partition, state.offset, end.leader_epoch, end.end_offset)
                self._park(state, error)
                return
            logger.warning(
                "log_truncated", partition=str(state.topic_partition), position=state.offset, offset=end.end_offset
            )
            _move(state, end.end_offset, end.leader_epoch)
        state.leader_epoch = leader_epoch

    def _postpone(self, state: FetchState, failures: int) -> None:
        settings = self._cluster.config
        state.not_before_ms = _now_ms() + backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)

    def _park(self, state: FetchState, error: Exception) -> None:
        """Stop fetching the partition; a later poll raises the error."""
        state.parked = True
        if not isinstance(error, (PartitionOffsetOutOfRangeError, PartitionFetchError)):
            error = PartitionFetchError(state.topic_partition, error)
        self._errors.append((state, error))
        self._arrived.notify()


def _move(state: FetchState, offset: int, last_epoch: int) -> None:
    """Continue at an offset that follows a record of `last_epoch` (-1: not known)."""
    if state.position == state.offset:  # else what was fetched before is still being handed out
        state.position = offset
    state.offset = offset
    state.last_epoch = last_epoch


def _as_it_is(state: FetchState) -> EpochEnd:
    """Return the answer that leaves the position as it is."""
    return EpochEnd(leader_epoch=state.last_epoch, end_offset=state.offset)


def _now_ms() -> int:
    return round(trio.current_time() * 1000)
