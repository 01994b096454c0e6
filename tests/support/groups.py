"""A driver for one group on simulated time: it fires timers, ends writes and keeps what was answered."""

import itertools
from collections.abc import Sequence
from typing import Any

from pipeline.broker.groups import transitions
from pipeline.broker.groups.events import (
    CoordinatorResult,
    Identity,
    Join,
    Leaver,
    Reply,
    Sync,
    Timer,
    WaiterId,
    Write,
    WriteResult,
)
from pipeline.broker.groups.group import Group, GroupLimits
from pipeline.broker.groups.model import Generation, MemberId
from pipeline.protocol.errors import ErrorCode

NO_GENERATION = Generation(-1)
RANGE = (("range", b"on"),)


def identity(member_id: str, instance: str | None, generation: int) -> Identity:
    return Identity(member_id=MemberId(member_id), group_instance_id=instance, generation=Generation(generation))


class Driver:
    """Has things happen to a group. Times are milliseconds since the driver was made."""

    def __init__(self, *, delay_ms: int = 3000, max_size: int = 100, auto_write: bool = True) -> None:
        self.group = Group("g", GroupLimits(initial_rebalance_delay_ms=delay_ms, max_size=max_size))
        self.now_ms = 0
        self.answers: dict[Any, Any] = {}
        self.timers: list[Any] = []
        self.writes: list[Any] = []
        self.written: list[Any] = []
        self.auto_write = auto_write
        self.numbers = itertools.count(1)
        self.waiting: set[Any] = set()

    def do(self, result: CoordinatorResult) -> CoordinatorResult:
        for action in result.actions:
            match action:
                case Reply(waiter=waiter, response=response):
                    assert waiter in self.waiting, "answered twice, or never asked"
                    self.waiting.remove(waiter)
                    self.answers[waiter] = response
                case Timer():
                    self.timers.append(action)
                case Write():
                    self.writes.append(action)
        if self.auto_write and self.writes:
            self.end_write()
        return result

    def end_write(self, error: ErrorCode = ErrorCode.NONE) -> CoordinatorResult:
        write = self.writes.pop(0)
        if error is ErrorCode.NONE:
            self.written.append(write.value)
        return self.do(transitions.WRITTEN.react(self.group, WriteResult(write.purpose, error), self.now_ms))

    def wait(self, duration_ms: int) -> None:
        """Let time pass; timers fire when they are due."""
        end_ms = self.now_ms + duration_ms
        while due := [timer for timer in self.timers if timer.at_ms <= end_ms]:
            timer = min(due, key=lambda timer: timer.at_ms)
            self.timers.remove(timer)
            self.now_ms = max(self.now_ms, timer.at_ms)
            self.do(transitions.fire(self.group, timer, self.now_ms))
        self.now_ms = end_ms

    def _waiter(self) -> int:
        waiter = next(self.numbers)
        self.waiting.add(waiter)
        return waiter

    def ask_join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Any = RANGE,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        **more: Any,
    ) -> int:
        waiter = self._waiter()
        prefix = instance or "client"
        request = Join(
            waiter=WaiterId(waiter),
            fresh_id=MemberId(f"{prefix}-{waiter}"),
            member_id=MemberId(member_id),
            group_instance_id=instance,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=more.pop("protocol_type", "consumer"),
            protocols=protocols,
            **more,
        )
        self.do(transitions.JOIN.react(self.group, request, self.now_ms))
        return waiter

    def enter(self, **more: Any) -> tuple[str, int]:
        """A dynamic member: gets an id and comes back with it. Its id and the waiter of its second join."""
        given = self.answers[self.ask_join(**more)]
        assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return given.member_id, self.ask_join(given.member_id, **more)

    def ask_sync(
        self,
        member_id: str,
        *,
        generation: int | None = None,
        instance: str | None = None,
        assignments: Any = None,
        **more: str,
    ) -> int:
        waiter = self._waiter()
        generation = self.group.generation if generation is None else generation
        sender = identity(member_id, instance, generation)
        request = Sync(waiter=WaiterId(waiter), sender=sender, assignments=assignments or {}, **more)
        self.do(transitions.SYNC.react(self.group, request, self.now_ms))
        return waiter

    def heartbeat(self, member_id: str, *, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        sender = identity(member_id, instance, generation)
        return self.do(transitions.HEARTBEAT.react(self.group, sender, self.now_ms)).error

    def commit(self, member_id: str = "", *, generation: int = NO_GENERATION, instance: str | None = None) -> ErrorCode:
        sender = identity(member_id, instance, generation)
        return self.do(transitions.COMMIT.react(self.group, sender, self.now_ms)).error

    def leave(self, *leavers: Any) -> list[ErrorCode]:
        pairs = [leaver if isinstance(leaver, tuple) else (leaver, None) for leaver in leavers]
        result = self.do(transitions.LEAVE.react(self.group, [Leaver(*pair) for pair in pairs], self.now_ms))
        return [result.error] if result.error else list(result.member_errors)

    def stable(
        self,
        count: int = 2,
        *,
        instances: Any = (),
        **more: Any,
    ) -> list[str]:
        """Members of a stable group, the leader first: dynamic ones, then static ones."""
        joins = [self.enter(**more)[1] for _ in range(count)]
        joins += [self.ask_join(instance=instance, **more) for instance in instances]
        self.wait(3_000 if not joins[1:] else 6_000)
        return self.settle(joins)

    def settle(self, joins: Sequence[int]) -> list[str]:
        """Have those whose joins were answered sync; each gets its own id as its assignment."""
        answers = [self.answers[join] for join in joins]
        ids = [answer.member_id for answer in answers]
        leader = answers[0].leader
        syncs = [
            self.ask_sync(id_, assignments={other: other.encode() for other in ids} if id_ == leader else None)
            for id_ in sorted(ids, key=lambda id_: id_ != leader)
        ]
        assert all(self.answers[sync].error_code == ErrorCode.NONE for sync in syncs)
        return sorted(ids, key=lambda id_: id_ != leader)


def error_of(driver: Driver, waiter: int) -> ErrorCode:
    return ErrorCode(driver.answers[waiter].error_code)
