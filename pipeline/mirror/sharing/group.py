"""Membership of this process in a mirror group: registers, takes its share, and leads if no other member does.

Invariants:

A. A member that learns of the end of its session gives up its share before anything else, and registers again.
B. An assignment is published by a write that requires the version of the assignment before. A leader publishes once
   before it relies on it. So of two processes that take themselves for the leader only one can go on.
C. All parts of an assignment exist before its head names them.
D. A unit counts as held only if its holder selects the same topics as this member. The holder may not know the unit.
E. Work that no leader of the hub guards (the duties of a source) is done by one member at a time: only while ZooKeeper
   has confirmed, within the session timeout, both the session and that the known assignment is the newest; and not
   before the member has had the work for a session timeout. The member before has learned of its loss by then, or is
   confirmed no more.

A member that does not reach ZooKeeper keeps its share: leaders of the hub refuse it as soon as another copier has
claimed a partition.
"""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
import trio

from pipeline.coordination.interface import CoordinationClient, NodeValue
from pipeline.coordination.registration import Hooks, keep_registered
from pipeline.errors import (
    CoordinationError,
    CoordinationLostError,
    NodeExistsError,
    NoNodeError,
)
from pipeline.mirror.sharing.assignment import Holding, WorkUnit, assign, duties_of, smoothed
from pipeline.mirror.sharing.group_znodes import (
    AssignmentHead,
    GroupPaths,
    MirrorProcess,
    decode_parts,
    decode_rates,
    encode_parts,
    encode_rates,
    number_of,
)
from pipeline.mirror.sharing.share import Share
from pipeline.model import Clock
from pipeline.net.signals import Wakeup

RETRY_S = 0.5
NO_VERSION = -1
CONFIRMATIONS = 4
"""Confirmations in the time of a session."""

logger = structlog.get_logger()


class MirrorGroup:
    """A member of a group, while `run` runs. `share` is its part of the work; `on_share` is called when it changes."""

    def __init__(
        self,
        client: CoordinationClient,
        group: str,
        member: str,
        *,
        describe: Callable[[], MirrorProcess],
        units: Callable[[], Collection[WorkUnit]],
        rates: Callable[[], Mapping[WorkUnit, float]],
        on_share: Callable[[Share], None],
        work_changed: Wakeup,
        clock: Clock,
        session_timeout_s: float,
        rebalance_interval_s: float,
    ) -> None:
        """`units` returns all work that the group has, `rates` the bytes per second of this member's units.

        `work_changed` is set when `units` has more or fewer.
        """
        self.name = group
        self.member = member
        self.share = Share(member, is_registered=False)
        self.leader: str | None = None
        self.members: Mapping[str, MirrorProcess] = {}
        """The other members and this one, as ZooKeeper last reported them."""
        self._error: str | None = "not reached yet"
        self._work_changed = work_changed
        self._client = client
        self._paths = GroupPaths(group)
        self._describe = describe
        self._units = units
        self._rates = rates
        self._on_share = on_share
        self._clock = clock
        self._session_timeout_s = session_timeout_s
        self._rebalance_interval_s = rebalance_interval_s
        self._confirmed_at = -session_timeout_s
        self._version = NO_VERSION
        """Version of the assignment that `share` has."""
        self._duties_since: dict[WorkUnit, tuple[int, float]] = {}
        """Epochs of duties that this member has, and the times since which it has them."""
        self._described = b""
        """Data of this member's znode."""
        self._writing = trio.Lock()

    async def run(self) -> None:
        """Take part in the group until cancelled. Then the session must be ended, for the others to take over."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._register)
            for work in (self._confirm, self._follow_members, self._follow_selections, self._follow_assignment):
                nursery.start_soon(self._patiently, work)
            for work in (self._report_rates, self._lead):
                nursery.start_soon(self._patiently, work)

    @property
    def is_confirmed(self) -> bool:
        """True if ZooKeeper has confirmed session and share within the session timeout, by this member's clock."""
        age_s = trio.current_time() - self._confirmed_at
        return self.share.is_registered and age_s < self._session_timeout_s

    @property
    def problem(self) -> str | None:
        """Reason why the group may have other members and another assignment than this process knows; None if not."""
        if self._error is None and not self.is_confirmed:
            return f"ZooKeeper has not confirmed this process for more than {self._session_timeout_s:g} s"
        return self._error

    def has_duties_of(self, source: str) -> bool:
        """Return True if this member, and certainly no other one, may do the duties of a source (invariant E)."""
        _, since = self._duties_since.get(duties_of(source), (0, math.inf))
        return self.is_confirmed and trio.current_time() - since >= self._session_timeout_s

    async def _patiently(self, work: Callable[[], Any]) -> None:
        while True:
            try:
                await work()
            except CoordinationError as error:
                self._error = str(error)
                logger.warning("mirror_group_waits", group=self.name, error=str(error))
                await trio.sleep(RETRY_S)

    # Membership

    async def _register(self, task_status: trio.TaskStatus[None]) -> None:
        await keep_registered(
            self._client,
            self._paths.member(self.member),
            lambda: self._described,
            hooks=Hooks(before=self._describe_anew, after=self._registered, lost=self._lost),
            writing=self._writing,
            task_status=task_status,
        )

    async def _describe_anew(self) -> None:
        await trio.lowlevel.checkpoint()
        self._described = self._describe().encode()

    async def _registered(self) -> None:
        await trio.lowlevel.checkpoint()
        self._take(replace(self.share, is_registered=True))

    async def _lost(self) -> None:  # invariant A
        await trio.lowlevel.checkpoint()
        self._confirmed_at = -self._session_timeout_s
        logger.warning("mirror_group_left", group=self.name, member=self.member, reason="its session has ended")
        self._take(replace(self.share, is_registered=False))

    async def _confirm(self) -> None:
        """Note regularly that the session is alive, and the assignment the newest."""
        while True:
            asked_at = trio.current_time()
            stat = await self._client.exists(self._paths.assignment)
            is_newest = self._version == (NO_VERSION if stat is None else stat.version)
            if await self._is_of_this_session(self._paths.member(self.member)):
                self._error = None
                if is_newest:
                    self._confirmed_at = asked_at
            await trio.sleep(self._session_timeout_s / CONFIRMATIONS)

    async def _follow_members(self) -> None:
        async for names in self._client.watch_children(self._paths.members):
            found = await self._read_members(names)
            if found.keys() != self.members.keys():
                logger.info("mirror_group_members", group=self.name, members=sorted(found))
            self._take_members(found)
            self._work_changed.set()

    async def _follow_selections(self) -> None:
        """Tell the others what this member selects, and look what they do, since settings may change at any time."""
        path = self._paths.member(self.member)
        while True:
            if self.share.is_registered:
                async with self._writing:
                    found = await self._client.get_or_none(path)
                    await self._describe_anew()
                    if found is not None and found.data != self._described:
                        await self._client.set(path, self._described, found.version)
            known = await self._read_members(tuple(self.members))
            self._take_members({name: known.get(name, each) for name, each in self.members.items()})
            await trio.sleep(self._session_timeout_s / CONFIRMATIONS)

    async def _read_members(self, names: Collection[str]) -> dict[str, MirrorProcess]:
        found: dict[str, MirrorProcess] = {}
        for name in names:
            value = await self._client.get_or_none(self._paths.member(name))
            if value is not None:
                found[name] = MirrorProcess.decode(self._paths.member(name), value.data)
        return found

    def _take_members(self, members: Mapping[str, MirrorProcess]) -> None:
        self.members = members
        selection = self._describe().selection
        alike = frozenset(name for name, each in members.items() if each.selection == selection)  # invariant D
        self._take(replace(self.share, members=alike))

    # The share

    async def _follow_assignment(self) -> None:
        async for value in self._client.watch_data(self._paths.assignment):
            found = await self._read_parts(value)
            if found is not None:
                self._version = NO_VERSION if value is None else value.version
                self._take(replace(self.share, assigned=found))

    async def _read_parts(self, value: NodeValue | None) -> dict[WorkUnit, Holding] | None:
        """Return an assignment; None if it is being replaced."""
        if value is None or not value.data:
            return {}
        head = AssignmentHead.decode(self._paths.assignment, value.data)
        paths = [self._paths.part(part) for part in head.parts]
        try:
            parts = [(await self._client.get(path)).data for path in paths]
        except NoNodeError:
            return None
        return decode_parts(paths, parts)

    def _take(self, share: Share) -> None:
        before, self.share = self.share, share
        if share == before:
            return
        own = sum(holding.member == self.member for holding in share.assigned.values()) if share.is_registered else 0
        now, before_now = trio.current_time(), self._duties_since
        self._duties_since = {
            unit: known if (known := before_now.get(unit, (epoch, now)))[0] == epoch else (epoch, now)
            for unit in share.assigned
            if not unit.topic and (epoch := share.epoch_of(unit)) is not None
        }
        logger.info("mirror_share", group=self.name, member=self.member, units=own, of=len(share.assigned))
        self._on_share(share)

    async def _report_rates(self) -> None:
        """Write the rates of this member's units regularly, for the leader."""
        path = self._paths.rates_of(self.member)
        while True:
            if self.share.is_registered:
                data = encode_rates(self._rates())
                try:
                    await self._client.set(path, data)
                except NoNodeError:
                    with suppress(NodeExistsError, CoordinationLostError):
                        await self._client.create(path, data, ephemeral=True)
            await trio.sleep(self._rebalance_interval_s / 2)

    # Leading

    async def _lead(self) -> None:
        """Lead whenever no other member does."""
        watch = self._client.watch_data(self._paths.leader)
        found = await anext(watch)
        while True:
            self.leader = None if found is None else found.data.decode(errors="replace")
            if found is None:
                if self.share.is_registered:
                    with suppress(NodeExistsError, CoordinationLostError):
                        await self._client.create(self._paths.leader, self.member.encode(), ephemeral=True)
                with trio.move_on_after(RETRY_S):
                    found = await anext(watch)
            elif self.leader == self.member and await self._is_of_this_session(self._paths.leader):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._patiently, self._assign_all)
                    found = await anext(watch)  # removed with the session
                    nursery.cancel_scope.cancel()
            else:
                found = await anext(watch)

    async def _is_of_this_session(self, path: str) -> bool:
        stat = await self._client.exists(path)
        return stat is not None and stat.ephemeral_owner == self._client.session_id

    async def _assign_all(self) -> None:
        """Publish assignments as members, units and rates change, until another leader does."""
        logger.info("mirror_group_led", group=self.name, member=self.member)
        value = await self._client.get_or_none(self._paths.assignment)
        held = await self._read_parts(value)
        if held is None:  # replaced by an earlier leader, or removed by hand
            await trio.sleep(RETRY_S)
            value = await self._client.get_or_none(self._paths.assignment)
            held = await self._read_parts(value) or {}
        version = -1 if value is None else value.version
        number = 0 if value is None or not value.data else AssignmentHead.decode("", value.data).number
        is_first, rates, rated_at = True, dict[WorkUnit, float](), trio.current_time()
        while True:
            self._work_changed.clear()
            if (now := trio.current_time()) >= rated_at:
                rates, rated_at = await self._smooth_rates(rates), now + self._rebalance_interval_s
            members = await self._members_now()
            units = self._units()
            assigned = assign(units, members, held, rates, now_ms=self._clock())
            if members and (is_first or assigned != held):  # invariant B
                number += 1
                version = await self._publish(number, assigned, version)
                moved = sum(held.get(unit) != holding for unit, holding in assigned.items())
                logger.info("mirror_assignment", group=self.name, members=len(members), units=len(units), moved=moved)
                held, is_first = assigned, False
            with trio.move_on_at(rated_at):
                await self._work_changed.wait()

    async def _members_now(self) -> tuple[str, ...]:
        try:
            return await self._client.children(self._paths.members)
        except NoNodeError:
            return ()

    async def _smooth_rates(self, before: Mapping[WorkUnit, float]) -> dict[WorkUnit, float]:
        """Return the rates of the present units: those that all members have written, smoothed."""
        try:
            names = await self._client.children(self._paths.rates)
        except NoNodeError:
            names = ()
        rates: dict[WorkUnit, float] = {}
        for name in names:
            value = await self._client.get_or_none(self._paths.rates_of(name))
            if value is not None:
                rates |= decode_rates(self._paths.rates_of(name), value.data)
        return smoothed(before, rates, self._units())

    async def _publish(self, number: int, assigned: Mapping[WorkUnit, Holding], version: int) -> int:
        """Write an assignment over the one with this version (-1: there is none), and return the new version.

        Raises BadVersionError or NodeExistsError if another leader has written meanwhile.
        """
        parts = encode_parts(assigned)
        names = [f"{number}-{self._client.session_id:x}-{index}" for index in range(len(parts))]
        head = AssignmentHead(number=number, parts=names).encode()
        if version < 0:
            await self._client.create(self._paths.assignment)
            version = 0
        for name, data in zip(names, parts, strict=True):  # invariant C
            path = self._paths.part(name)
            try:
                await self._client.create(path, data)
            except NodeExistsError:  # of an attempt whose head was not written
                await self._client.set(path, data)
        version = await self._client.set(self._paths.assignment, head, version)
        for name in await self._client.children(self._paths.assignment):
            if number_of(name) < number:  # a higher one is of the next leader
                with suppress(NoNodeError):
                    await self._client.delete(self._paths.part(name))
        return version
