"""Replicas of a partition as its leader knows them: decides the committed end of the log, and which replicas join the
ISR or leave it. Pure: offsets, times and live brokers are passed in. Times (`now_s`) are of a clock that never goes
back: a wall clock that is set must not decide which replicas are in sync.

Invariants

  A. `committed` never goes back.
  B. Whenever it moves, every member of the maximal ISR has all before it, and the ISR has at least as many members as
     the topic wants (KIP-966). The maximal ISR is the one that ZooKeeper holds with those that are being added
     (KIP-497): an addition counts from the moment it is asked for, a removal only once it is written.
  C. A replica joins the ISR only if it fetched in this leader epoch, from `committed` on and from the first offset of
     the epoch on: by then records that it alone has from a former leader are truncated (KIP-101, KIP-279). It must also
     keep up by the rule by which members leave: a dead replica would otherwise leave and join in turn.
  D. One change at a time. A state with a newer version ends it, since its write was conditional on the older one. After
     a refusal no change is begun until a newer state is known, or another life of a replica.
  E. A Fetch counts only for the broker epoch in which it was sent (KIP-903), and the write that adds a replica demands
     that it has begun no other epoch since. A replica that was away, or that is out of the ISR in a state that another
     broker wrote, must fetch again before it joins or counts: its log may be another one. A broker that returns without
     the tail of its log writes such a state first.
"""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import InitVar, dataclass, field

from pipeline.model import NO_BROKER_EPOCH, BrokerId, LeaderEpoch, Offset

UNKNOWN = Offset(-1)
LONG_AGO_S = -math.inf

MayJoin = Callable[[BrokerId], bool]
"""True if the broker of a replica is alive and not shutting down."""

EpochOf = Callable[[BrokerId], int | None]
"""The broker epoch of a replica, None while it is not registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """A new ISR, to be written if the state still has this version."""

    isr: tuple[BrokerId, ...]
    version: int
    leader_epoch: LeaderEpoch
    added: tuple[BrokerId, ...] = ()
    added_epochs: tuple[int, ...] = ()
    """The broker epochs in which the added replicas caught up."""
    removed: tuple[BrokerId, ...] = ()


@dataclass(slots=True)
class FollowerProgress:
    """Progress of a follower, by its Fetches in this leader epoch. Offsets are UNKNOWN before the first one."""

    log_end_offset: Offset = UNKNOWN
    log_start_offset: Offset = UNKNOWN
    caught_up_s: float = LONG_AGO_S
    """When the follower last had all that the leader had."""
    broker_epoch: int = NO_BROKER_EPOCH
    """The broker epoch of its last Fetch."""
    _asked_s: float = LONG_AGO_S
    _end_when_asked: Offset = UNKNOWN

    def fetched(self, offset: Offset, log_start_offset: Offset, leader_end: Offset, now_s: float) -> None:
        """Note that the follower has all before `offset`, while the leader's log ends at `leader_end`."""
        if offset >= leader_end:
            self.caught_up_s = max(self.caught_up_s, now_s)
        elif self._end_when_asked != UNKNOWN and offset >= self._end_when_asked:
            # It has all that the leader had at its previous Fetch, so it was caught up at that time.
            self.caught_up_s = max(self.caught_up_s, self._asked_s)
        self.log_end_offset, self.log_start_offset = offset, log_start_offset
        self._end_when_asked, self._asked_s = leader_end, now_s

    def is_caught_up(self, leader_end: Offset, now_s: float, max_lag_s: float) -> bool:
        """True if the follower has all that the leader has, or had so within `max_lag_s`."""
        return self.log_end_offset == leader_end or now_s - self.caught_up_s <= max_lag_s


@dataclass(slots=True, kw_only=True)
class LeaderState:
    """The replicas of a partition that `own` begins to lead; of its followers only the ISR is known then."""

    own: BrokerId
    leader_epoch: LeaderEpoch
    epoch_start: Offset
    """The log end offset when this leader epoch began."""
    max_lag_s: float
    may_join: MayJoin
    epoch_of: EpochOf
    replicas: InitVar[Iterable[BrokerId]]
    isr: tuple[BrokerId, ...]
    version: int
    committed: Offset
    now_s: InitVar[float]
    followers: dict[BrokerId, FollowerProgress] = field(default_factory=dict)
    pending: IsrChange | None = None
    _refused: bool = False

    def __post_init__(self, replicas: Iterable[BrokerId], now_s: float) -> None:
        self._take_replicas(replicas, now_s)

    @property
    def is_alone(self) -> bool:
        """True if the leader's own log alone decides what is committed, though a replica may be about to join."""
        return len(self.isr) == 1 and (self.pending is None or not self.pending.added)

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """The ISR with the replicas that are being added."""
        return self.isr if self.pending is None else self.isr + self.pending.added

    def effective_min_isr(self, min_insync_replicas: int) -> int:
        """Return the number of members that the ISR must have, at most the number of replicas (KIP-966)."""
        return min(min_insync_replicas, len(self.followers) + 1)

    # Events

    def appended(self, end_before: Offset, now_s: float) -> None:
        """Note that the leader's log has grown: followers that had all of it were caught up until now."""
        for progress in self.followers.values():
            if progress.log_end_offset >= end_before and progress.log_end_offset != UNKNOWN:
                progress.caught_up_s = max(progress.caught_up_s, now_s)

    def fetched(
        self,
        replica: BrokerId,
        offset: Offset,
        log_start_offset: Offset,
        leader_end: Offset,
        now_s: float,
        *,
        broker_epoch: int,
    ) -> bool:
        """Note a Fetch from `offset` on, of a broker epoch that `counts`. Return True if the follower can join the ISR.

        Raises KeyError.
        """
        progress = self.followers[replica]
        progress.broker_epoch = broker_epoch
        progress.fetched(offset, log_start_offset, leader_end, now_s)
        return replica not in self.isr and self._may_change and self._can_join(replica, leader_end, now_s)

    def advance(self, log_end_offset: Offset, now_s: float, min_insync_replicas: int) -> bool:
        """Advance `committed` as far as the replicas allow; return True if it moved.

        A replica outside of the ISR that keeps up also holds `committed` back: else it could never catch up with it. A
        broker that has returned does not before its first Fetch, which takes a while with many partitions.
        """
        if len(self.isr) < self.effective_min_isr(min_insync_replicas):
            return False
        offset = log_end_offset
        maximal_isr = self.maximal_isr
        for replica, progress in self.followers.items():
            if progress.log_end_offset < offset and (
                replica in maximal_isr
                or (
                    progress.log_end_offset != UNKNOWN
                    and progress.is_caught_up(log_end_offset, now_s, self.max_lag_s)
                    and self.may_join(replica)
                )
            ):
                offset = progress.log_end_offset
        if offset <= self.committed or any(
            replica not in self.followers for replica in maximal_isr if replica != self.own
        ):
            return False
        self.committed = offset
        return True

    def take(self, replicas: Iterable[BrokerId], isr: Sequence[BrokerId], version: int, now_s: float) -> None:
        """Take over replicas and ISR of this leader epoch. The ISR of a version that is not newer is skipped."""
        if version > self.version:
            for replica in self.followers:
                if replica not in isr:
                    self.followers[replica] = FollowerProgress()
            self._take_isr(tuple(isr), version)
        self._take_replicas(replicas, now_s)

    def counts(self, replica: BrokerId, broker_epoch: int) -> bool:
        """True if this broker epoch is that of the replica's present life, as far as this broker knows.

        A Fetch of a former life may arrive late, and one of a new life before its registration is seen here. Brokers of
        a version without epochs are registered, and fetch, with NO_BROKER_EPOCH.
        """
        return self.epoch_of(replica) == broker_epoch

    def forget_absent(self, alive: Container[BrokerId]) -> None:
        """Forget the logs of all brokers but these, which are alive with the same broker epochs as before."""
        self._refused = False  # a forgotten broker may have caused the refusal
        for replica, progress in self.followers.items():
            if replica not in alive:
                self.followers[replica] = FollowerProgress(caught_up_s=progress.caught_up_s)

    def knows(self, replica: BrokerId, offset: Offset) -> bool:
        """Return True if this follower, by its last Fetch, has all before `offset` and no more."""
        return replica in self.followers and self.followers[replica].log_end_offset == offset

    def _take_replicas(self, replicas: Iterable[BrokerId], now_s: float) -> None:
        """Members of the ISR count as followers even if they are no longer assigned: `committed` waits for them."""
        others = dict.fromkeys(replica for replica in (*replicas, *self.isr) if replica != self.own)
        if others.keys() != self.followers.keys():
            self.followers = {
                replica: self.followers.get(replica)
                or FollowerProgress(caught_up_s=now_s if replica in self.isr else LONG_AGO_S)
                for replica in others
            }

    def _take_isr(self, isr: tuple[BrokerId, ...], version: int) -> None:
        self.isr, self.version = isr, version
        self.pending, self._refused = None, False

    # Changes of the ISR

    @property
    def _may_change(self) -> bool:
        return self.pending is None and not self._refused

    def _can_join(self, replica: BrokerId, log_end_offset: Offset, now_s: float) -> bool:
        progress = self.followers[replica]
        return (
            progress.log_end_offset >= max(self.committed, self.epoch_start, Offset(0))
            and progress.is_caught_up(log_end_offset, now_s, self.max_lag_s)
            and self.may_join(replica)
            and self.counts(replica, progress.broker_epoch)
        )

    def begin_change(self, log_end_offset: Offset, now_s: float) -> IsrChange | None:
        """Return the ISR change that is due, None if there is none; it is `pending` until `end_change`."""
        if not self._may_change:
            return None
        added = tuple(
            replica
            for replica in self.followers
            if replica not in self.isr and self._can_join(replica, log_end_offset, now_s)
        )
        removed = self.lagging(log_end_offset, now_s)
        if not (added or removed):
            return None
        isr = tuple(replica for replica in self.isr if replica not in removed) + added
        self.pending = IsrChange(
            isr=isr,
            version=self.version,
            leader_epoch=self.leader_epoch,
            added=added,
            added_epochs=tuple(self.followers[replica].broker_epoch for replica in added),
            removed=removed,
        )
        return self.pending

    def lagging(self, log_end_offset: Offset, now_s: float) -> tuple[BrokerId, ...]:
        """Return the members of the ISR that do not keep up, and should leave it."""
        return tuple(
            replica
            for replica, progress in self.followers.items()
            if replica in self.isr and not progress.is_caught_up(log_end_offset, now_s, self.max_lag_s)
        )

    def end_change(self, change: IsrChange, version: int | None) -> bool:
        """End a change that was written with this version, or (None) refused while the state is still what it was.

        Return True if the ISR has changed. A refused change over which there is a newer state stays pending until
        `take` has that state: the change may have been written before it.
        """
        if self.pending is not change:
            return False
        if version is None:
            added = zip(change.added, change.added_epochs, strict=True)
            self.pending, self._refused = None, all(self.counts(replica, epoch) for replica, epoch in added)
            return False
        self._take_isr(change.isr, version)
        return True

    def low_watermark(self, own_start: Offset) -> Offset:
        """Return the lowest log start offset of all live replicas (KIP-107); UNKNOWN until all have reported theirs."""
        starts = [progress.log_start_offset for replica, progress in self.followers.items() if self.may_join(replica)]
        return min([own_start, *starts])
