"""Membership of this process in a mirror group: registers, takes its share, and leads if no other member does.

Invariants:

A. A member that learns of the end of its session gives up its share before anything else, and registers again.
B. A unit counts as held only if its holder selects the same topics as this member. The holder may not know the unit.
C. Znodes that no mirror has written (unreadable, or persistent where mirrors write ephemeral ones) stop nobody: they
   are left out, and the leader writes anew what the group needs.
D. Work that no leader of the hub guards (the duties of a source) is done by one member at a time: only while ZooKeeper
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

import trio

from pipeline.coordination.interface import MAX_AT_ONCE, CoordinationClient, NodeStat
from pipeline.coordination.registration import Hooks, keep_registered
from pipeline.coordination.znodes import CopierEpoch, copier_path
from pipeline.diagnostics import get_logger
from pipeline.errors import (
    BadVersionError,
    CoordinationError,
    CoordinationLostError,
    NodeExistsError,
    NoNodeError,
)
from pipeline.mirror.sharing.assignment import WorkUnit, duties_of
from pipeline.mirror.sharing.group_leader import MISSING, GroupLeader, assignment_version, read_assignment
from pipeline.mirror.sharing.group_znodes import MAX_EPOCH, GroupPaths, MemberReport, MirrorProcess, Refusal
from pipeline.mirror.sharing.share import Share
from pipeline.model import Clock, TopicPartition
from pipeline.net.signals import Wakeup

RETRY_S = 0.5
ERROR_SHOWN_S = 2.0
"""Time for which an error is shown: one that lasts is repeated every `RETRY_S`."""
CONFIRMATIONS = 4
"""Confirmations in the time of a session."""

logger = get_logger(__name__)


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
        refused: Callable[[], Mapping[WorkUnit, TopicPartition]],
        on_share: Callable[[Share], None],
        work_changed: Wakeup,
        clock: Clock,
        session_timeout_s: float,
        rebalance_interval_s: float,
    ) -> None:
        """`units` returns all work that the group has, `rates` the bytes per second of this member's units.

        `refused` returns the units that brokers refuse from this member since they know a newer copier, with their
        replicas. `work_changed` is set when `units` has more or fewer.
        """
        self.name = group
        self.member = member
        self.share = Share(member, is_registered=False)
        self.leader: str | None = None
        self.members: Mapping[str, MirrorProcess] = {}
        """The other members and this one, as ZooKeeper last reported them."""
        self._error: str | None = "not reached yet"
        """Error of the last attempt to confirm the session."""
        self._failed: tuple[float, str] | None = None
        """The last error of any work, and its time."""
        self._work_changed = work_changed
        self._client = client
        self._paths = GroupPaths(group)
        self._describe = describe
        self._rates = rates
        self._refused = refused
        self._on_share = on_share
        self._session_timeout_s = session_timeout_s
        self._rebalance_interval_s = rebalance_interval_s
        self._confirmed_at = -session_timeout_s
        self._version = MISSING
        """Version of the assignment that `share` has."""
        self._duties_since: dict[WorkUnit, tuple[int, float]] = {}
        """Epochs of duties that this member has, and the times since which it has them."""
        self._described = b""
        """Data of this member's znode."""
        self._writing = trio.Lock()
        self._leading = GroupLeader(
            client,
            self._paths,
            units=units,
            members=lambda: tuple(self.members),
            last_seen=lambda: self.share.assigned,
            is_leader=lambda: self._is_of_this_session(self._paths.leader),
            work_changed=work_changed,
            clock=clock,
            rebalance_interval_s=rebalance_interval_s,
        )

    async def run(self) -> None:
        """Take part in the group until cancelled. Then the session must be ended, for the others to take over."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._register)
            for work in (self._confirm, self._follow_members, self._follow_selections, self._follow_assignment):
                nursery.start_soon(self._patiently, work)
            for work in (self._report, self._lead):
                nursery.start_soon(self._patiently, work)

    @property
    def is_confirmed(self) -> bool:
        """True if ZooKeeper has confirmed session and share within the session timeout, by this member's clock."""
        age_s = trio.current_time() - self._confirmed_at
        return self.share.is_registered and age_s < self._session_timeout_s

    @property
    def problem(self) -> str | None:
        """Reason why the group may have other members and another assignment than this process knows; None if not."""
        if self._failed is not None and trio.current_time() - self._failed[0] < ERROR_SHOWN_S:
            return self._failed[1]
        if self._error is None and not self.is_confirmed:
            return f"ZooKeeper has not confirmed this process for more than {self._session_timeout_s:g} s"
        return self._error

    def has_duties_of(self, source: str) -> bool:
        """Return True if this member, and certainly no other one, may do the duties of a source (invariant D)."""
        _, since = self._duties_since.get(duties_of(source), (0, math.inf))
        return self.is_confirmed and trio.current_time() - since >= self._session_timeout_s

    async def _patiently(self, work: Callable[[], Any]) -> None:
        while True:
            try:
                await work()
            except CoordinationError as error:
                self._failed = trio.current_time(), str(error)
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
            is_newest = assignment_version(await self._client.exists(self._paths.assignment)) == self._version
            if await self._is_of_this_session(self._paths.member(self.member)):
                self._error = None
                if is_newest:
                    self._confirmed_at = asked_at
            await trio.sleep(self._session_timeout_s / CONFIRMATIONS)

    async def _follow_members(self) -> None:
        async for names in self._client.watch_children(self._paths.members):
            found = await self._read_members([name for name in names if await self._is_ephemeral(name)])
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
                try:
                    found[name] = MirrorProcess.decode(self._paths.member(name), value.data)
                except CoordinationError as error:  # invariant C
                    logger.warning("mirror_group_member_skipped", group=self.name, member=name, error=str(error))
        return found

    async def _is_ephemeral(self, member: str) -> bool:
        stat = await self._client.exists(self._paths.member(member))
        return stat is not None and stat.ephemeral_owner is not None

    def _take_members(self, members: Mapping[str, MirrorProcess]) -> None:
        self.members = members
        selection = self._describe().selection
        alike = frozenset(name for name, each in members.items() if each.selection == selection)  # invariant B
        self._take(replace(self.share, members=alike))

    # The share

    async def _follow_assignment(self) -> None:
        async for value in self._client.watch_data(self._paths.assignment):
            self._leading.note_assignment(value)
            found = await read_assignment(self._client, self._paths, value)
            if found is not None:
                self._version = assignment_version(value)
                self._take(replace(self.share, assigned=found))

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

    async def _report(self) -> None:
        """Write the rates of this member's units regularly for the leader, and the units that brokers refuse."""
        path = self._paths.rates_of(self.member)
        while True:
            if self.share.is_registered:
                data = MemberReport(rates=self._rates(), refusals=await self._refusals()).encode()
                try:
                    await self._client.set(path, data)
                except NoNodeError:
                    with suppress(NodeExistsError, CoordinationLostError):
                        await self._client.create(path, data, ephemeral=True)
            await trio.sleep(self._rebalance_interval_s / 2)

    async def _refusals(self) -> dict[WorkUnit, Refusal]:
        """Return the units of the share that brokers refuse, with the epochs that ZooKeeper has of their replicas."""
        found: dict[WorkUnit, Refusal] = {}
        refused = list(self._refused().items())
        for start in range(0, len(refused), MAX_AT_ONCE):
            asked = refused[start : start + MAX_AT_ONCE]
            values = await self._client.get_each([copier_path(*replica) for _, replica in asked])
            for (unit, replica), value in zip(asked, values, strict=True):
                epoch, newest = self.share.epoch_of(unit), 0
                if value is not None:
                    with suppress(CoordinationError):  # what brokers do with it, their answers say
                        newest = CopierEpoch.decode(copier_path(*replica), value.data).epoch
                if epoch is not None and newest <= MAX_EPOCH:
                    found[unit] = Refusal(epoch, newest)
        return found

    # Leading

    async def _lead(self) -> None:
        """Lead whenever no other member does."""
        watch = self._client.watch_data(self._paths.leader)
        found = await anext(watch)
        while True:
            self.leader = None if found is None else found.data.decode(errors="replace")
            stat = None if found is None else await self._client.exists(self._paths.leader)
            if stat is None or stat.ephemeral_owner is None:
                if self.share.is_registered:
                    await self._take_leadership(stat)
                with trio.move_on_after(RETRY_S):
                    found = await anext(watch)
            elif stat.ephemeral_owner == self._client.session_id:
                self.leader = self.member  # whatever others have written there
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._patiently, self._leading.run)
                    found = await anext(watch)  # removed with the session
                    nursery.cancel_scope.cancel()
            else:
                found = await anext(watch)

    async def _take_leadership(self, stat: NodeStat | None) -> None:
        """Create the leader's znode; first remove one that no session holds (invariant C)."""
        with suppress(NoNodeError, BadVersionError, NodeExistsError, CoordinationLostError):
            if stat is not None:
                logger.warning("mirror_group_leader_removed", group=self.name, reason="no session holds the znode")
                await self._client.delete(self._paths.leader, stat.version)
            await self._client.create(self._paths.leader, self.member.encode(), ephemeral=True)

    async def _is_of_this_session(self, path: str) -> bool:
        stat = await self._client.exists(path)
        return stat is not None and stat.ephemeral_owner == self._client.session_id
