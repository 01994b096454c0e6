"""A replica of a partition on this broker: its log, its role, its high watermark, and the requests that wait for it.

`Replicas` assigns the role by `lead`, `follow` and `resign`. A leader has a `Leadership`, which knows its followers; a
follower copies its leader's log. Without a role a replica does neither.

Invariants:

- `high_watermark` is the end of what consumers see, and goes back only where the log is truncated. A leader advances it
  up to what all in-sync replicas have (`LeaderState.committed`; with one replica the log end offset), but not past a
  record that the topic's `flush.messages` wants on its own disk first, and with `visibility=flushed` not past what is
  known to be on its disk; a flush that advances it is always due (decisions 0019, 0021). A follower takes the leader's.
- Consumers wait at `waiters` for the high watermark, followers at `follower_waiters` for the log end offset, acks=all
  for `committed`. An event or the end of the leadership wakes them; none of them polls.
- A failed disk takes the partition offline until the broker is restarted: nobody knows what the disk holds. A full disk
  refuses appends only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from pipeline.broker.cluster.view import NO_BROKER, PartitionView
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.leadership import Leadership
from pipeline.broker.replication.observer import LogObserver
from pipeline.broker.replication.waiters import Waiter
from pipeline.broker.runtime.disk_threads import DiskThreads
from pipeline.broker.settings.topic import LOG_APPEND_TIME, TopicSettings
from pipeline.errors import DamagedSegmentError, OffsetOutOfRangeError, RollDueError, StorageError
from pipeline.log.appends import AppendInfo, within_reach
from pipeline.log.flush_promise import promise_flushes
from pipeline.log.log_snapshot import LogSlice, SkipBudget
from pipeline.log.truncation import restart_at, truncate_to
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import MAX_INT64, NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.fetch import PartitionData
from pipeline.records.batch import BatchHeader, set_log_append_time, validate_for_append
from pipeline.settings import MAX_INT32

FLUSHED = "flushed"
START = Offset(0)
UP_TO_HIGH_WATERMARK = Offset(-1)
FLUSH_CHECK_MS = 1000
"""Period of the check for records that have waited for `flush.ms`. Shorter times need a timer."""


class Upkeep(Protocol):
    """Work that a partition leaves to its broker: flushes, checkpoints, changes of the ISR."""

    @property
    def in_sync(self) -> InSyncWatch:
        """The watch that collects partitions whose ISR may have to change."""

    @property
    def disks(self) -> DiskThreads:
        """Threads for calls that wait for a disk."""

    def flush_soon(self, partition: "Partition") -> None:
        """Have `flush_up_to` called with the log end offset."""

    def flush_in_time(self, partition: "Partition") -> None:
        """Have the records of the log flushed when `flush.ms` is over."""

    def promise_soon(self, partition: "Partition") -> None:
        """Have `settle_promise` called."""

    async def checkpoint_log_start(self, partition: "Partition") -> None:
        """Return once the partition's log start offset would survive a crash. Raises StorageError."""


@dataclass(slots=True, eq=False)
class Partition:
    """Replica on this broker. Its first `high_watermark` is the log start offset or the given one, if higher."""

    log: UnifiedLog
    settings: TopicSettings
    observer: LogObserver
    upkeep: Upkeep
    own_id: BrokerId
    topic_partition: TopicPartition = field(init=False)
    high_watermark: Offset = START
    leadership: Leadership | None = None
    leader: BrokerId = NO_BROKER
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    isr: tuple[BrokerId, ...] = ()
    waiters: dict[Waiter, None] = field(default_factory=dict)
    follower_waiters: dict[Waiter, None] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    messages_out: float = 0
    damage: str | None = None
    """Why a read found no batch where one must be; None until that happens."""
    nothing_new: PartitionData | None = None
    """The answer to the last consumer that had read all, kept by `fetch_reading`."""
    copier_epoch: int | None = None
    """Highest epoch of the copiers of a mirrored partition (-1: none has one); None until this leader knows it."""
    keeps_promise: bool = False
    """True while nothing is acknowledged before it is flushed, as the log has promised or is about to promise."""
    _unflushed_messages: int = 0
    _flushing: trio.Lock = field(default_factory=trio.Lock)
    _rolling: trio.Lock = field(default_factory=trio.Lock)

    def __post_init__(self) -> None:
        self.topic_partition = self.log.topic_partition
        self.high_watermark = max(self.high_watermark, self.log.log_start_offset)

    @property
    def problem(self) -> str | None:
        """A sentence on what is wrong with the log, None if nothing is. Lack of room is that of the log dir."""
        return str(self.log.failure) if self.log.failure is not None else self.damage

    # Roles

    @property
    def is_leader(self) -> bool:
        """True if this broker leads the partition."""
        return self.leadership is not None

    def leading(self) -> Leadership:
        """Return the leadership. Raises KafkaError (NOT_LEADER_OR_FOLLOWER) if another broker leads, or none."""
        if self.leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leadership

    def lead(self, view: PartitionView) -> None:
        """Lead from now on, in the leader epoch of the view. A leader in that epoch does as `update` says."""
        leadership = self.leadership
        if leadership is not None and view.leader_epoch <= self.leader_epoch:
            self.update(view)
            return
        self.log.begin_epoch(view.leader_epoch)
        self.copier_epoch = None  # another leader may have taken a newer one
        if leadership is None:
            leadership = self.leadership = Leadership(self, self.upkeep.in_sync, view)
        else:
            leadership.begin_epoch(view)
        self.leader, self.leader_epoch = self.own_id, view.leader_epoch
        leadership.apply_view(view)
        self.advance_high_watermark()

    def follow(self, view: PartitionView) -> None:
        """Follow the leader of the view, or wait for one."""
        self.resign()
        self.leader, self.leader_epoch, self.isr = view.leader, view.leader_epoch, view.isr

    def resign(self) -> None:
        """Give up leading or following, and wake all waiters if this broker led."""
        self.leader = NO_BROKER
        leadership, self.leadership = self.leadership, None
        self.copier_epoch = None
        if leadership is not None:
            leadership.end()
            self.wake_all()

    def update(self, view: PartitionView) -> None:
        """Take over replicas and ISR that the cluster reports for the present leader epoch."""
        if self.leadership is None:
            self.isr = view.isr
        elif view.leader_epoch == self.leader_epoch:
            self.leadership.update(view)

    def stop_waiting(self, waiter: Waiter) -> None:
        """Notify this waiter no more."""
        self.waiters.pop(waiter, None)
        self.follower_waiters.pop(waiter, None)

    def wake_all(self) -> None:
        """Have all waiters check again: the partition is closed or led elsewhere, or its disk failed."""
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.wake()

    def log_start_moved(self) -> None:
        """Notify all waiters that the log start offset has moved."""
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.arrived(0)

    # Appending and flushing

    @property
    def _is_flush_due(self) -> bool:
        return self._unflushed_messages >= (1 if self.keeps_promise else self.settings.flush_messages)

    @property
    def last_stable_offset(self) -> Offset:
        """The end of what consumers with `read_committed` see."""
        return min(self.high_watermark, self.log.last_stable_offset)

    @property
    def is_promise_due(self) -> bool:
        """True if the log must begin to promise flushes, or may stop."""
        return self.log.is_flushed_first != (self.settings.flush_messages == 1)

    async def settle_promise(self) -> None:
        """Have the log promise flushes, or end its promise, as the settings say. Raises StorageError.

        Flushes go before acknowledgements until the log has no promise any more, also if an error comes between.
        """
        while self.is_promise_due:
            promise = partial(promise_flushes, self.log, is_promised=not self.log.is_flushed_first)
            await self.upkeep.disks.run(self.log.directory.parent, promise)
        self.keeps_promise = self.log.is_flushed_first

    def awaits_flush(self, info: AppendInfo) -> bool:
        """Return True if what was appended must be on the disk before it is acknowledged.

        A duplicate may be of a batch whose flush is under way, or was lost with the process before.
        """
        if self._is_flush_due or not info.duplicate:
            return self._is_flush_due
        return self._flushing.locked() or (self.keeps_promise and self.log.recovery_point <= info.last_offset)

    def validate(self, records: memoryview, *, keep_offsets: bool) -> list[BatchHeader]:
        """Return the headers of the batches, which are sound and, but for copies, not too large.

        Raises CorruptBatchError.
        """
        max_batch_bytes = MAX_INT32 if keep_offsets else self.settings.max_message_bytes
        return validate_for_append(records, max_batch_bytes=max_batch_bytes, keep_offsets=keep_offsets)

    def append(self, records: memoryview, *, keep_offsets: bool, now_ms: int) -> AppendInfo:
        """Validate and append. Raises as `validate` and `append_valid`; KafkaError if this broker does not lead."""
        self.leading()
        headers = self.validate(records, keep_offsets=keep_offsets)
        return self.append_valid(records, headers, keep_offsets=keep_offsets, now_ms=now_ms)

    def append_valid(
        self, records: memoryview, headers: Sequence[BatchHeader], *, keep_offsets: bool, now_ms: int
    ) -> AppendInfo:
        """Append validated batches. With `keep_offsets` they are a copy and keep offsets and times.

        Raises OffsetOverlapError, OutOfOrderSequenceError, StaleProducerEpochError, StorageError, KafkaError
        (NOT_LEADER_OR_FOLLOWER); RollDueError if `roll` must be awaited first.
        """
        log, leadership = self.log, self.leading()
        is_stamped = self.settings.message_timestamp_type == LOG_APPEND_TIME and not keep_offsets
        if is_stamped:
            headers = _stamp(records, headers, now_ms)
        append = log.append_keeping_offsets if keep_offsets else log.append
        end_before = log.log_end_offset
        had_hidden_records = leadership.visible_end < end_before
        try:
            info = append(records, headers, self.leader_epoch, now_ms)
        except StorageError as error:
            self._refused(error)
            raise
        if not info.duplicate:
            messages = 0
            for header in info.headers:
                messages += header.record_count
            self.messages_in += messages
            self.bytes_in += len(records)
            leadership.hidden_bytes += len(records)
            self._await_flush(messages)
            self.observer.appended(self.topic_partition, info.headers, records, now_ms)
            if leadership.has_followers:
                leadership.appended(end_before, len(records))
            # Records that were hidden before wait for a flush, which advances the high watermark.
            if not (had_hidden_records or self._is_flush_due):
                self.advance_high_watermark()
        return info._replace(log_append_time_ms=now_ms) if is_stamped else info

    async def roll(self, due: RollDueError, now_ms: int) -> None:
        """Roll the segment that an append asked for; the repeated append may ask for another. Raises StorageError."""
        async with self._rolling:
            if not self.log.is_roll_due(due):
                return
            self.log.is_rolling = True
            try:
                await self.upkeep.disks.run(self.log.directory.parent, partial(self.log.roll, due, now_ms))
            except StorageError as error:
                self._refused(error)
                raise
            finally:
                self.log.is_rolling = False

    def _await_flush(self, messages: int) -> None:
        self._unflushed_messages += messages
        if self.settings.flush_ms < FLUSH_CHECK_MS:
            self.upkeep.flush_in_time(self)

    def advance_high_watermark(self) -> None:
        """Advance a leader's high watermark as far as the topic's settings let it."""
        leadership, settings = self.leadership, self.settings
        if leadership is None:
            return
        if settings.visibility != FLUSHED:
            leadership.advance_visible_end(self.log.log_end_offset)
        elif self.log.failure is None:
            leadership.advance_visible_end(self.log.recovery_point)
            is_flushed_by_nobody = settings.flush_messages == MAX_INT64 and settings.flush_ms == MAX_INT64
            if is_flushed_by_nobody and leadership.has_hidden_records:
                self.upkeep.flush_soon(self)

    def reconfigure(self, settings: TopicSettings) -> None:
        """Take over changed settings of the topic."""
        self.settings = settings
        if self.is_promise_due:
            self.keeps_promise = True
            self.upkeep.promise_soon(self)
        if not (self._is_flush_due or self._flushing.locked()):
            self.advance_high_watermark()

    async def delete_records(self, before: Offset) -> Offset:
        """Move the log start offset up to this offset, for good; -1 stands for the high watermark.

        Returns the log start offset. Raises OffsetOutOfRangeError beyond the high watermark, StorageError.
        """
        if before == UP_TO_HIGH_WATERMARK:
            before = self.high_watermark
        if before > self.high_watermark:
            raise OffsetOutOfRangeError(before, self.log.log_start_offset, self.high_watermark)
        log_start_offset = self.log.delete_records(before)
        await self.upkeep.checkpoint_log_start(self)
        self.log_start_moved()
        return log_start_offset

    def _refused(self, error: StorageError) -> None:
        if self.log.failure is not None:
            if self.leadership is not None:
                self.leadership.end_commit_waits(error)
            self.wake_all()

    # As a follower

    def append_fetched(
        self, records: memoryview, leader_high_watermark: Offset, leader_log_start_offset: Offset, now_ms: int
    ) -> AppendInfo | None:
        """Append whole batches with the leader's offsets; return None if there are none.

        Take over the leader's high watermark and log start offset. If `awaits_flush` is true, the caller must not fetch
        on before `flush_up_to` has returned: the next Fetch reports to the leader that the batches are kept.

        Raises CorruptBatchError, OffsetOverlapError, StorageError; RollDueError after it has appended what fits.
        """
        log, info = self.log, None
        headers = validate_for_append(records, max_batch_bytes=MAX_INT32, keep_offsets=True) if len(records) else ()
        for run, headers_of_run in within_reach(records, headers) if headers else ():
            try:
                info = log.append_copied(run, headers_of_run, now_ms)
            except StorageError as error:
                self._refused(error)
                raise
            self._await_flush(sum(header.record_count for header in headers_of_run))
            self.observer.appended(self.topic_partition, info.headers, run, now_ms)
        end_offset = log.log_end_offset
        self.high_watermark = max(self.high_watermark, min(leader_high_watermark, end_offset))
        if leader_log_start_offset > log.log_start_offset:
            log.delete_records(min(leader_log_start_offset, end_offset))
            self.high_watermark = max(self.high_watermark, log.log_start_offset)
        return info

    async def truncate_to(self, offset: Offset) -> bool:
        """Truncate the log to this offset; nothing may be appended meanwhile. Raises StorageError."""
        try:
            return await self.upkeep.disks.run(self.log.directory.parent, partial(truncate_to, self.log, offset))
        finally:
            self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
            self.observer.truncated(self.topic_partition)

    async def restart_at(self, offset: Offset) -> None:
        """Replace the log by an empty one that starts here; nothing may be appended meanwhile. Raises StorageError."""
        await self.upkeep.disks.run(self.log.directory.parent, partial(restart_at, self.log, offset))
        self.high_watermark = offset
        self.observer.truncated(self.topic_partition)

    async def flush_up_to(self, offset: Offset) -> None:
        """Return once everything before `offset` is on the disk. One flush serves all callers that wait.

        Raises StorageError; KafkaError (NOT_LEADER_OR_FOLLOWER) if the log was truncated meanwhile.
        """
        truncations = self.log.truncations
        while self.log.recovery_point < offset:
            async with self._flushing:
                if self.log.truncations != truncations:
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if self.log.recovery_point >= offset:
                    break
                counted, self._unflushed_messages = self._unflushed_messages, 0
                try:
                    await self.upkeep.disks.run(self.log.directory.parent, self.log.flush)
                except BaseException as error:
                    self._unflushed_messages += counted
                    if isinstance(error, StorageError):
                        self._refused(error)
                    raise
        if self.leadership is not None:
            # Flushed here, or by a flush of the whole log directory.
            self.leadership.advance_visible_end(self.log.recovery_point)
            if self.leadership.has_hidden_records and not self._is_flush_due:
                self.advance_high_watermark()

    def read(
        self,
        offset: Offset,
        max_bytes: int,
        *,
        must_progress: bool,
        up_to: Offset | None = None,
        skips: SkipBudget | None = None,
        waits: bool = False,
    ) -> LogSlice | None:
        """Return bytes from the batch that holds `offset` on, before `up_to` (else the high watermark).

        None at the end. The bytes may end within a batch. With `must_progress` the first batch is whole even if it
        exceeds `max_bytes`; without, there may be nothing (None). Raises OffsetOutOfRangeError, StorageError, and
        without `waits` SegmentClosedError if a file must be opened or read first.
        """
        end_offset = self.high_watermark if up_to is None else up_to
        if offset == end_offset and self.log.failure is None:
            return None
        try:
            found = self.log.read(offset, max_bytes, end_offset, skips, waits=waits)
        except DamagedSegmentError as error:
            self.damage = str(error)
            raise
        if found.region.size == 0 or (found.region.size > max_bytes and not must_progress):
            return None
        return found


def _stamp(records: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> list[BatchHeader]:
    stamped = []
    position = 0
    for header in headers:
        stamped.append(set_log_append_time(records, position, now_ms))
        position += header.size_bytes
    return stamped
