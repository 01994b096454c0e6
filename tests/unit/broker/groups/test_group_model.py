"""Random clients, times and failing writes against one group: what must hold after every event, and at the end."""

import random
from collections import Counter
from typing import Any

import pytest

from pipeline.broker.groups.events import TimerKind
from pipeline.broker.groups.member import PENDING_BYTES
from pipeline.broker.groups.model import GroupState, MemberId
from pipeline.broker.groups.transitions import UNLOAD
from pipeline.protocol.errors import ErrorCode
from tests.support.groups import Driver

SEEDS = range(150)
STEPS = 150
PROTOCOLS = [
    (("range", b"1"),),
    (("range", b"2"), ("sticky", b"2")),
    (("sticky", b"3"), ("range", b"3")),
    (("x", b"4"),),
]
INSTANCES = [None, None, "a", "b"]


class Model(Driver):
    """Does at random what clients, disks and time may do."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        super().__init__(delay_ms=self.random.choice([0, 3000]), max_size=self.random.choice([2, 4]), auto_write=False)
        self.seen_ids = [""]
        self.given: dict[Any, Any] = {}
        self.highest = 0

    def step(self) -> None:
        kind = self.random.choices(
            ["join", "sync", "heartbeat", "leave", "commit", "wait", "write"], [6, 6, 4, 1, 1, 3, 4]
        )[0]
        getattr(self, f"do_{kind}")()
        self.seen_ids += {answer.member_id for answer in self.answers.values() if hasattr(answer, "leader")} - set(
            self.seen_ids
        )
        self.check()

    def some_id(self) -> str:
        members = [*self.group.roster.members, *self.group.roster.pending]
        return (
            self.random.choice(members) if members and self.random.random() < 0.8 else self.random.choice(self.seen_ids)
        )

    def instance_of(self, member_id: str) -> str | None:
        member = self.group.roster.members.get(MemberId(member_id))
        known = None if member is None else member.group_instance_id
        return known if self.random.random() < 0.9 else self.random.choice(INSTANCES)

    def generation(self) -> int:
        return self.group.generation - (self.random.random() < 0.1)

    def do_join(self) -> None:
        member_id = self.some_id() if self.random.random() < 0.6 else ""
        instance = self.instance_of(member_id) if member_id else self.random.choice(INSTANCES)
        self.ask_join(
            member_id,
            instance=instance,
            protocols=self.random.choice(PROTOCOLS),
            session_ms=self.random.choice([6_000, 30_000]),
            rebalance_ms=self.random.choice([10_000, 60_000]),
            must_know_id=self.random.random() < 0.7,
            can_skip_assignment=self.random.random() < 0.5,
        )

    def do_sync(self) -> None:
        member_id = self.some_id()
        members = list(self.group.roster.members)
        assignments = {id_: f"{id_}@{self.group.generation}".encode() for id_ in members}
        self.ask_sync(
            member_id, generation=self.generation(), instance=self.instance_of(member_id), assignments=assignments
        )

    def do_heartbeat(self) -> None:
        member_id = self.some_id()
        self.heartbeat(member_id, generation=self.generation(), instance=self.instance_of(member_id))

    def do_commit(self) -> None:
        member_id = self.some_id()
        self.commit(member_id, generation=self.generation(), instance=self.instance_of(member_id))

    def do_leave(self) -> None:
        self.leave((self.some_id(), None), ("", self.random.choice(INSTANCES)))

    def do_wait(self) -> None:
        self.wait(self.random.choice([10, 1_000, 3_000, 20_000]))

    def do_write(self) -> None:
        if self.writes:
            failed = self.random.random() < 0.2
            self.end_write(ErrorCode.COORDINATOR_NOT_AVAILABLE if failed else ErrorCode.NONE)

    def check(self) -> None:
        group = self.group
        roster, members = group.roster, group.roster.members.values()
        assert group.generation >= self.highest
        self.highest = group.generation
        held = Counter(waiter for member in members for waiter in (member.join, member.sync) if waiter is not None)
        assert held == Counter(self.waiting), "a request that waits belongs to one member"
        assert roster.held_bytes == sum(member.held_bytes for member in members) + PENDING_BYTES * len(roster.pending)
        assert roster.awaiting_join == sum(member.join is not None for member in members)
        assert roster.static == {member.group_instance_id: member.id for member in members if member.group_instance_id}
        assert not roster.pending & set(roster.members)
        assert roster.leader in roster.members if members else roster.leader is None
        assert bool(members) or group.state in {GroupState.EMPTY, GroupState.PREPARING}
        for member in members:
            if member.deadline_ms is None:
                assert not member.is_new and (member.join is not None or member.sync is not None)
            else:
                assert member.timer_ms is not None
                assert member.timer_ms <= member.deadline_ms
                assert any(
                    (timer.kind, timer.member_id, timer.at_ms) == (TimerKind.SESSION, member.id, member.timer_ms)
                    for timer in self.timers
                )
        self.check_state()

    def check_state(self) -> None:
        group = self.group
        kinds = {timer.kind for timer in self.timers if timer.at_ms >= self.now_ms}
        if group.state is GroupState.PREPARING:
            assert TimerKind.JOIN in kinds, "a rebalance ends by itself"
        if group.state is GroupState.COMPLETING:
            assert TimerKind.SYNC in kinds or self.writes, "the wait for the leader ends by itself"
        if group.state is not GroupState.COMPLETING:
            assert all(member.sync is None for member in group.roster.members.values())
        if group.state in {GroupState.COMPLETING, GroupState.STABLE}:
            assert all(member.metadata(group.protocol) for member in group.roster.members.values())
        if group.state is GroupState.STABLE:
            written = {member.assignment for member in self.written[-1].members}
            assert {member.assignment for member in group.roster.members.values()} <= written

    def finish(self) -> None:
        """Everybody falls silent: all who wait are answered, and the group becomes empty."""
        for _ in range(100):
            self.auto_write = True
            while self.writes:
                self.end_write()
            self.wait(60_000)
        assert self.group.state is GroupState.EMPTY
        assert not self.waiting
        assert not self.timers


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_invariants_hold(seed: int) -> None:
    model = Model(seed)
    for _ in range(STEPS):
        model.step()
    if seed % 2:
        model.do(UNLOAD.react(model.group, None, model.now_ms))
        assert not model.waiting
    else:
        model.finish()
