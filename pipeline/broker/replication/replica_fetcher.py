"""Copies from one leader the records that this broker's follower replicas are missing.

Owns its connections to that leader, and a plan (`replica_fetch_plan`), which makes all decisions.

Invariants
  A. Fetched records are appended in the loop, at once, after the plan was asked whether the partition is still followed
     in that epoch. Other changes of a log run in a thread; the partition is in `_changing` then. `remove` takes the
     partition out of the plan, `wait_until_untouched` returns when no such change is under way: after both, nothing of
     the old role touches the log any more, and the role may change.
  B. While a log is truncated, restarted or flushed, nothing is appended to it: its phase is SET_ASIDE.
  C. At most one Fetch waits for data at the leader. A second one leaves only when the plan has news (a partition came,
     or came back), on a connection of its own, and makes the leader end the wait of the first. So there is one answer
     in memory, of `replica.fetch.response.max.bytes`, or two for the moment in which both cross.
  D. A refusal of the disk stops only the partition: it waits (full disk), or is not followed any more.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import trio

from pipeline.broker.replication.replica_fetch_plan import (
    FIRST_BACKOFF_S,
    Answer,
    FetchLimits,
    FetchPlan,
    FollowedLog,
    FollowedPartition,
    FollowerPhase,
    Reaction,
    Truncation,
)
from pipeline.broker.replication.replication_quota import WINDOW_S, ReplicationThrottle
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    CorruptBatchError,
    DiskFullError,
    NetworkError,
    OffsetOverlapError,
    PipelineError,
    RollDueError,
    StorageError,
)
from pipeline.log.appends import AppendInfo
from pipeline.model import BrokerId, Clock, HostPort, LeaderEpoch, Offset, TopicPartition
from pipeline.net.connection_pool import ConnectionPool, open_connection_pool
from pipeline.net.dialing import Dialer
from pipeline.net.signals import Wakeup
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from pipeline.records.batch import whole_batches

GIVE_WAY_BYTES = 256 * 1024
"""Size after which other tasks have their turn between appends."""
EPOCHS_LANE = "epochs"
FETCH_LANES = ("fetch", "overtaking")

logger = get_logger(__name__)


class ReplicaLog(FollowedLog, Protocol):
    """The log of a replica, as a fetcher uses it."""

    failure: StorageError | None


class Replica(Protocol):
    """A partition that follows a leader."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""

    @property
    def log(self) -> ReplicaLog:
        """The log of the replica."""

    def append_fetched(
        self, records: memoryview, leader_high_watermark: Offset, leader_log_start_offset: Offset, now_ms: int
    ) -> AppendInfo | None:
        """Append whole batches, take over the leader's high watermark and log start offset; None without batches.

        Raises CorruptBatchError, OffsetOverlapError, StorageError, RollDueError.
        """

    async def roll(self, due: RollDueError, now_ms: int) -> None:
        """Roll the segment that an append asked for. Raises StorageError."""

    def awaits_flush(self, info: AppendInfo) -> bool:
        """Return True if what was appended must be on the disk before the next Fetch reports it."""

    async def flush_up_to(self, offset: Offset) -> object:
        """Return once everything before `offset` is on the disk. Raises StorageError."""

    async def truncate_to(self, offset: Offset) -> object:
        """Truncate the log to this offset. Raises StorageError."""

    async def restart_at(self, offset: Offset) -> object:
        """Replace the log by an empty one that starts at this offset. Raises StorageError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherSettings:
    """Settings and services that all fetchers of a broker share."""

    limits: FetchLimits
    request_timeout_s: float
    clock: Clock
    dialer: Dialer
    throttle: ReplicationThrottle
    find_address: Callable[[BrokerId], HostPort | None]
    """Return the address of a broker, None if it is not registered."""
    find_epoch: Callable[[], int]
    """Return the epoch of this broker's registration."""


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request under way, and its response or error."""

    lane: str
    request: Any
    asked: Sequence[FollowedPartition] = ()
    number: int = 0
    """Number of the Fetch in the plan."""
    is_overtaken: bool = False
    is_void: bool = False
    """True if its session is over."""
    response: Any = None
    error: PipelineError | None = None


@dataclass(slots=True)
class FetcherCounts:
    """Plain counts, read when metrics are asked for."""

    bytes_fetched: int = 0
    failures: int = 0
    """Requests to the leader that failed."""
    corrupt_answers: int = 0

    def add(self, other: "FetcherCounts") -> None:
        """Add these counts."""
        self.bytes_fetched += other.bytes_fetched
        self.failures += other.failures
        self.corrupt_answers += other.corrupt_answers


@dataclass(slots=True, eq=False)
class ReplicaFetcher:
    """The fetcher of one leader and number; `run` is its task."""

    leader: BrokerId
    number: int
    settings: FetcherSettings
    counts: FetcherCounts = field(default_factory=FetcherCounts)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _plan: FetchPlan = field(init=False)
    _replicas: dict[TopicPartition, Replica] = field(default_factory=dict)
    _changing: dict[TopicPartition, trio.Event] = field(default_factory=dict)
    _under_way: dict[str, _Exchange] = field(default_factory=dict)
    _finished: deque[_Exchange] = field(default_factory=deque)
    _woken: Wakeup = field(default_factory=Wakeup)
    _silent_until_s: float = 0.0
    _failures: int = 0

    def __post_init__(self) -> None:
        self._plan = FetchPlan(self.settings.limits)

    @property
    def partitions(self) -> Iterable[FollowedPartition]:
        """Partitions that it fetches (a live view)."""
        return self._plan.partitions.values()

    @property
    def is_needed(self) -> bool:
        """True if it has partitions."""
        return bool(self._plan.partitions)

    # Coming and going

    def follow(self, replica: Replica, partition: FollowedPartition) -> None:
        """Fetch this partition, too. No other fetcher may have it."""
        self._replicas[partition.topic_partition] = replica
        self._plan.add(partition)
        self._woken.set()

    def throttle(self, topic_partition: TopicPartition, *, is_throttled: bool) -> None:
        """Throttle a partition, or stop that."""
        self._plan.throttle(topic_partition, is_throttled=is_throttled)
        self._woken.set()

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these: nothing is appended to them from now on."""
        for topic_partition in topic_partitions:
            self._plan.remove(topic_partition)
            self._replicas.pop(topic_partition, None)

    def is_changing(self, topic_partition: TopicPartition) -> bool:
        """True if the log of this partition is being changed, in a thread."""
        return topic_partition in self._changing

    async def wait_until_untouched(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Return when no log of these is being changed any more."""
        for topic_partition in topic_partitions:
            while (ended := self._changing.get(topic_partition)) is not None:
                await ended.wait()

    # The task

    async def run(self) -> None:
        """Fetch until cancelled."""
        client_id = f"broker-{self.settings.limits.own_id}-fetcher-{self.number}"
        with self.scope:
            async with (
                open_connection_pool(client_id, self.settings.dialer) as pool,
                trio.open_nursery() as nursery,
            ):
                while True:
                    deadline = self._begin_what_is_due(pool, nursery)
                    with trio.move_on_at(deadline):
                        await self._woken.wait()
                    self._woken.clear()
                    while self._finished:
                        await self._end(self._finished.popleft(), nursery)

    def _begin_what_is_due(self, pool: ConnectionPool, nursery: trio.Nursery) -> float:
        """Send the requests that are due; return the time to check again, even if nothing happens."""
        now_s = trio.current_time()
        deadline = self._plan.resume(now_s)
        deadline = float("inf") if deadline is None else deadline
        if now_s < self._silent_until_s:
            return min(deadline, self._silent_until_s) if self._plan.partitions else float("inf")
        if EPOCHS_LANE not in self._under_way:
            question = self._plan.epochs_request()
            if question is not None:
                self._begin(_Exchange(EPOCHS_LANE, question[0], question[1]), pool, nursery)
        pause_s = self.settings.throttle.pause_s(now_s)
        lane = self._free_lane()
        if lane is not None:
            request = self._plan.fetch_request(hold_back=pause_s > 0, replica_epoch=self.settings.find_epoch())
            if request is not None:
                for lane_under_way in FETCH_LANES:
                    if lane_under_way in self._under_way:
                        self._under_way[lane_under_way].is_overtaken = True
                self._begin(_Exchange(lane, request, number=self._plan.requests), pool, nursery)
            elif pause_s > 0:
                deadline = min(deadline, now_s + min(pause_s, WINDOW_S))  # the rate may be raised meanwhile
        return deadline

    def _free_lane(self) -> str | None:
        """Return the lane of the next Fetch, None if it may not leave yet (invariant C)."""
        free = [lane for lane in FETCH_LANES if lane not in self._under_way]
        if len(free) == len(FETCH_LANES):
            return free[0]
        return free[0] if free and self._plan.has_news and self._plan.can_overtake else None

    def _begin(self, exchange: _Exchange, pool: ConnectionPool, nursery: trio.Nursery) -> None:
        self._under_way[exchange.lane] = exchange
        nursery.start_soon(self._exchange, exchange, pool)

    async def _exchange(self, exchange: _Exchange, pool: ConnectionPool) -> None:
        settings = self.settings
        address = settings.find_address(self.leader)
        try:
            if address is None:
                raise NetworkError(f"broker {self.leader} is not there")
            exchange.response = await pool.request(
                address, exchange.request, timeout_s=settings.request_timeout_s, lane=exchange.lane
            )
        except PipelineError as error:
            exchange.error = error
        self._finished.append(exchange)
        self._woken.set()

    async def _end(self, exchange: _Exchange, nursery: trio.Nursery) -> None:
        """Act on the answer."""
        del self._under_way[exchange.lane]
        if exchange.error is not None:
            self._failed(exchange, exchange.error)
            return
        self._failures = 0
        if not isinstance(exchange.request, FetchRequest):
            truncations, complaints = self._plan.take_epochs(exchange.asked, exchange.response, trio.current_time())
            for partition, code in complaints:
                self._complain(partition, code)
            if truncations:
                nursery.start_soon(self._truncate, truncations)
        elif not (exchange.is_void or (exchange.is_overtaken and exchange.response.error_code)):
            await self._take(exchange.response, exchange.number, nursery)

    def _failed(self, exchange: _Exchange, error: PipelineError) -> None:
        """Begin another session after a while: the leader could not be reached, or broke off."""
        now_s = trio.current_time()
        if isinstance(exchange.request, FetchRequest):
            self._plan.lose_session()
            self._void_session()
        for partition in exchange.asked:
            if self._plan.is_current(partition) and partition.phase is FollowerPhase.TRUNCATING:
                self._plan.wait(partition, now_s)
        if now_s >= self._silent_until_s:
            backoff_s = min(FIRST_BACKOFF_S * 2 ** min(self._failures, 16), self.settings.limits.max_backoff_s)
            self._silent_until_s = now_s + backoff_s
            if not self._failures:
                logger.warning("leader_unreachable", leader=self.leader, fetcher=self.number, error=str(error))
            self._failures += 1
            self.counts.failures += 1

    def _void_session(self) -> None:
        for lane in FETCH_LANES:
            if lane in self._under_way:
                self._under_way[lane].is_void = True

    def _complain(self, partition: FollowedPartition, code: ErrorCode) -> None:
        """Log a refusal, once until the partition is fetched again."""
        if partition.failures == 1:
            name = str(partition.topic_partition)
            logger.warning("fetch_refused", topic_partition=name, leader=self.leader, error=code.name)

    # What was fetched

    async def _take(self, response: FetchResponse, number: int, nursery: trio.Nursery) -> None:
        answers = self._plan.take_response(response, trio.current_time(), number)
        if answers is None:
            self._void_session()
            return
        unshared_bytes = 0
        for answer in answers:
            if answer.reaction is Reaction.COMPLAIN:
                self._complain(answer.partition, ErrorCode.of(answer.data.error_code))
            elif self._plan.is_fetching(answer.partition):
                unshared_bytes += self._take_answer(answer, nursery)
                if unshared_bytes >= GIVE_WAY_BYTES:
                    unshared_bytes = 0
                    await trio.lowlevel.checkpoint()

    def _take_answer(self, answer: Answer, nursery: trio.Nursery) -> int:
        """Append the answer for one partition, or restart its log; return the appended bytes."""
        partition, data = answer.partition, answer.data
        if answer.reaction is Reaction.COMPARE:
            is_empty = partition.log.log_start_offset == partition.log.log_end_offset
            if data.log_start_offset > partition.log.log_end_offset or (is_empty and data.log_start_offset >= 0):
                self._restart(partition, Offset(data.log_start_offset), None, nursery)
            else:
                self._plan.wait(partition, trio.current_time())
            return 0
        try:
            size_bytes, is_to_be_flushed = self._append(partition, data)
        except CorruptBatchError as error:
            self.counts.corrupt_answers += 1
            logger.error("corrupt_answer", topic_partition=str(partition.topic_partition), error=str(error))
            self._plan.wait(partition, trio.current_time(), FollowerPhase.FETCHING)
        except OffsetOverlapError as error:
            own = partition.log
            if own.log_start_offset == own.log_end_offset > error.base_offset:
                self._restart(partition, Offset(error.base_offset), data, nursery)
            else:  # a later answer was quicker
                self._plan.note_appended(partition)
        except RollDueError as due:  # the records are fetched again then: they are not held while a disk hangs
            roll = partial(self._replicas[partition.topic_partition].roll, due, self.settings.clock())
            self._plan.set_aside(partition)
            nursery.start_soon(self._change, partition, roll, None)
        except StorageError as error:
            self._refused(partition, error, FollowerPhase.FETCHING)
        else:
            if is_to_be_flushed:
                flush = partial(self._flush, partition, self._replicas[partition.topic_partition])
                self._plan.set_aside(partition)
                nursery.start_soon(self._change, partition, flush, None)
            return size_bytes
        return 0

    def _append(self, partition: FollowedPartition, data: PartitionData) -> tuple[int, bool]:
        """Return the appended bytes, and True if they must be flushed before more is fetched.

        Raises as `Replica.append_fetched`.
        """
        replica = self._replicas[partition.topic_partition]
        records = data.records if isinstance(data.records, memoryview) else memoryview(b"")
        whole_bytes = whole_batches(records)
        if len(records) and not whole_bytes:  # a leader sends a whole batch or nothing (KIP-74)
            raise CorruptBatchError(f"{len(records)} bytes hold no whole batch", partition.asked_offset)
        records = records[:whole_bytes]
        info = replica.append_fetched(
            records, Offset(data.high_watermark), Offset(data.log_start_offset), self.settings.clock()
        )
        self._plan.note_appended(partition)
        partition.lag = max(0, data.high_watermark - partition.log.log_end_offset)
        self.counts.bytes_fetched += len(records)
        if partition.is_throttled:
            self.settings.throttle.count(len(records), trio.current_time())
        return len(records), info is not None and replica.awaits_flush(info)

    def _refused(self, partition: FollowedPartition, error: StorageError, resumes: FollowerPhase) -> None:
        """Wait, for the disk refused a write (invariant D); then begin with the phase `resumes`."""
        logger.error("fetched_not_stored", topic_partition=str(partition.topic_partition), error=str(error))
        replica = self._replicas.get(partition.topic_partition)
        if replica is None or replica.log.failure is not None:
            self._plan.remove(partition.topic_partition)
        else:
            self._plan.wait(partition, trio.current_time(), resumes)

    # Changes in a thread

    def _restart(
        self, partition: FollowedPartition, offset: Offset, data: PartitionData | None, nursery: trio.Nursery
    ) -> None:
        """Restart the log where the leader's log begins. If that is within a batch, the log begins with that batch,
        `data`: no fetch can return what lies before the leader's log start offset.
        """
        name = str(partition.topic_partition)
        logger.warning("log_begun_anew", topic_partition=name, end=partition.log.log_end_offset, start=offset)
        replica = self._replicas[partition.topic_partition]
        self._plan.set_aside(partition)

        async def restart() -> None:
            await replica.restart_at(offset)
            if data is not None and self._plan.is_current(partition):
                _, is_to_be_flushed = self._append(partition, data)
                if is_to_be_flushed:
                    await self._flush(partition, replica)

        nursery.start_soon(self._change, partition, restart, None)

    async def _flush(self, partition: FollowedPartition, replica: Replica) -> None:
        """Return once the log is on the disk, for the next Fetch reports its end. Raises StorageError."""
        while self._plan.is_current(partition):
            try:
                await replica.flush_up_to(partition.log.log_end_offset)
            except DiskFullError as error:
                logger.error("fetched_not_flushed", topic_partition=str(partition.topic_partition), error=str(error))
                await trio.sleep(self.settings.limits.max_backoff_s)
            else:
                return

    async def _truncate(self, truncations: Sequence[Truncation]) -> None:
        for truncation in truncations:
            partition = truncation.partition
            if self._plan.is_current(partition):
                name, offset, end = str(partition.topic_partition), truncation.offset, partition.log.log_end_offset
                logger.info("log_truncated", topic_partition=name, offset=offset, end=end, leader=self.leader)
                truncate = partial(self._replicas[partition.topic_partition].truncate_to, offset)
                await self._change(partition, truncate, truncation.compare_next)

    async def _change(
        self,
        partition: FollowedPartition,
        change: Callable[[], Awaitable[object]],
        compare_next: LeaderEpoch | None,
    ) -> None:
        """Have a log truncated, restarted, rolled or flushed, and go on with it."""
        if not self._plan.is_current(partition):
            return
        ended = self._changing[partition.topic_partition] = trio.Event()
        try:
            await change()
        except RollDueError:  # of an earlier role, and about to end
            if self._plan.is_current(partition):
                self._plan.wait(partition, trio.current_time())
        except (CorruptBatchError, OffsetOverlapError) as error:
            logger.error("corrupt_answer", topic_partition=str(partition.topic_partition), error=str(error))
            if self._plan.is_current(partition):
                self._plan.wait(partition, trio.current_time())
        except StorageError as error:
            self._refused(partition, error, FollowerPhase.TRUNCATING)
        else:
            self._plan.go_on(partition, compare_next)
        finally:
            del self._changing[partition.topic_partition]
            ended.set()
            self._woken.set()
