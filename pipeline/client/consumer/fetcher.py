"""Background fetches of a consumer: requests to the brokers that lead assigned partitions, and their buffer.

Invariants: the buffer is bounded for each broker (`fetch_queue.py`, invariant A). A partition that fails pauses alone,
and its error is raised after all batches that were fetched before it. A partition that may be fetched is in a queue,
under way or among those to place; whatever changes that places it again.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import trio

from pipeline.client.admin.leader_epochs import EpochEnd
from pipeline.client.cluster.backoff import backoff_ms
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, IsolationLevel, OffsetReset
from pipeline.client.consumer.consumption import ConsumptionObserver, NoConsumptionObserver
from pipeline.client.consumer.errors import (
    PartitionBatchError,
    PartitionFetchError,
    PartitionOffsetOutOfRangeError,
)
from pipeline.client.consumer.fetch_plan import (
    FetchedBatches,
    FetchOutcome,
    FetchState,
    FetchVerdict,
    OnAnswer,
    enter_epoch,
    fetch_answers,
    fetch_request,
    is_missing,
    is_of_other_topic,
    judge_answer,
    judge_refusal,
    move,
    note_epochs,
)
from pipeline.client.consumer.fetch_queue import (
    FAR_S,
    Fetched,
    FetchQueue,
    HeldPartitions,
    LimitOf,
    Pace,
    PlannedFetch,
    begin_next,
    end_limits,
    in_turn,
    is_held,
    share_limits,
    unlimited,
)
from pipeline.client.consumer.fetch_session import SESSION_ERRORS, IdleFetchSession
from pipeline.client.consumer.positions import ends_of_positions, follow_truncation, latest_offset, log_bounds
from pipeline.diagnostics import get_logger
from pipeline.errors import CorruptBatchError, OpenedBatchTooLargeError, PipelineError
from pipeline.model import NO_LEADER_EPOCH, BrokerId, TopicPartition
from pipeline.net.rare_log import RareLog
from pipeline.net.signals import Signal
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import FetchResponse, PartitionData
from pipeline.records.batch import BatchHeader

FETCH_LANE = "fetch"
"""First part of the names of lanes of Fetch requests."""

logger = get_logger(__name__)

Taken = list[tuple[FetchState, FetchedBatches]]
"""Batches taken out of the buffer by one poll, in order."""
Answers = Mapping[TopicPartition, PartitionData]


class Fetcher:
    """Fetches the partitions of `states` ahead, and holds the batches and errors until `take`."""

    def __init__(
        self, cluster: Cluster, config: ConsumerConfig, on_answer: OnAnswer | None = None, limit_of: LimitOf = unlimited
    ) -> None:
        self._cluster = cluster
        self.observer: ConsumptionObserver = NoConsumptionObserver()
        self._config = config
        self._on_answer = on_answer
        self._limit_of = limit_of
        self.states: dict[TopicPartition, FetchState] = {}
        self.changes = 0
        """Number of changes of `states`: a cheap check that a state is still current."""
        self._ready: deque[Fetched] = deque()
        self._errors: deque[tuple[FetchState, PipelineError]] = deque()
        self._changed = Signal()
        self._arrived = Signal()
        self._is_closed = False
        self._lanes: list[str] = []
        self._queues: dict[BrokerId, FetchQueue] = {}
        """Partitions that may be fetched, by leader. All others are in one of the next three, or under way."""
        self._unplaced: list[FetchState] = []
        self._leaderless: dict[TopicPartition, FetchState] = {}
        self._held = HeldPartitions(limit_of)
        self._is_limited = False
        """True if a partition that may be fetched has had a limit since the last settings."""
        self._log = RareLog(logger)

    def configure(self, config: ConsumerConfig) -> None:
        """Send all further requests with other settings."""
        self._config = config
        for queue in self._queues.values():
            queue.config = config
            self._unplaced += queue.take_all()  # limits may have changed with the settings
        self._unplaced += self._held.take(math.inf)
        self._is_limited = False
        self._changed.notify()

    def assign(self, states: dict[TopicPartition, FetchState]) -> None:
        """Fetch these partitions and no others. Raises as `Cluster.track`, and changes nothing then."""
        self._cluster.track(topic_partition.topic for topic_partition in states)
        self.states = states
        self._unplaced += states.values()
        self._forget_stale()

    def add(self, state: FetchState) -> None:
        """Fetch one more partition, or an assigned one from its new state on. Raises as `Cluster.track`."""
        self._cluster.track((state.topic_partition.topic,))
        self.states[state.topic_partition] = state
        self._unplaced.append(state)
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
        if self._errors and not any(ready.state is self._errors[0][0] for ready in self._ready):
            state, error = self._errors.popleft()
            if isinstance(error, PartitionBatchError):
                state.skip_to = error.next_offset
            raise error
        taken = [(ready.state, ready.batches) for ready in self._ready]
        self._ready.clear()
        for queue in self._queues.values():
            queue.buffered_bytes.clear()
        self._changed.notify()
        for _, batches in taken:
            self.observer.fetched(batches)
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
        kept = [ready for ready in self._ready if is_kept(ready.state)]
        if len(kept) != len(self._ready):
            self._ready = deque(kept)
            for queue in self._queues.values():
                queue.buffered_bytes.clear()
            for ready in kept:
                self._queue_of(ready.broker).buffered_bytes[ready.is_backlog] += len(ready.batches.data)

    def close(self) -> None:
        """Have `take` raise PipelineError, now and later."""
        self._is_closed = True
        self._arrived.notify()

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            await self._fetch()
        finally:
            for lane in self._lanes:
                self._cluster.close_lane(lane)

    async def _fetch(self) -> None:
        """Send each request as soon as it may leave, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_leaders)
            while True:
                now = _now_ms()
                self._place_all(now, nursery)
                for broker, queue in list(self._queues.items()):
                    queue.is_far = (self._cluster.round_trip_s(broker) or 0) >= FAR_S
                    held = self._held if self._is_limited else None
                    while (planned := begin_next(queue, held, self._limit_of, now)) is not None:
                        nursery.start_soon(self._exchange, broker, queue, planned, nursery)
                    if queue.is_empty and not queue.buffered_bytes.total() and not queue.failures:
                        del self._queues[broker]
                wakes = [self._held.first_at_ms, *(queue.wakes_at_ms(now) for queue in self._queues.values())]
                if self._leaderless:
                    self._cluster.refresh_soon()
                    wakes.append(now + self._cluster.config.retry_backoff_ms)
                with trio.move_on_at(min(wakes, default=math.inf) / 1000):
                    await self._changed.wait()

    async def _watch_leaders(self) -> None:
        while True:
            await self._cluster.wait_for_new_view()
            for broker, queue in self._queues.items():
                self._unplaced += queue.take_all()
                for planned in queue.under_way():
                    for state in planned.states:
                        if state.request is planned and self._cluster.view.leader_of(state.topic_partition) != broker:
                            state.request = None  # the former leader may hold its answer back for long
                            self._unplaced.append(state)
            self._changed.notify()

    def _place_all(self, now: int, nursery: trio.Nursery) -> None:
        """Have each partition wait where it should: for a request, for a later time, or for a leader."""
        self._unplaced += self._leaderless.values()
        self._leaderless.clear()
        self._unplaced += self._held.take(now)
        doubtful: dict[BrokerId, list[FetchState]] = {}
        unplaced, self._unplaced = self._unplaced, []
        view = self._cluster.view
        for state in unplaced:
            if state.parked or state.is_asking or state.request is not None or not self.is_current(state):
                continue
            leader = view.leader_of(state.topic_partition)
            if leader is None:
                self._leaderless[state.topic_partition] = state
                if is_missing(state, view, now, self._cluster.config.default_api_timeout_ms):
                    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no broker knows it any more")
                    self._park(state, error)
            elif is_of_other_topic(state, view):
                reason = "the topic was deleted and created again, so the offsets mean other records: assign it anew"
                self._park(state, KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, reason))
                self._cluster.refresh_soon()  # or the metadata are older than the offsets
            elif is_held(self._limit_of, now, state):
                self._held.add([state])
            elif enter_epoch(state, view.leader_epoch_of(state.topic_partition)):
                self._is_limited = self._is_limited or self._limit_of(state.topic_partition) is not None
                self._queue_of(leader).add(state, now)
            else:
                state.is_asking = True
                doubtful.setdefault(leader, []).append(state)
        for leader, states in doubtful.items():
            nursery.start_soon(self._validate, leader, states)

    def _queue_of(self, leader: BrokerId) -> FetchQueue:
        if leader not in self._queues:
            self._queues[leader] = FetchQueue(self._config, (id(self), leader))
        return self._queues[leader]

    def _place_again(self, *states: FetchState) -> None:
        self._unplaced += states
        self._changed.notify()

    async def _exchange(
        self, broker: BrokerId, queue: FetchQueue, planned: PlannedFetch, nursery: trio.Nursery
    ) -> None:
        """Send a request, apply its answer, and have its partitions wait again."""
        session = queue.session if planned.pace is Pace.IDLE else None
        unchanged: Sequence[FetchState] = ()
        try:
            unchanged = await self._fetch_once(broker, planned, session, nursery)
            queue.failures = 0
        except PipelineError as error:
            queue.failures += 1
            if session is not None:
                session.end()
            waiting = [state for state in planned.states if state.request is planned]
            self._fail_request(broker, waiting, error, queue.failures)
        finally:
            end_limits(planned)
        for state in unchanged:
            state.request = None
        ended = [state for state in planned.states if state.request is planned]
        for state in ended:
            state.request = None
        queue.end(planned, _now_ms(), unchanged)
        self._place_again(*in_turn(ended))

    async def _fetch_once(
        self, broker: BrokerId, planned: PlannedFetch, session: IdleFetchSession | None, nursery: trio.Nursery
    ) -> Sequence[FetchState]:
        """Send one request, and apply its response. Return the partitions that may wait again without a look at them.

        Raises PipelineError if the whole request failed.
        """
        share_limits(planned.states, self._limit_of)
        view = self._cluster.view
        timeout_s = (planned.bounds.max_wait_ms + self._cluster.config.request_timeout_ms) / 1000
        make_request = fetch_request if session is None else session.request
        request = make_request(planned.states, view, self._config, planned.bounds)
        asked_at = trio.current_time()
        response: FetchResponse = await self._cluster.request(
            broker, request, timeout_s=timeout_s, lane=lane_of(self._lanes, planned, self._cluster)
        )
        if session is not None and session.is_open and response.error_code in SESSION_ERRORS:
            session.end()  # all partitions are asked for again
            return ()
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code, f"fetch from broker {broker}")
        ids = view.topic_ids({state.topic_partition.topic for state in planned.states})
        answers = dict(fetch_answers(response, ids))
        left_out: Mapping[TopicPartition, int] = {} if session is None else session.take(response, answers)
        unchanged = [
            state
            for state in planned.states
            if state.topic_partition in left_out
            and state.topic_partition not in answers
            and self._is_asked_for(state, planned)
        ]
        answered = self._take(broker, planned, answers, nursery)
        for state in unchanged:
            state.high_watermark = left_out[state.topic_partition]
            answered.append((state.topic_partition, state.high_watermark))
        if self._on_answer is not None:
            self._on_answer(answered, asked_at)
        return unchanged if self._cluster.view is view else ()

    def _is_asked_for(self, state: FetchState, planned: PlannedFetch) -> bool:
        """Return True if the answer to the request counts for the partition."""
        return state.request is planned and not state.parked and self.is_current(state)

    def _take(
        self, broker: BrokerId, planned: PlannedFetch, answers: Answers, nursery: trio.Nursery
    ) -> list[tuple[TopicPartition, int]]:
        """Apply the answers. Return the partitions that were answered without error, and their high watermarks."""
        answered = []
        has_records = any(data.records for data in answers.values())
        now_ms = _now_ms()
        for topic_partition, data in answers.items():
            limit = self._limit_of(topic_partition)
            if limit is not None and data.records:  # also of batches that are dropped
                limit.charge(len(data.records), trio.current_time())
            state = self.states.get(topic_partition)
            if state is None or not self._is_asked_for(state, planned):
                continue
            outcome = judge_answer(topic_partition, state.offset, data)
            if outcome.verdict is FetchVerdict.OUT_OF_RANGE:
                state.is_asking = True
                nursery.start_soon(self._resolve_out_of_range, broker, state)
                continue
            if outcome.error is None:
                state.high_watermark = data.high_watermark
                answered.append((topic_partition, data.high_watermark))
            self._apply(broker, state, outcome, is_backlog=planned.is_backlog)
            if outcome.batches is not None:
                state.moved_at_ms = now_ms
            state.is_behind = has_records and state.offset < data.high_watermark  # without: not committed yet
        return answered

    def _fail_request(
        self, broker: BrokerId, states: Sequence[FetchState], error: PipelineError, failures: int
    ) -> None:
        """Retry later, or report the error to the caller if a retry would not help."""
        self._log.warning("fetch_failed", str(broker), broker=broker, error=str(error))
        self._cluster.refresh_soon()
        for state in filter(self.is_current, states):
            if isinstance(error, KafkaError) and not error.retriable:
                self._park(state, error)
            else:
                postpone(state, failures, self._cluster)

    def _apply(self, broker: BrokerId, state: FetchState, outcome: FetchOutcome, *, is_backlog: bool = False) -> None:
        if outcome.batches is not None:
            state.offset = outcome.batches.next_offset
            note_epochs(state, outcome.batches)
            self._ready.append(Fetched(broker, is_backlog, state, outcome.batches))
            self._queue_of(broker).buffered_bytes[is_backlog] += len(outcome.batches.data)
            self._arrived.notify()
        if outcome.error is None:
            state.failures = 0
        elif isinstance(outcome.error, CorruptBatchError) and outcome.skip_to is not None:
            error = PartitionBatchError(
                state.topic_partition, outcome.error, state.offset, outcome.skip_to, outcome.bad_batch
            )
            self._park(state, error)
        elif outcome.verdict is FetchVerdict.FATAL:
            self._park(state, outcome.error)
        else:
            logger.info("fetch_retried", partition=str(state.topic_partition), error=str(outcome.error))
            if outcome.verdict is FetchVerdict.LEADER_MOVED:
                self._cluster.refresh_soon()
            state.failures += 1
            postpone(state, state.failures, self._cluster)

    async def _resolve_out_of_range(self, broker: BrokerId, state: FetchState) -> None:
        """Reset the position while other partitions of the broker are fetched."""
        try:
            await self._reset(state)
        except PipelineError as error:
            state.failures += 1
            self._fail_request(broker, [state], error, state.failures)
        state.is_asking = False
        self._place_again(state)

    async def _reset(self, state: FetchState) -> None:
        """Reset the position by the policy, or park the partition with an error that names the log's bounds."""
        topic_partition = state.topic_partition
        start, end = await log_bounds(self._cluster, topic_partition)
        latest = end
        if self._config.isolation_level is IsolationLevel.READ_COMMITTED:
            latest = await latest_offset(self._cluster, topic_partition, self._config.isolation_level)
        if not self.is_current(state):
            return
        if start <= state.offset <= end:
            state.failures += 1
            postpone(state, state.failures, self._cluster)
        elif self._config.auto_offset_reset is OffsetReset.NONE:
            self._park(state, PartitionOffsetOutOfRangeError(topic_partition, state.offset, start, end))
        else:
            target = start if self._config.auto_offset_reset is OffsetReset.EARLIEST else latest
            logger.warning("offset_reset", partition=str(topic_partition), position=state.offset, offset=target)
            move(state, target, NO_LEADER_EPOCH)

    async def _validate(self, broker: BrokerId, states: Sequence[FetchState]) -> None:
        """Ask the leader where the epochs of the last records end, while other partitions of the broker are fetched."""
        view = self._cluster.view
        asked = [(state, state.offset, view.leader_epoch_of(state.topic_partition)) for state in states]
        answers, failure = await ends_of_positions(self._cluster, broker, states)
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
        self._place_again(*states)

    def _conclude_validation(self, state: FetchState, leader_epoch: int, end: EpochEnd) -> None:
        """Fetch in this leader epoch, unless the log was truncated and the policy is to report that."""
        state.failures = 0
        error = follow_truncation(state, end, self._config.auto_offset_reset)
        if error is not None:
            self._park(state, error)
        else:
            state.leader_epoch = leader_epoch

    def _park(self, state: FetchState, error: Exception) -> None:
        """Stop fetching the partition; a later poll raises the error."""
        state.parked = True
        if not isinstance(error, (PartitionOffsetOutOfRangeError, PartitionFetchError)):
            error = PartitionFetchError(state.topic_partition, error)
        self._errors.append((state, error))
        self._arrived.notify()


def _now_ms() -> int:
    return round(trio.current_time() * 1000)


def lane_of(lanes: list[str], planned: PlannedFetch, cluster: Cluster) -> str:
    """Return the lane of a request. Long polls of another consumer, perhaps closed already, must not delay it."""
    while planned.lane >= len(lanes):
        lanes.append(cluster.new_lane(FETCH_LANE))
    return lanes[planned.lane]


def postpone(state: FetchState, failures: int, cluster: Cluster) -> None:
    """Fetch the partition later, after the n-th failure in a row."""
    settings = cluster.config
    state.not_before_ms = _now_ms() + backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
