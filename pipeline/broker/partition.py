"""A replica of a partition on this broker: its log, its role, what may be read of it, and who waits.

Roles: `lead` and `follow` are told by whoever follows the cluster, `resign` ends both. A leader appends and knows its
followers (`replication/replica_state.py`); a follower copies what its leader has. Without a role it does neither.

Invariants:

- `high_watermark` is the end of what consumers see, and never goes back but where the log is cut. A leader moves it up
  to what all replicas in sync have (`ReplicaState.committed`; with one replica the log end offset), but not past a
  record that the topic's `flush.messages` wants on its own disk first, and with `visibility=flushed` not past what is
  known to be on its disk; somebody sees to it that this moves (decisions 0019, 0021). A follower takes the leader's.
- Consumers wait at `waiters` for the high watermark, followers at `follower_waiters` for the log end offset, acks=all
  for `committed`. Whoever waits is woken by what it waits for, or by the end of the leadership, never by looking again.
- A failed disk takes the partition offline until the broker is started again: nobody knows what it holds. A full disk
  refuses appends alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from pipeline.broker.cluster_view import NO_BROKER, PartitionView
from pipeline.broker.observer import LogObserver
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.replica_state import IsrChange, ReplicaState
from pipeline.broker.topic_settings import LOG_APPEND_TIME, MAX_INT32, TopicSettings
from pipeline.broker.waiters import CommitWait, Waiter
from pipeline.errors import OffsetOutOfRangeError, PipelineError, StorageError
from pipeline.log.leader_epochs import EpochStart
from pipeline.log.placing import AppendInfo
from pipeline.log.reading import LogSlice
from pipeline.log.segment import Segment
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import BatchHeader, set_log_append_time, validate_for_append
from pipeline.settings import MAX_INT64

FLUSHED = "flushed"
START = Offset(0)
UP_TO_HIGH_WATERMARK = Offset(-1)


class Upkeep(Protocol):
    """What a partition leaves to whoever keeps it."""

    @property
    def in_sync(self) -> InSyncWatch:
        """Who may be in sync with it, and who writes that down."""
        ...

    def flush_soon(self, partition: "Partition") -> None:
        """See to it that `flush_up_to` is called with the log end offset."""
        ...

    async def checkpoint_log_start(self, partition: "Partition") -> None:
        """Return once its log start offset would survive a crash. Raises StorageError."""
        ...


@dataclass(slots=True, eq=False)
class Partition:
    """One replica. Without a `high_watermark` to begin with it is the log start offset."""

    log: UnifiedLog
    settings: TopicSettings
    observer: LogObserver
    upkeep: Upkeep
    own_id: BrokerId
    high_watermark: Offset = START
    is_leader: bool = False
    leader: BrokerId = NO_BROKER
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    isr: tuple[BrokerId, ...] = ()
    has_followers: bool = False
    """Whether it leads other replicas."""
    waiters: dict[Waiter, None] = field(default_factory=dict)
    follower_waiters: dict[Waiter, None] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    messages_out: float = 0
    refusal: str | None = None
    """Why the disk took nothing of the last append; None once it takes something again."""
    _state: ReplicaState | None = None
    _replication_factor: int = 1
    _commit_waits: dict[CommitWait, None] = field(default_factory=dict)
    _starts_told: trio.Event = field(default_factory=trio.Event)
    _shown_end: Offset = START
    """As a leader: the end of what its own disk lets consumers see."""
    _hidden_bytes: int = 0
    _unflushed_messages: int = 0
    _flushing: trio.Lock = field(default_factory=trio.Lock)

    def __post_init__(self) -> None:
        self.high_watermark = max(self.high_watermark, self.log.log_start_offset)

    # Roles

    def lead(self, view: PartitionView, now_ms: int) -> None:
        """Lead from now on, in the epoch of the view; news of this very epoch are taken as by `update`."""
        if view.leader_epoch <= self.leader_epoch and self.is_leader:
            self.update(view, now_ms)
            return
        self.log.begin_epoch(view.leader_epoch)
        end_offset, watch = self.log.log_end_offset, self.upkeep.in_sync
        committed = self.high_watermark if self._state is None else max(self._state.committed, self.high_watermark)
        self._state = ReplicaState.begin(
            self.own_id,
            view.leader_epoch,
            replicas=view.replicas,
            isr=view.isr,
            version=view.state_version,
            committed=committed,
            log_end_offset=end_offset,
            max_lag_ms=watch.max_lag_ms,
            may_join=watch.may_join,
            now_ms=now_ms,
        )
        if not self.is_leader:
            self._shown_end = self.high_watermark
            self._hidden_bytes = self.log.size_bytes
        self.is_leader, self.leader, self.leader_epoch = True, self.own_id, view.leader_epoch
        self._replicas_changed(view)
        self._isr_changed(now_ms)
        self.show()

    def follow(self, view: PartitionView) -> None:
        """Follow the leader of the view, or wait for one."""
        self.resign()
        self.leader, self.leader_epoch, self.isr = view.leader, view.leader_epoch, view.isr

    def resign(self) -> None:
        """Neither lead nor follow; those who wait are told."""
        self.leader = NO_BROKER
        if self.is_leader:
            self.is_leader = self.has_followers = False
            self._state = None
            self._end_commit_waits(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            self.wake_all()

    def update(self, view: PartitionView, now_ms: int) -> None:
        """The cluster says so of the present leader epoch: other replicas, another ISR."""
        state = self._state
        if state is None:
            self.isr = view.isr
        elif view.leader_epoch == self.leader_epoch:
            if not self.has_followers:
                state.committed = self.log.log_end_offset
            state.take(view.replicas, view.isr, view.state_version, now_ms)
            self._replicas_changed(view)
            self._isr_changed(now_ms)

    def _replicas_changed(self, view: PartitionView) -> None:
        assert self._state is not None
        self._replication_factor = len(view.replicas) - len(view.adding)
        self.has_followers = bool(self._state.followers)

    def _isr_changed(self, now_ms: int) -> None:
        assert self._state is not None
        self.isr = self._state.isr
        if self.is_under_min_isr:
            self._end_commit_waits(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        if len(self.isr) <= len(self._state.followers):
            self.upkeep.in_sync.look_at(self.topic_partition)
        self.look_again(now_ms)

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica of it, led here, is not in sync."""
        return self.is_leader and len(self.isr) < self._replication_factor

    @property
    def is_under_min_isr(self) -> bool:
        """Whether it is led here and takes nothing of acks=all."""
        return self.is_leader and self.has_followers and len(self.isr) < self._min_isr

    @property
    def is_at_min_isr(self) -> bool:
        """Whether it is led here and one replica less in sync would end acks=all."""
        return self.is_leader and len(self.isr) == self._min_isr

    @property
    def _min_isr(self) -> int:
        state = self._state
        return 1 if state is None else state.effective_min_isr(self.settings.min_insync_replicas)

    @property
    def topic_partition(self) -> TopicPartition:
        """Which partition."""
        return self.log.topic_partition

    @property
    def problem(self) -> str | None:
        """What is wrong with its disk, None if nothing is."""
        return str(self.log.failure) if self.log.failure is not None else self.refusal

    @property
    def _is_flush_due(self) -> bool:
        return self._unflushed_messages >= self.settings.flush_messages

    @property
    def is_hiding(self) -> bool:
        """Whether it leads and its own disk keeps consumers from seeing some records."""
        return self._shown_end < self.log.log_end_offset and self.is_leader

    @property
    def is_behind_epoch(self) -> bool:
        """Whether a new leader does not know yet that all it began with is committed: others may have shown it."""
        return self.has_followers and self._state is not None and self._state.committed < self._state.epoch_start

    @property
    def last_stable_offset(self) -> Offset:
        """The end of what readers of committed records see."""
        return min(self.high_watermark, self.log.last_stable_offset)

    def end_offset_for(self, epoch: LeaderEpoch) -> EpochStart:
        """The newest epoch that is not above this one, and where it ends; (-1, -1) for one that is not known."""
        return self.log.end_offset_for(epoch)

    def awaits_flush(self, info: AppendInfo) -> bool:
        """Whether what was appended must be on the disk before it is acknowledged."""
        return self._is_flush_due or (info.duplicate and self._flushing.locked())

    def validate(self, records: memoryview, *, keep_offsets: bool) -> list[BatchHeader]:
        """The headers of the batches, which are sound and, but for copies, not too large. Raises CorruptBatchError."""
        max_batch_bytes = MAX_INT32 if keep_offsets else self.settings.max_message_bytes
        return validate_for_append(records, max_batch_bytes=max_batch_bytes, keep_offsets=keep_offsets)

    def append(self, records: memoryview, *, keep_offsets: bool, now_ms: int) -> AppendInfo:
        """Validate and append. Raises what `validate` and `append_valid` raise, KafkaError if it does not lead."""
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        headers = self.validate(records, keep_offsets=keep_offsets)
        return self.append_valid(records, headers, keep_offsets=keep_offsets, now_ms=now_ms)

    def append_valid(
        self, records: memoryview, headers: Sequence[BatchHeader], *, keep_offsets: bool, now_ms: int
    ) -> AppendInfo:
        """Append validated batches. With `keep_offsets` they are a copy and keep offsets and times.

        Raises OffsetOverlapError, OutOfOrderSequenceError, StaleProducerEpochError, StorageError.
        """
        log = self.log
        is_stamped = self.settings.message_timestamp_type == LOG_APPEND_TIME and not keep_offsets
        if is_stamped:
            headers = _stamp(records, headers, now_ms)
        append = log.append_keeping_offsets if keep_offsets else log.append
        was_hiding, end_before = self.is_hiding, log.log_end_offset
        try:
            info = append(records, headers, self.leader_epoch, now_ms)
        except StorageError as error:
            self._refused(error)
            raise
        self.refusal = None
        if not info.duplicate:
            self._count(info, len(records))
            if self.has_followers:
                self._tell_followers(end_before, len(records), now_ms)
            if not (was_hiding or self._is_flush_due):
                self.show()
        return info._replace(log_append_time_ms=now_ms) if is_stamped else info

    def _count(self, info: AppendInfo, size_bytes: int) -> None:
        messages = 0
        for header in info.headers:
            messages += header.record_count
        self.messages_in += messages
        self.bytes_in += size_bytes
        self._unflushed_messages += messages
        self._hidden_bytes += size_bytes
        self.observer.appended(self.log.topic_partition, info.headers)

    def _tell_followers(self, end_before: Offset, size_bytes: int, now_ms: int) -> None:
        state = self._state
        assert state is not None
        state.appended(end_before, now_ms)
        if state.is_alone:
            self._advance(now_ms)
        for waiter in self.follower_waiters:
            waiter.arrived(size_bytes)

    def show(self) -> None:
        """Move the high watermark as far as the topic's settings let it."""
        if self.settings.visibility == FLUSHED:
            self.show_flushed()
        else:
            self._show_up_to(self.log.log_end_offset)

    def show_flushed(self) -> None:
        """Move the high watermark of a topic with `visibility=flushed`; for a look from time to time."""
        if self.settings.visibility != FLUSHED or not self.is_hiding or self.log.failure is not None:
            return
        if self.log.recovery_point > self._shown_end:
            self._show_up_to(self.log.recovery_point)
        if self.is_hiding and self.settings.flush_messages == MAX_INT64 and self.settings.flush_ms == MAX_INT64:
            self.upkeep.flush_soon(self)

    def reconfigure(self, settings: TopicSettings) -> None:
        """The topic's settings have changed."""
        self.settings = settings
        if not (self._is_flush_due or self._flushing.locked()):
            self.show()

    def take_expired(self, now_ms: int) -> Sequence[Segment]:
        """As `UnifiedLog.take_expired`."""
        expired = self.log.take_expired(self.high_watermark, now_ms)
        if expired:
            self._start_moved()
        return expired

    async def delete_records(self, before: Offset) -> Offset:
        """Let no record before this offset be read any more, for good; -1 stands for the high watermark.

        Returns the log start offset. Raises OffsetOutOfRangeError beyond the high watermark, StorageError.
        """
        if before == UP_TO_HIGH_WATERMARK:
            before = self.high_watermark
        if before > self.high_watermark:
            raise OffsetOutOfRangeError(before, self.log.log_start_offset, self.high_watermark)
        log_start_offset = self.log.delete_records(before)
        await self.upkeep.checkpoint_log_start(self)
        self._start_moved()
        return log_start_offset

    def _start_moved(self) -> None:
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.arrived(0)

    def _show_up_to(self, offset: Offset) -> None:
        if not self.is_leader:
            return
        self._shown_end = offset = max(self._shown_end, offset)
        if self._state is not None and self.has_followers and self._state.committed < offset:
            offset = self._state.committed
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        size_bytes = self._hidden_bytes
        if offset >= self.log.log_end_offset:
            self._hidden_bytes = 0
        for waiter in self.waiters:
            waiter.arrived(size_bytes)
        for waiter in self.follower_waiters:
            waiter.arrived(0)

    def _refused(self, error: StorageError) -> None:
        self.refusal = str(error)
        if self.log.failure is not None:
            self._end_commit_waits(error)
            self.wake_all()

    def stop_waiting(self, waiter: Waiter) -> None:
        """Tell it nothing any more."""
        self.waiters.pop(waiter, None)
        self.follower_waiters.pop(waiter, None)

    def wake_all(self) -> None:
        """Let all who wait look again: the partition is closed or led elsewhere, or its disk failed."""
        self._tell_starts()
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.wake()

    # As a leader of followers

    def check_in_sync(self) -> None:
        """Raise KafkaError (NOT_ENOUGH_REPLICAS) if too few replicas are in sync for acks=all."""
        if self.is_under_min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replicas are in sync, min.insync.replicas {self._min_isr}",
            )

    def commit_wait(self, end_offset: Offset) -> CommitWait | None:
        """What to wait for until all before `end_offset` is committed; None if it is."""
        state = self._state
        if state is None or not self.has_followers or state.committed >= end_offset:
            return None
        wait = CommitWait(end_offset, self._leave)
        self._commit_waits[wait] = None
        return wait

    def _leave(self, wait: CommitWait) -> None:
        self._commit_waits.pop(wait, None)

    async def wait_committed(self, end_offset: Offset, deadline: float) -> None:
        """Return once all before `end_offset` is committed.

        Raises KafkaError (NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT), StorageError.
        """
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        wait = self.commit_wait(end_offset)
        if wait is not None:
            await wait.wait(deadline)

    def _end_commit_waits(self, error: PipelineError | None) -> None:
        """With an error all of them end, without one those whose records are committed."""
        committed = None if self._state is None or error is not None else self._state.committed
        for wait in [wait for wait in self._commit_waits if committed is None or wait.end_offset <= committed]:
            del self._commit_waits[wait]
            wait.end(error)

    def follower_fetched(
        self, replica: BrokerId, offset: Offset, log_start_offset: Offset, now_ms: int, *, has_epoch: bool
    ) -> None:
        """A replica has all before `offset`; `has_epoch`: it knows the leader epoch. Raises KafkaError."""
        state = self._state
        if state is None or replica not in state.followers:
            # It may know more of the cluster than this broker, or less: it is to ask again.
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if state.followers[replica].log_start_offset != log_start_offset:
            self._tell_starts()
        if state.fetched(replica, offset, log_start_offset, self.log.log_end_offset, now_ms):
            self.upkeep.in_sync.look_at(self.topic_partition)
        self._advance(now_ms)

    def knows(self, replica: BrokerId) -> bool:
        """Whether this follower has told how far its log goes, since it was last let out of sight."""
        return self._state is not None and replica in self._state.followers and self._state.knows(replica)

    def look_again(self, now_ms: int) -> None:
        """Who is alive may have changed, or who is in sync. Followers that are not known well are to tell again."""
        if self._state is not None:
            self._state.forget_absent(self.upkeep.in_sync.view.brokers)
            for waiter in self.follower_waiters:
                waiter.arrived(0)
        self._tell_starts()
        self._advance(now_ms)

    def _tell_starts(self) -> None:
        self._starts_told.set()
        self._starts_told = trio.Event()

    def _advance(self, now_ms: int) -> None:
        state = self._state
        if state is not None and state.advance(self.log.log_end_offset, now_ms, self.settings.min_insync_replicas):
            self._end_commit_waits(None)
            self._show_up_to(self._shown_end)

    def isr_change(self, now_ms: int) -> IsrChange | None:
        """The ISR as it should be, if it is another one; it is under way from now on until it is ended."""
        return None if self._state is None else self._state.begin_change(self.log.log_end_offset, now_ms)

    def end_isr_change(self, change: IsrChange, version: int | None, now_ms: int) -> None:
        """A change was written, and the state has this version now; None: it was refused."""
        if self._state is not None and self._state.end_change(change, version):
            self._isr_changed(now_ms)

    @property
    def low_watermark(self) -> Offset:
        """The lowest log start offset of all its live replicas, -1 while one has not told its own."""
        start_offset = self.log.log_start_offset
        return start_offset if self._state is None else self._state.low_watermark(start_offset)

    async def wait_deleted(self, before: Offset, deadline: float) -> None:
        """Return once no live replica has records before this offset.

        Raises KafkaError: REQUEST_TIMED_OUT at the deadline, NOT_LEADER_OR_FOLLOWER if the leadership ends before.
        """
        with trio.move_on_at(deadline):
            while self.is_leader and self.low_watermark < before:
                await self._starts_told.wait()
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.low_watermark < before:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the other replicas did not follow in time")

    # As a follower

    def append_fetched(
        self, records: memoryview, leader_high_watermark: Offset, leader_log_start_offset: Offset, now_ms: int
    ) -> AppendInfo | None:
        """Append whole batches as the leader has them, none if there are none, and take its offsets.

        If `awaits_flush` says so, nothing is to be fetched from behind them before `flush_up_to` has returned: the next
        fetch tells the leader that they are kept. Raises CorruptBatchError, OffsetOverlapError, StorageError.
        """
        log, info = self.log, None
        if len(records):
            headers = validate_for_append(records, max_batch_bytes=MAX_INT32, keep_offsets=True)
            try:
                info = log.append_copied(records, headers, now_ms)
            except StorageError as error:
                self._refused(error)
                raise
            self.refusal = None
            self._unflushed_messages += sum(header.record_count for header in headers)
            self.observer.appended(log.topic_partition, info.headers)
        end_offset = log.log_end_offset
        self.high_watermark = max(self.high_watermark, min(leader_high_watermark, end_offset))
        if leader_log_start_offset > log.log_start_offset:
            log.delete_records(min(leader_log_start_offset, end_offset))
            self.high_watermark = max(self.high_watermark, log.log_start_offset)
        return info

    async def truncate_to(self, offset: Offset) -> bool:
        """Drop all from this offset on, as `UnifiedLog.truncate_to`, while nothing is appended. Raises StorageError."""
        try:
            return await trio.to_thread.run_sync(self.log.truncate_to, offset)
        finally:
            self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
            self.observer.truncated(self.topic_partition)

    async def restart_at(self, offset: Offset) -> None:
        """Begin anew with an empty log that starts here, while nothing is appended. Raises StorageError."""
        await trio.to_thread.run_sync(self.log.restart_at, offset)
        self.high_watermark = offset
        self.observer.truncated(self.topic_partition)

    async def flush_up_to(self, offset: Offset) -> None:
        """Return once everything before `offset` is on the disk. One flush serves all who wait. Raises StorageError."""
        while self.log.recovery_point < offset:
            async with self._flushing:
                if self.log.recovery_point >= offset:
                    return
                counted, self._unflushed_messages = self._unflushed_messages, 0
                try:
                    await trio.to_thread.run_sync(self.log.flush)
                except BaseException as error:
                    self._unflushed_messages += counted
                    if isinstance(error, StorageError):
                        self._refused(error)
                    raise
                self._show_up_to(self.log.recovery_point)
                if self.is_hiding and not self._is_flush_due:
                    self.show()

    def read(
        self, offset: Offset, max_bytes: int, *, must_progress: bool, up_to: Offset | None = None
    ) -> LogSlice | None:
        """Bytes from the batch that holds `offset` on, before `up_to` (else the high watermark); None at the end. They
        may end within a batch.

        With `must_progress` the first batch is whole even if it exceeds `max_bytes`; without, there may be nothing.
        Raises OffsetOutOfRangeError, StorageError.
        """
        end_offset = self.high_watermark if up_to is None else up_to
        if offset == end_offset and self.log.failure is None:
            return None
        found = self.log.read(offset, max_bytes, end_offset)
        if found.region.size == 0 or (found.region.size > max_bytes and not must_progress):
            return None
        return found

    def find_timestamp(self, timestamp: int | None) -> tuple[int, Offset] | None:
        """Time and offset of the first record at or after a time, or (None) of the newest one. Raises StorageError."""
        newest = self.log.max_timestamp
        if timestamp is None and newest < 0:
            return None
        return self.log.offset_for_timestamp(newest if timestamp is None else timestamp)


def _stamp(records: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> list[BatchHeader]:
    stamped = []
    position = 0
    for header in headers:
        stamped.append(set_log_append_time(records, position, now_ms))
        position += header.size_bytes
    return stamped
