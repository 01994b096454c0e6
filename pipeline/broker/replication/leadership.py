"""The role of a replica: a leader knows its followers, what is committed and who waits; a follower knows its leader.

What the log holds and what of it may be read is the business of `Partition`, which is made of this. Invariants:

- There is a `ReplicaState` exactly while this broker leads. Nothing of it outlives the leadership, and whoever waited
  for something to be committed is told that nobody knows whether it will be.
- `_show_up_to` alone moves a leader's high watermark: up to the lower of what is committed and what the leader's own
  disk lets consumers see (`_shown_end`).
"""

from abc import ABC, abstractmethod
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Protocol

import trio

from pipeline.broker.cluster.view import NO_BROKER, PartitionView
from pipeline.broker.replication.in_sync_replicas import IsrChange, ReplicaState
from pipeline.broker.replication.in_sync_watch import InSyncWatch
from pipeline.broker.replication.observer import LogObserver
from pipeline.broker.replication.waiters import CommitWait, Waiter
from pipeline.broker.settings.topic import TopicSettings
from pipeline.errors import PipelineError
from pipeline.log.unified_log import UnifiedLog
from pipeline.model import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset, TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError

START = Offset(0)


class Keeper(Protocol):
    """Who keeps a replica."""

    @property
    def in_sync(self) -> InSyncWatch:
        """Who may be in sync with it, and who writes that down."""
        ...


@dataclass(slots=True, eq=False)
class ReplicaRole(ABC):
    """The role of one replica. Without a `high_watermark` to begin with it is the log start offset."""

    log: UnifiedLog
    settings: TopicSettings
    observer: LogObserver
    upkeep: Keeper
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
    _state: ReplicaState | None = None
    _replication_factor: int = 1
    _commit_waits: dict[CommitWait, None] = field(default_factory=dict)
    _starts_told: trio.Event = field(default_factory=trio.Event)
    _shown_end: Offset = START
    """As a leader: the end of what its own disk lets consumers see."""
    _hidden_bytes: int = 0

    def __post_init__(self) -> None:
        self.high_watermark = max(self.high_watermark, self.log.log_start_offset)

    @property
    def topic_partition(self) -> TopicPartition:
        """Which partition."""
        return self.log.topic_partition

    @abstractmethod
    def show(self) -> None:
        """Move the high watermark as far as the topic's settings let it."""

    # Roles

    def lead(self, view: PartitionView) -> None:
        """Lead from now on, in the epoch of the view; news of this very epoch are taken as by `update`."""
        if view.leader_epoch <= self.leader_epoch and self.is_leader:
            self.update(view)
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
            max_lag_s=watch.max_lag_s,
            may_join=watch.may_join,
            epoch_of=watch.epoch_of,
            now_s=trio.current_time(),
        )
        if not self.is_leader:
            self._shown_end = self.high_watermark
            self._hidden_bytes = self.log.size_bytes
        self.is_leader, self.leader, self.leader_epoch = True, self.own_id, view.leader_epoch
        self._replicas_changed(view)
        self._isr_changed()
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

    def update(self, view: PartitionView) -> None:
        """The cluster says so of the present leader epoch: other replicas, another ISR."""
        state = self._state
        if state is None:
            self.isr = view.isr
        elif view.leader_epoch == self.leader_epoch:
            if not self.has_followers:
                state.committed = self.log.log_end_offset
            state.take(view.replicas, view.isr, view.state_version, trio.current_time())
            self._replicas_changed(view)
            self._isr_changed()

    def _replicas_changed(self, view: PartitionView) -> None:
        assert self._state is not None
        self._replication_factor = len(view.origin_replicas)
        self.has_followers = bool(self._state.followers)

    def _isr_changed(self) -> None:
        assert self._state is not None
        self.isr = self._state.isr
        if self.is_under_min_isr:
            self._end_commit_waits(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        if len(self.isr) <= len(self._state.followers):
            self.upkeep.in_sync.look_at(self.topic_partition)
        self.look_again()

    @property
    def in_sync_count(self) -> int:
        """As a leader: how many members of the ISR keep up. The others leave it as soon as ZooKeeper takes it."""
        assert self._state is not None
        return len(self.isr) - len(self._state.lagging(self.log.log_end_offset, trio.current_time()))

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica of it, led here, is not in sync, or does not keep up."""
        return self.is_leader and self.in_sync_count < self._replication_factor

    @property
    def lacks_min_isr(self) -> bool:
        """As `is_under_min_isr`, also while those that do not keep up cannot leave the ISR."""
        return self.is_leader and self.has_followers and self.in_sync_count < self._min_isr

    @property
    def is_under_min_isr(self) -> bool:
        """Whether it is led here and takes nothing of acks=all."""
        return self.is_leader and self.has_followers and len(self.isr) < self._min_isr

    @property
    def is_at_min_isr(self) -> bool:
        """Whether it is led here and one replica less in sync would end acks=all."""
        return self.is_leader and self.in_sync_count == self._min_isr

    @property
    def _min_isr(self) -> int:
        state = self._state
        return 1 if state is None else state.effective_min_isr(self.settings.min_insync_replicas)

    @property
    def is_behind_epoch(self) -> bool:
        """Whether a new leader does not know yet that all it began with is committed: others may have shown it."""
        return self.has_followers and self._state is not None and self._state.committed < self._state.epoch_start

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
        self, replica: BrokerId, offset: Offset, log_start_offset: Offset, *, broker_epoch: int, has_epoch: bool
    ) -> None:
        """A replica has all before `offset`; `has_epoch`: it knows the leader epoch. Raises KafkaError.

        Nothing is concluded from a Fetch of another broker epoch than the one known here (`ReplicaState.counts`): the
        replica is asked again once its registration is seen.
        """
        state = self._state
        if state is None or replica not in state.followers:
            # It may know more of the cluster than this broker, or less: it is to ask again.
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if has_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not state.counts(replica, broker_epoch):
            return
        if state.followers[replica].log_start_offset != log_start_offset:
            self._tell_starts()
        if offset < state.followers[replica].log_end_offset:
            # It may come late, from a life that is over: the present one is to tell again.
            for waiter in self.follower_waiters:
                waiter.arrived(0)
        now_s = trio.current_time()
        if state.fetched(replica, offset, log_start_offset, self.log.log_end_offset, now_s, broker_epoch=broker_epoch):
            self.upkeep.in_sync.look_at(self.topic_partition)
        self._advance(now_s)

    def knows(self, replica: BrokerId, offset: Offset) -> bool:
        """Whether this follower, by what it told last, has all before `offset` and no more."""
        return self._state is not None and replica in self._state.followers and self._state.knows(replica, offset)

    def look_again(self, stayed: Container[BrokerId] | None = None) -> None:
        """Who is alive may have changed, or who is in sync. Followers that are not known well are to tell again.

        `stayed`: those who were alive before, too, in the same epoch (None: all are); what others told may be from a
        life before.
        """
        if self._state is not None:
            self._state.forget_absent(self.upkeep.in_sync.view.brokers if stayed is None else stayed)
            for waiter in self.follower_waiters:
                waiter.arrived(0)
        self._tell_starts()
        self._advance(trio.current_time())

    def _tell_starts(self) -> None:
        self._starts_told.set()
        self._starts_told = trio.Event()

    def _advance(self, now_s: float) -> None:
        state = self._state
        if state is not None and state.advance(self.log.log_end_offset, now_s, self.settings.min_insync_replicas):
            self._end_commit_waits(None)
            self._show_up_to(self._shown_end)

    def isr_change(self) -> IsrChange | None:
        """The ISR as it should be, if it is another one; it is under way from now on until it is ended.

        What is committed is looked at, too: it may have waited for one that fell silent.
        """
        now_s = trio.current_time()
        self._advance(now_s)
        return None if self._state is None else self._state.begin_change(self.log.log_end_offset, now_s)

    def end_isr_change(self, change: IsrChange, version: int | None) -> None:
        """End a change that was written with this version, or (None) refused while the state is still what it was."""
        if self._state is not None and self._state.end_change(change, version):
            self._isr_changed()

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

    # Those who wait

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

    def stop_waiting(self, waiter: Waiter) -> None:
        """Tell it nothing any more."""
        self.waiters.pop(waiter, None)
        self.follower_waiters.pop(waiter, None)

    def wake_all(self) -> None:
        """Let all who wait look again: the partition is closed or led elsewhere, or its disk failed."""
        self._tell_starts()
        for waiter in (*self.waiters, *self.follower_waiters):
            waiter.wake()
