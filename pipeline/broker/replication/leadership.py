"""Leadership of a replica: tracks the followers, advances the committed end and the high watermark, wakes waiters.

A `Leadership` lives exactly as long as its broker leads the partition, through one leader epoch or several. Invariants:

- At the end of a leadership all waiting writes end with an error: nobody knows whether their records will be committed.
- `advance_visible_end` alone moves a leader's high watermark: up to the lower of what is committed and `visible_end`.
"""

from collections.abc import Container
from dataclasses import InitVar, dataclass, field
from typing import Protocol

import trio

from pipeline.broker.cluster.view import PartitionView
from pipeline.broker.replication.in_sync_replicas import IsrChange, LeaderState
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.waiters import CommitWait, Waiter
from pipeline.broker.settings.topic import TopicSettings
from pipeline.errors import PipelineError
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import BrokerId, Offset
from pipeline.net.signals import Signal
from pipeline.protocol.errors import ErrorCode, KafkaError


class LedReplica(Protocol):
    """A replica as its leadership uses it. `waiters` wait for the high watermark, `follower_waiters` for records."""

    log: UnifiedLog
    settings: TopicSettings
    own_id: BrokerId
    high_watermark: Offset
    isr: tuple[BrokerId, ...]
    waiters: dict[Waiter, None]
    follower_waiters: dict[Waiter, None]


@dataclass(slots=True, eq=False)
class Leadership:
    """The leadership of one replica, in the leader epoch of `view`. The caller must call `apply_view` at once."""

    replica: LedReplica
    watch: InSyncWatch
    view: InitVar[PartitionView]
    state: LeaderState = field(init=False)
    has_followers: bool = False
    """True if there are other replicas."""
    visible_end: Offset = field(init=False)
    """The offset up to which this leader's own disk lets consumers see records."""
    hidden_bytes: int = field(init=False)
    """Upper bound of the bytes that become visible when the high watermark moves."""
    _replication_factor: int = 1
    _commit_waits: dict[CommitWait, None] = field(default_factory=dict)
    _log_starts: Signal = field(default_factory=Signal)
    _is_over: bool = False

    def __post_init__(self, view: PartitionView) -> None:
        self.visible_end, self.hidden_bytes = self.replica.high_watermark, self.replica.log.snapshot.size_bytes
        self._begin_state(view, self.replica.high_watermark)

    def _begin_state(self, view: PartitionView, committed: Offset) -> None:
        self.state = LeaderState(
            own=self.replica.own_id,
            leader_epoch=view.leader_epoch,
            replicas=view.replicas,
            isr=view.isr,
            version=view.state_version,
            committed=committed,
            epoch_start=self.replica.log.log_end_offset,
            max_lag_s=self.watch.max_lag_s,
            may_join=self.watch.may_join,
            epoch_of=self.watch.epoch_of,
            now_s=trio.current_time(),
        )

    def begin_epoch(self, view: PartitionView) -> None:
        """Lead on in the leader epoch of the view. Fetches of an earlier epoch do not count."""
        self._begin_state(view, max(self.state.committed, self.replica.high_watermark))

    def apply_view(self, view: PartitionView) -> None:
        """Act on the replicas and the ISR of the view, which `state` has."""
        self._replication_factor = len(view.origin_replicas)
        self.has_followers = bool(self.state.followers)
        self._isr_changed()

    def update(self, view: PartitionView) -> None:
        """Take over replicas and ISR that the cluster reports for the present leader epoch."""
        if not self.has_followers:
            # Without followers `append` leaves `committed` behind; it must not lag once there are some.
            self.state.committed = self.replica.log.log_end_offset
        self.state.take(view.replicas, view.isr, view.state_version, trio.current_time())
        self.apply_view(view)

    def end(self) -> None:
        """End all waits for commits and log start offsets."""
        self._is_over = True
        self.end_commit_waits(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._log_starts.notify()

    # The ISR

    def _isr_changed(self) -> None:
        self.replica.isr = self.state.isr
        if self.is_under_min_isr:
            self.end_commit_waits(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        if len(self.state.isr) <= len(self.state.followers):  # the leader is in the ISR: some follower is not
            self.watch.look_at(self.replica.log.topic_partition)
        self.recheck_followers()

    @property
    def in_sync_count(self) -> int:
        """Number of members of the ISR that keep up. The others leave it as soon as ZooKeeper takes the change."""
        return len(self.state.isr) - len(self.state.lagging(self.replica.log.log_end_offset, trio.current_time()))

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica is not in sync, or does not keep up."""
        return self.in_sync_count < self._replication_factor

    @property
    def lacks_min_isr(self) -> bool:
        """True if fewer replicas keep up than the topic wants, also while the others cannot leave the ISR."""
        return self.has_followers and self.in_sync_count < self._min_isr

    @property
    def is_under_min_isr(self) -> bool:
        """True if writes with acks=all are refused."""
        return self.has_followers and len(self.state.isr) < self._min_isr

    @property
    def is_at_min_isr(self) -> bool:
        """True if writes with acks=all would be refused with one in-sync replica less."""
        return self.in_sync_count == self._min_isr

    @property
    def _min_isr(self) -> int:
        return self.state.effective_min_isr(self.replica.settings.min_insync_replicas)

    @property
    def is_behind_epoch(self) -> bool:
        """True until a new leader knows that all records that it began with are committed (KIP-207)."""
        return self.has_followers and self.state.committed < self.state.epoch_start

    def check_in_sync(self) -> None:
        """Raise KafkaError (NOT_ENOUGH_REPLICAS) if too few replicas are in sync for acks=all."""
        if self.is_under_min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.state.isr)} replicas are in sync, min.insync.replicas {self._min_isr}",
            )

    def isr_change(self) -> IsrChange | None:
        """Begin a change of the ISR and return it, None if none is due. `end_isr_change` ends it."""
        now_s = trio.current_time()
        self._advance_committed(now_s)  # `committed` may have waited for a follower that fell silent
        return self.state.begin_change(self.replica.log.log_end_offset, now_s)

    def end_isr_change(self, change: IsrChange, version: int | None) -> None:
        """End a change that was written with this version, or (None) refused while the state is still what it was."""
        if self.state.end_change(change, version):
            self._isr_changed()

    # Followers

    def follower_fetched(
        self, replica: BrokerId, offset: Offset, log_start_offset: Offset, *, broker_epoch: int, has_epoch: bool
    ) -> None:
        """Note that a replica has all before `offset`; `has_epoch`: its Fetch has a leader epoch. Raises KafkaError.

        A Fetch of another broker epoch than the one known here does not count (`LeaderState.counts`): the replica is
        asked again once its registration is seen.
        """
        state = self.state
        if replica not in state.followers:
            # The replica may know more of the cluster than this broker, or less: either way it must ask again.
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not state.counts(replica, broker_epoch):
            return
        if state.followers[replica].log_start_offset != log_start_offset:
            self._log_starts.notify()
        if offset < state.followers[replica].log_end_offset:
            self._ask_followers()  # this Fetch may be a late one of a former life of the replica
        now_s, end_offset = trio.current_time(), self.replica.log.log_end_offset
        if state.fetched(replica, offset, log_start_offset, end_offset, now_s, broker_epoch=broker_epoch):
            self.watch.look_at(self.replica.log.topic_partition)
        self._advance_committed(now_s)

    def recheck_followers(self, unchanged: Container[BrokerId] | None = None) -> None:
        """Act on a change of the live brokers or the ISR. Followers that are not `unchanged` must fetch again.

        `unchanged`: brokers that are alive, with the same broker epoch as before (None: all that are alive).
        """
        self.state.forget_absent(self.watch.view.brokers if unchanged is None else unchanged)
        self._ask_followers()
        self._log_starts.notify()
        self._advance_committed(trio.current_time())

    def _ask_followers(self) -> None:
        """Answer the Fetches that wait, so that each follower sends the next one."""
        for waiter in self.replica.follower_waiters:
            waiter.arrived(0)

    # Commits

    def appended(self, end_before: Offset, size_bytes: int) -> None:
        """Note that the log has grown, and wake followers that wait for records."""
        now_s = trio.current_time()
        self.state.appended(end_before, now_s)
        if self.state.is_alone:
            self._advance_committed(now_s)
        for waiter in self.replica.follower_waiters:
            waiter.arrived(size_bytes)

    def commit_wait(self, end_offset: Offset) -> CommitWait | None:
        """Return a wait for the commit of all before `end_offset`; None if it is committed."""
        if not self.has_followers or self.state.committed >= end_offset:
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
        wait = self.commit_wait(end_offset)
        if wait is not None:
            await wait.wait(deadline)

    def end_commit_waits(self, error: PipelineError | None = None) -> None:
        """End every waiting write with `error`; without an error, end those whose records are committed."""
        committed = self.state.committed
        for wait in [wait for wait in self._commit_waits if error is not None or wait.end_offset <= committed]:
            del self._commit_waits[wait]
            wait.end(error)

    def _advance_committed(self, now_s: float) -> None:
        if self.state.advance(self.replica.log.log_end_offset, now_s, self.replica.settings.min_insync_replicas):
            self.end_commit_waits()
            self.advance_visible_end(self.visible_end)

    def advance_visible_end(self, offset: Offset) -> None:
        """Advance the high watermark up to `offset`, as far as it is committed, and wake the waiters."""
        replica = self.replica
        self.visible_end = offset = max(self.visible_end, offset)
        if self.has_followers and self.state.committed < offset:
            offset = self.state.committed
        if offset <= replica.high_watermark:
            return
        replica.high_watermark = offset
        size_bytes = self.hidden_bytes
        if offset >= replica.log.log_end_offset:
            self.hidden_bytes = 0
        for waiter in replica.waiters:
            waiter.arrived(size_bytes)
        self._ask_followers()

    @property
    def has_hidden_records(self) -> bool:
        """True if the leader's own disk keeps consumers from seeing some records."""
        return self.visible_end < self.replica.log.log_end_offset

    # Log start offsets

    @property
    def low_watermark(self) -> Offset:
        """The lowest log start offset of all live replicas, -1 while one has not reported its own."""
        return self.state.low_watermark(self.replica.log.log_start_offset)

    async def wait_deleted(self, before: Offset, deadline: float) -> None:
        """Return once no live replica has records before this offset.

        Raises KafkaError: REQUEST_TIMED_OUT at the deadline, NOT_LEADER_OR_FOLLOWER if the leadership ends before.
        """
        with trio.move_on_at(deadline):
            while not self._is_over and self.low_watermark < before:
                await self._log_starts.wait()
        if self._is_over:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.low_watermark < before:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the other replicas did not follow in time")
