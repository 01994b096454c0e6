"""What a leader concludes of its followers, against followers whose logs are known."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.broker.replication.in_sync_replicas import UNKNOWN, IsrChange, LeaderState
from pipeline.model import BrokerId, LeaderEpoch, Offset

OWN = BrokerId(1)
OTHERS = (BrokerId(2), BrokerId(3))
MAX_LAG_S = 1.0
EPOCH = 3


def begin(
    *,
    end: int = 10,
    committed: int = 0,
    isr: tuple[int, ...] = (1, 2, 3),
    may_join: Callable[[BrokerId], bool] = lambda replica: True,
    epoch_of: Callable[[BrokerId], int | None] = lambda replica: EPOCH,
) -> LeaderState:
    return LeaderState(
        own=OWN,
        leader_epoch=LeaderEpoch(4),
        replicas=(OWN, *OTHERS),
        isr=tuple(map(BrokerId, isr)),
        version=7,
        committed=Offset(committed),
        epoch_start=Offset(end),
        max_lag_s=MAX_LAG_S,
        may_join=may_join,
        epoch_of=epoch_of,
        now_s=0,
    )


def fetch(state: LeaderState, replica: int, offset: int, end: int, now_s: float = 0) -> bool:
    return state.fetched(BrokerId(replica), Offset(offset), Offset(0), Offset(end), now_s, broker_epoch=EPOCH)


def advance(state: LeaderState, end: int, now_s: float = 0, min_isr: int = 1) -> int:
    state.advance(Offset(end), now_s, min_isr)
    return state.committed


def change_of(state: LeaderState, end: int, now_s: float = 0) -> IsrChange:
    change = state.begin_change(Offset(end), now_s)
    assert change is not None
    return change


def test_records_are_committed_that_all_in_sync_replicas_fetched_in_this_epoch() -> None:
    state = begin(committed=3)
    assert advance(state, 10) == 3
    fetch(state, 2, 10, 10)
    assert advance(state, 10) == 3
    fetch(state, 3, 8, 10)
    assert advance(state, 10) == 8
    fetch(state, 3, 5, 10)
    assert advance(state, 10) == 8


def test_replicas_count_from_before_their_join_is_written_until_their_removal_is() -> None:
    state = begin(isr=(1, 2))
    fetch(state, 2, 10, 10)
    assert fetch(state, 3, 10, 10)
    assert advance(state, 10) == 10
    change = change_of(state, 10)
    assert (change.isr, change.added, change.version) == ((1, 2, 3), (3,), 7)
    state.appended(Offset(10), 0)
    fetch(state, 2, 12, 12)
    assert advance(state, 12, now_s=2 * MAX_LAG_S) == 10
    assert state.end_change(change, 8)
    fetch(state, 3, 12, 12)
    assert advance(state, 12) == 12
    state.appended(Offset(12), 0)
    fetch(state, 2, 14, 14, 5)
    leaving = change_of(state, 14, 5)
    assert (leaving.isr, leaving.removed) == ((1, 2), (3,))
    assert advance(state, 14, 5) == 12
    state.end_change(leaving, 9)
    assert advance(state, 14, 5) == 14


def test_a_replica_does_not_join_before_it_has_the_records_from_before_the_leaders_epoch() -> None:
    state = begin(end=10, committed=3, isr=(1,))
    assert not fetch(state, 2, 9, 10)
    assert state.begin_change(Offset(10), 0) is None
    assert fetch(state, 2, 10, 10)


def test_a_stopped_replica_out_of_sync_is_not_waited_for_before_it_fetches_again() -> None:
    """It kept up until it stopped, is back within the time that it may lag, and opens its logs."""
    state = begin(isr=(1, 2))
    fetch(state, 2, 10, 10)
    fetch(state, 3, 10, 10)
    assert advance(state, 10) == 10
    state.forget_absent({BrokerId(1), BrokerId(2)})
    state.appended(Offset(10), 1)
    fetch(state, 2, 12, 12, 1)
    assert advance(state, 12, now_s=1) == 12


def test_a_replica_that_is_away_or_leaving_does_not_join() -> None:
    alive = {BrokerId(2): False}
    state = begin(isr=(1, 3), may_join=lambda replica: alive.get(replica, True))
    assert not fetch(state, 2, 10, 10)
    assert state.begin_change(Offset(10), 0) is None
    alive[BrokerId(2)] = True
    assert change_of(state, 10).added == (2,)


def test_below_the_least_number_in_sync_nothing_is_committed() -> None:
    state = begin(isr=(1, 2))
    fetch(state, 2, 10, 10)
    assert advance(state, 10, min_isr=3) == 0
    assert advance(state, 10, min_isr=2) == 10
    assert state.effective_min_isr(5) == 3


def test_the_high_watermark_waits_for_a_replica_that_is_about_to_join() -> None:
    state = begin(isr=(1,))
    assert advance(state, 10) == 10
    fetch(state, 2, 8, 10)
    state.appended(Offset(10), 0)
    fetch(state, 2, 10, 12, 0.1)
    assert advance(state, 12, 0.1) == 10
    assert change_of(state, 12, 0.1).added == (2,)


def test_a_replica_that_had_all_records_until_the_last_append_is_not_behind() -> None:
    state = begin()
    for replica in OTHERS:
        fetch(state, replica, 10, 10)
    state.appended(Offset(10), 90)
    assert state.begin_change(Offset(11), 90 + MAX_LAG_S) is None
    assert change_of(state, 11, 90.001 + MAX_LAG_S).removed == (2, 3)


def test_a_replica_stays_in_sync_while_each_fetch_reaches_the_end_of_the_fetch_before() -> None:
    state = begin()
    for step in range(10):
        end = 10 + 5 * step
        for replica in OTHERS:
            fetch(state, replica, end, end + 5, 0.5 * step)
        state.appended(Offset(end + 5), 0.5 * step)
        assert state.begin_change(Offset(end + 10), 0.5 * step) is None


def test_a_dead_replica_that_left_does_not_join_again_for_what_it_fetched_before() -> None:
    """The registration of a dead broker lives on for the session timeout, which may be longer than the lag allowed."""
    state = begin(isr=(1, 2))
    fetch(state, 2, 10, 10)
    assert advance(state, 10, min_isr=2) == 10
    state.appended(Offset(10), 0)
    left = change_of(state, 12, MAX_LAG_S * 2)
    assert (left.isr, left.removed) == ((1,), (2,))
    assert state.end_change(left, 8)
    assert advance(state, 12, MAX_LAG_S * 2, min_isr=2) == 10
    assert state.begin_change(Offset(12), MAX_LAG_S * 2) is None
    assert not fetch(state, 2, 10, 12, MAX_LAG_S * 3)
    assert state.begin_change(Offset(12), MAX_LAG_S * 3) is None
    assert fetch(state, 2, 12, 14, MAX_LAG_S * 3.5)  # all that the leader had at its previous Fetch
    assert change_of(state, 14, MAX_LAG_S * 3.5).added == (2,)


def test_no_isr_change_follows_a_refused_one_until_a_newer_state_is_known() -> None:
    state = begin(isr=(1, 2))
    fetch(state, 3, 10, 10)
    change = change_of(state, 10)
    assert state.begin_change(Offset(10), 0) is None
    assert not state.end_change(change, None)
    assert state.begin_change(Offset(10), 0) is None
    state.take((OWN, *OTHERS), (OWN, BrokerId(2)), 7, 0)
    assert state.begin_change(Offset(10), 0) is None
    state.take((OWN, *OTHERS), (OWN, BrokerId(2)), 8, 0)
    assert state.begin_change(Offset(10), 0) is None, "it must tell again"
    assert fetch(state, 3, 10, 10)
    assert change_of(state, 10).version == 8


def test_a_newer_state_ends_a_change_that_is_under_way() -> None:
    state = begin(isr=(1, 2))
    fetch(state, 3, 10, 10)
    change = change_of(state, 10)
    state.take((OWN, *OTHERS), (OWN, BrokerId(2), BrokerId(3)), 8, 0)
    assert (state.isr, state.pending) == ((1, 2, 3), None)
    state.take((OWN, *OTHERS), (OWN,), 9, 0)
    assert not state.end_change(change, 8)
    assert (state.isr, state.version) == ((1,), 9)


def test_a_replica_that_others_removed_must_fetch_again() -> None:
    state = begin()
    for replica in OTHERS:
        fetch(state, replica, 10, 10)
    state.take((OWN, *OTHERS), (OWN, BrokerId(2)), 8, 0)
    assert state.followers[BrokerId(3)].log_end_offset == UNKNOWN
    assert state.begin_change(Offset(10), 0) is None
    assert fetch(state, 3, 10, 10)
    assert change_of(state, 10).added == (3,)


def test_replicas_come_and_go_with_the_assignment() -> None:
    state = begin(isr=(1, 2))
    fetch(state, 2, 10, 10)
    state.take((OWN, BrokerId(2), BrokerId(4)), (OWN, BrokerId(2)), 7, 0)
    assert set(state.followers) == {2, 4}
    assert state.followers[BrokerId(2)].log_end_offset == 10
    state.take((OWN, BrokerId(4)), (OWN, BrokerId(2)), 7, 0)
    assert set(state.followers) == {2, 4}, "one in sync counts although it is not assigned any more"
    state.take((OWN, BrokerId(4)), (OWN,), 8, 0)
    assert set(state.followers) == {4}


def test_the_low_watermark_is_that_of_the_live_replicas() -> None:
    dead: set[int] = set()
    state = begin(may_join=lambda replica: replica not in dead)
    assert state.low_watermark(Offset(5)) == UNKNOWN
    state.fetched(BrokerId(2), Offset(10), Offset(5), Offset(10), 0, broker_epoch=EPOCH)
    state.fetched(BrokerId(3), Offset(10), Offset(2), Offset(10), 0, broker_epoch=EPOCH)
    assert state.low_watermark(Offset(5)) == 2
    dead.add(3)
    assert state.low_watermark(Offset(5)) == 5


@dataclass
class World:
    """The true logs of all replicas, and what ZooKeeper holds."""

    end: int = 10
    now_s: float = 0
    step_s: float = MAX_LAG_S / 20
    logs: dict[int, int] = field(default_factory=lambda: {2: 10, 3: 6})
    alive: dict[int, bool] = field(default_factory=lambda: {2: True, 3: True})
    isr: tuple[BrokerId, ...] = (OWN, BrokerId(2))
    version: int = 7

    def can_lead(self, replica: BrokerId) -> bool:
        return replica != OWN and self.alive[replica]

    def joining(self, state: LeaderState) -> tuple[BrokerId, ...]:
        """Those whom a write that may still succeed would let in."""
        return state.pending.added if state.pending is not None and state.pending.version == self.version else ()


STEPS = [
    "append",
    "copy",
    "fetch",
    "follow",
    "change",
    "written",
    "lost",
    "told",
    "out",
    "blink",
    "die",
    "live",
    "wait",
]
steps = st.lists(
    st.tuples(
        st.sampled_from(STEPS),
        st.sampled_from(OTHERS),
        st.integers(1, 4),
    ),
    min_size=20,
    max_size=60,
)


@pytest.mark.long
@settings(max_examples=120)
@given(steps=steps, min_isr=st.integers(1, 3), step_s=st.sampled_from([MAX_LAG_S / 20, MAX_LAG_S * 50]))
def test_committed_records_are_on_every_in_sync_replica_in_any_history(
    steps: list[tuple[str, BrokerId, int]], min_isr: int, step_s: float
) -> None:
    world = World(step_s=step_s)
    state = begin(end=10, committed=4, isr=world.isr, may_join=lambda replica: world.alive[replica])
    committed = state.committed
    for what, replica, number in steps:
        _step(state, world, what, replica, number)
        moved = state.advance(Offset(world.end), world.now_s, min_isr)
        assert moved == (state.committed > committed)
        assert committed <= state.committed <= world.end
        if moved:
            assert len(state.isr) >= min_isr
            joining = world.joining(state)
            assert all(
                world.logs[member] >= state.committed for member in (*world.isr, *joining) if world.can_lead(member)
            )
        committed = state.committed
        assert all(world.logs[member] >= 10 for member in world.joining(state) if world.can_lead(member))
    _settle(state, world)
    assert set(state.isr) == {OWN, *OTHERS}
    state.advance(Offset(world.end), world.now_s, min_isr)
    assert state.committed == world.end


def _step(state: LeaderState, world: World, what: str, replica: BrokerId, number: int) -> None:
    world.now_s += world.step_s
    if what == "append":
        state.appended(Offset(world.end), world.now_s)
        world.end += number
    elif what == "copy":
        world.logs[replica] = min(world.end, world.logs[replica] + number)
    elif what in {"fetch", "follow"}:
        if what == "follow":
            world.logs[replica] = world.end
        state.fetched(
            replica, Offset(world.logs[replica]), Offset(0), Offset(world.end), world.now_s, broker_epoch=EPOCH
        )
    elif what == "change":
        state.begin_change(Offset(world.end), world.now_s)
    elif what in {"written", "lost"} and state.pending is not None:
        _write(state, world, is_told=what == "written")
    elif what == "told":
        state.take((OWN, *OTHERS), world.isr, world.version, world.now_s)
    elif what == "out" and replica in world.isr:
        world.isr, world.version = tuple(member for member in world.isr if member != replica), world.version + 1
        state.take((OWN, *OTHERS), world.isr, world.version, world.now_s)
        world.logs[replica] = max(0, world.logs[replica] - number)
    elif what == "blink":  # so short that nobody saw it away, but it lost its tail and wrote that down
        world.logs[replica] = max(0, world.logs[replica] - number)
        world.isr, world.version = tuple(member for member in world.isr if member != replica), world.version + 1
        state.take((OWN, *OTHERS), world.isr, world.version, world.now_s)
    elif what == "die":
        world.alive[replica], world.logs[replica] = False, max(0, world.logs[replica] - number)
        state.forget_absent({BrokerId(other) for other, is_alive in world.alive.items() if is_alive})
    elif what == "live" and not world.alive[replica]:
        # Without its tail it writes the state anew before it comes back: whatever was under way is refused.
        world.isr, world.version = tuple(member for member in world.isr if member != replica), world.version + 1
        world.alive[replica] = True
    elif what == "wait":
        world.now_s += number * MAX_LAG_S


def _write(state: LeaderState, world: World, *, is_told: bool) -> None:
    change = state.pending
    assert change is not None
    if change.version != world.version:  # refused, maybe over its own lost answer: the newer state will be told
        return
    world.isr, world.version = change.isr, world.version + 1
    if is_told:
        state.end_change(change, world.version)


def _settle(state: LeaderState, world: World) -> None:
    """All are alive, and ZooKeeper answers."""
    for _ in range(4):
        state.take((OWN, *OTHERS), world.isr, world.version, world.now_s)
        for replica in OTHERS:
            world.alive[replica], world.logs[replica] = True, world.end
            state.fetched(replica, Offset(world.end), Offset(0), Offset(world.end), world.now_s, broker_epoch=EPOCH)
        state.begin_change(Offset(world.end), world.now_s)
        if state.pending is not None:
            _write(state, world, is_told=True)


def test_fetches_in_another_broker_epoch_do_not_let_a_replica_join() -> None:
    known = EPOCH
    state = begin(isr=(1, 2), epoch_of=lambda _: known)
    assert fetch(state, 3, 10, 10)
    change = change_of(state, 10)
    assert (change.added, change.added_epochs) == ((3,), (EPOCH,))
    assert not state.end_change(change, None)  # it had begun another life, which is not known here
    known = EPOCH + 1
    assert state.begin_change(Offset(10), 0) is None
    state.forget_absent((BrokerId(2),))
    assert state.begin_change(Offset(10), 0) is None
    assert state.fetched(BrokerId(3), Offset(10), Offset(0), Offset(10), 0, broker_epoch=known)
    assert change_of(state, 10).added_epochs == (known,)
