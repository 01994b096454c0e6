"""What a leader knows of the replicas of its partition, and what follows from it: the committed end of the log, who
joins the ISR and who leaves it. Pure: offsets, times and who is alive are passed in.

Invariants

  A. `committed` never goes back.
  B. Whenever it moves, every member of the maximal ISR has all before it, and the ISR has at least as many members as
     the topic wants (KIP-966). The maximal ISR is the one that ZooKeeper holds with those that are being added
     (KIP-497): an addition counts from the moment it is asked for, a removal only once it is written.
  C. A replica is let in only if it fetched in this leader epoch, from `committed` on and from the first offset of the
     epoch on: what a former leader wrote and it alone has, is gone from its log by then (KIP-101, KIP-279).
  D. One change at a time. A state with a newer version ends it, since its write was conditional on the older one. After
     one that was refused nothing is asked for until a newer state is known.
  E. A replica that was away, or that is out of the ISR in a state that somebody else wrote, must fetch again before it
     is let in or counts: its log may be another one. Who comes back without its tail writes such a state first.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.model import BrokerId, LeaderEpoch, Offset

UNKNOWN = Offset(-1)
LONG_AGO_MS = -(2**63)

MayJoin = Callable[[BrokerId], bool]
"""Whether a replica may be in sync at all: it is alive and does not shut down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """Another ISR, to be written if the state still has this version."""

    isr: tuple[BrokerId, ...]
    version: int
    leader_epoch: LeaderEpoch
    added: tuple[BrokerId, ...] = ()
    removed: tuple[BrokerId, ...] = ()


@dataclass(slots=True)
class Progress:
    """A follower, as its fetches in this leader epoch tell. Offsets are UNKNOWN before the first one."""

    log_end_offset: Offset = UNKNOWN
    log_start_offset: Offset = UNKNOWN
    caught_up_ms: int = LONG_AGO_MS
    """When it had all that the leader had."""
    _asked_ms: int = LONG_AGO_MS
    _end_when_asked: Offset = UNKNOWN

    def fetched(self, offset: Offset, log_start_offset: Offset, leader_end: Offset, now_ms: int) -> None:
        """It has all before `offset`, while the leader's log ends at `leader_end`."""
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self._end_when_asked != UNKNOWN and offset >= self._end_when_asked:
            self.caught_up_ms = max(self.caught_up_ms, self._asked_ms)
        self.log_end_offset, self.log_start_offset = offset, log_start_offset
        self._end_when_asked, self._asked_ms = leader_end, now_ms

    def is_caught_up(self, leader_end: Offset, now_ms: int, max_lag_ms: int) -> bool:
        """It has all that the leader has, or had so not long ago."""
        return self.log_end_offset == leader_end or now_ms - self.caught_up_ms <= max_lag_ms


@dataclass(slots=True, kw_only=True)
class ReplicaState:
    """The replicas of a partition that `own` leads. Begin with `ReplicaState.begin`."""

    own: BrokerId
    leader_epoch: LeaderEpoch
    epoch_start: Offset
    """The end of the log when this leader epoch began."""
    max_lag_ms: int
    may_join: MayJoin
    isr: tuple[BrokerId, ...]
    version: int
    committed: Offset
    followers: dict[BrokerId, Progress] = field(default_factory=dict)
    pending: IsrChange | None = None
    _refused: bool = False

    @classmethod
    def begin(
        cls,
        own: BrokerId,
        leader_epoch: LeaderEpoch,
        *,
        replicas: Iterable[BrokerId],
        isr: Sequence[BrokerId],
        version: int,
        committed: Offset,
        log_end_offset: Offset,
        max_lag_ms: int,
        may_join: MayJoin,
        now_ms: int,
    ) -> "ReplicaState":
        """`own` begins to lead; of its followers nothing is known but who is in sync."""
        state = cls(
            own=own,
            leader_epoch=leader_epoch,
            epoch_start=log_end_offset,
            max_lag_ms=max_lag_ms,
            may_join=may_join,
            isr=tuple(isr),
            version=version,
            committed=committed,
        )
        state._take_replicas(replicas, now_ms)
        return state

    @property
    def is_alone(self) -> bool:
        """Nobody else has to follow for a record to be committed, though somebody may be about to join."""
        return len(self.isr) == 1 and (self.pending is None or not self.pending.added)

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """Those in sync, and those about to be."""
        return self.isr if self.pending is None else self.isr + self.pending.added

    def effective_min_isr(self, min_insync_replicas: int) -> int:
        """So many members the ISR must have; a topic with fewer replicas needs no more than it has (KIP-966)."""
        return min(min_insync_replicas, len(self.followers) + 1)

    # What happens

    def appended(self, end_before: Offset, now_ms: int) -> None:
        """The leader's log grew: those that had all of it had so until now."""
        for progress in self.followers.values():
            if progress.log_end_offset >= end_before and progress.log_end_offset != UNKNOWN:
                progress.caught_up_ms = max(progress.caught_up_ms, now_ms)

    def fetched(
        self, replica: BrokerId, offset: Offset, log_start_offset: Offset, leader_end: Offset, now_ms: int
    ) -> bool:
        """A follower fetches from `offset` on. Returns whether it can be let into the ISR now. Raises KeyError."""
        progress = self.followers[replica]
        progress.fetched(offset, log_start_offset, leader_end, now_ms)
        return replica not in self.isr and self._may_change and self._can_join(replica, progress)

    def advance(self, log_end_offset: Offset, now_ms: int, min_insync_replicas: int) -> bool:
        """Move `committed` as far as the replicas let it. Returns whether it moved.

        One outside of the ISR is waited for while it keeps up: else the end would run away from it for ever. One that
        has come back is not, before it fetches: with many partitions that takes its time.
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
                    and progress.is_caught_up(log_end_offset, now_ms, self.max_lag_ms)
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

    def take(self, replicas: Iterable[BrokerId], isr: Sequence[BrokerId], version: int, now_ms: int) -> None:
        """The cluster says so of this leader epoch. The ISR of a version that is not newer is passed over."""
        if version > self.version:
            for replica in self.followers:
                if replica not in isr:
                    self.followers[replica] = Progress()
            self._take_isr(tuple(isr), version)
        self._take_replicas(replicas, now_ms)

    def forget_absent(self, alive: Container[BrokerId]) -> None:
        """Only these brokers are alive: nothing is known of the logs of the others any more."""
        for replica, progress in self.followers.items():
            if replica not in alive:
                self.followers[replica] = Progress(caught_up_ms=progress.caught_up_ms)

    def knows(self, replica: BrokerId, offset: Offset) -> bool:
        """Whether it has told last that its log goes so far."""
        return self.followers[replica].log_end_offset == offset

    def _take_replicas(self, replicas: Iterable[BrokerId], now_ms: int) -> None:
        """Those in sync count as followers whether they are assigned or not: no state is without them."""
        others = dict.fromkeys(replica for replica in (*replicas, *self.isr) if replica != self.own)
        if others.keys() != self.followers.keys():
            self.followers = {
                replica: self.followers.get(replica)
                or Progress(caught_up_ms=now_ms if replica in self.isr else LONG_AGO_MS)
                for replica in others
            }

    def _take_isr(self, isr: tuple[BrokerId, ...], version: int) -> None:
        self.isr, self.version = isr, version
        self.pending, self._refused = None, False

    # Changes of the ISR

    @property
    def _may_change(self) -> bool:
        return self.pending is None and not self._refused

    def _can_join(self, replica: BrokerId, progress: Progress) -> bool:
        return progress.log_end_offset >= max(self.committed, self.epoch_start, Offset(0)) and self.may_join(replica)

    def begin_change(self, log_end_offset: Offset, now_ms: int) -> IsrChange | None:
        """The ISR as it should be, if it is another one; it counts as under way from now on."""
        if not self._may_change:
            return None
        added = tuple(
            replica
            for replica, progress in self.followers.items()
            if replica not in self.isr and self._can_join(replica, progress)
        )
        removed = tuple(
            replica
            for replica, progress in self.followers.items()
            if replica in self.isr and not progress.is_caught_up(log_end_offset, now_ms, self.max_lag_ms)
        )
        if not (added or removed):
            return None
        isr = tuple(replica for replica in self.isr if replica not in removed) + added
        self.pending = IsrChange(
            isr=isr, version=self.version, leader_epoch=self.leader_epoch, added=added, removed=removed
        )
        return self.pending

    def end_change(self, change: IsrChange, version: int | None) -> bool:
        """A change was written with this version, or (None) refused. Returns whether the ISR is another one."""
        if self.pending is not change:
            return False
        if version is None:
            self.pending, self._refused = None, True
            return False
        self._take_isr(change.isr, version)
        return True

    # Beyond records

    def low_watermark(self, own_start: Offset) -> Offset:
        """The lowest log start offset of all live replicas (KIP-107); UNKNOWN before they have told theirs."""
        starts = [progress.log_start_offset for replica, progress in self.followers.items() if self.may_join(replica)]
        return min([own_start, *starts])
