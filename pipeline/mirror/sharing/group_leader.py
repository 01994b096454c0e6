"""The leader of a mirror group: publishes assignments as members, units and rates change.

Invariants:

A. An assignment is published by a write that requires the version of the assignment before. A leader publishes once
   before it relies on it. So of two processes that take themselves for the leader only one can go on.
B. All parts of an assignment exist before its head names them.
C. An assignment that is not the one which the leader has published is replaced, whoever wrote or removed it.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

import trio

from pipeline.coordination.interface import CoordinationClient, NodeStat, NodeValue
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError, NodeExistsError, NoNodeError
from pipeline.mirror.sharing.assignment import Holding, Holdings, WorkUnit, assign, smoothed
from pipeline.mirror.sharing.group_znodes import (
    MAX_NUMBER,
    AssignmentHead,
    GroupPaths,
    MemberReport,
    decode_parts,
    encode_parts,
    number_of,
)
from pipeline.model import Clock
from pipeline.net.signals import Wakeup

RETRY_S = 0.5
MISSING = -1
"""Version of an assignment that does not exist."""

logger = get_logger(__name__)


async def read_assignment(
    client: CoordinationClient, paths: GroupPaths, value: NodeValue | None
) -> dict[WorkUnit, Holding] | None:
    """Return the assignment whose head is `value`; None if there is none, or it is being replaced.

    Raises CoordinationError, also if head or parts are unreadable.
    """
    if value is None or not value.data:
        return None
    names = [paths.part(part) for part in AssignmentHead.decode(paths.assignment, value.data).parts]
    try:
        parts = [(await client.get(name)).data for name in names]
    except NoNodeError:
        return None
    return decode_parts(names, parts)


class GroupLeader:
    """Leads while `run` runs."""

    def __init__(
        self,
        client: CoordinationClient,
        paths: GroupPaths,
        *,
        units: Callable[[], Collection[WorkUnit]],
        members: Callable[[], Collection[str]],
        last_seen: Callable[[], Holdings],
        is_leader: Callable[[], Awaitable[bool]],
        work_changed: Wakeup,
        clock: Clock,
        rebalance_interval_s: float,
    ) -> None:
        """`last_seen` returns the last assignment that this member could read, `is_leader` asks ZooKeeper.

        `work_changed` is set when there are other units or members.
        """
        self._client = client
        self._paths = paths
        self._units = units
        self._members = members
        self._last_seen = last_seen
        self._is_leader = is_leader
        self._work_changed = work_changed
        self._clock = clock
        self._rebalance_interval_s = rebalance_interval_s
        self._version = MISSING
        """Version of the assignment that this leader has published or found."""
        self._refused: dict[WorkUnit, int] = {}

    def note_assignment(self, value: NodeValue | None) -> None:
        """Take note of an assignment in ZooKeeper, which may be of somebody else."""
        if assignment_version(value) != self._version:
            self._work_changed.set()

    async def run(self) -> None:
        """Publish assignments until somebody else does; call again then. Raises CoordinationError."""
        if not await self._is_leader():
            await trio.sleep(RETRY_S)  # the watch of the leader's znode will tell
            return
        logger.info("mirror_group_led", group=self._paths.group)
        held, number = await self._take_up()
        is_first, rates, rated_at = True, dict[WorkUnit, float](), trio.current_time()
        while True:
            self._work_changed.clear()
            if (
                not is_first
                and assignment_version(await self._client.get_or_none(self._paths.assignment)) != self._version
            ):
                logger.warning("mirror_assignment_changed_by_others", group=self._paths.group)
                return  # invariant C
            if (now := trio.current_time()) >= rated_at:
                rates, rated_at = await self._read_reports(rates, held), now + self._rebalance_interval_s
            members, units = self._members(), self._units()
            assigned = assign(units, members, held, rates, now_ms=self._clock(), refusing=self._refused)
            if members and (is_first or assigned != held):  # invariant A
                number = number % MAX_NUMBER + 1
                await self._publish(number, assigned)
                moved = sum(held.get(unit) != holding for unit, holding in assigned.items())
                names = {"group": self._paths.group, "members": len(members), "units": len(units), "moved": moved}
                logger.info("mirror_assignment", **names, refused=len(self._refused))
                held, is_first = assigned, False
                self._refused.clear()
            with trio.move_on_at(rated_at):
                await self._work_changed.wait()

    async def _take_up(self) -> tuple[Holdings, int]:
        """Return the present assignment and its number. One that cannot be read is replaced by the last one seen."""
        self._refused.clear()
        held: Holdings | None = None
        for attempt in range(2):
            value = await self._client.get_or_none(self._paths.assignment)
            self._version = assignment_version(value)
            try:
                held = await read_assignment(self._client, self._paths, value)
            except CoordinationError as error:
                logger.warning("mirror_assignment_unreadable", group=self._paths.group, error=str(error))
            if held is not None or attempt:
                break
            await trio.sleep(RETRY_S)  # perhaps an earlier leader is replacing it
        numbers = [number_of(name) for name in await self._part_names()]
        return self._last_seen() if held is None else held, max(numbers, default=0)

    async def _part_names(self) -> tuple[str, ...]:
        try:
            return await self._client.children(self._paths.assignment)
        except NoNodeError:
            return ()

    async def _read_reports(self, before: Mapping[WorkUnit, float], held: Holdings) -> dict[WorkUnit, float]:
        """Return the rates that all members have written, smoothed, and take note of units that brokers refuse."""
        rates: dict[WorkUnit, float] = {}
        for name in self._members():
            path = self._paths.rates_of(name)
            value = await self._client.get_or_none(path)
            try:
                report = MemberReport() if value is None else MemberReport.decode(path, value.data)
            except CoordinationError as error:
                logger.warning("mirror_group_rates_skipped", group=self._paths.group, member=name, error=str(error))
                continue
            rates |= report.rates
            for unit, refusal in report.refusals.items():
                if held.get(unit) == Holding(name, refusal.epoch):  # else it has another holder or epoch since
                    self._refused[unit] = refusal.newest
        return smoothed(before, rates, self._units())

    async def _publish(self, number: int, assigned: Holdings) -> None:
        """Write an assignment over the one with the known version.

        Raises BadVersionError, NoNodeError or NodeExistsError if somebody else has written meanwhile.
        """
        parts = encode_parts(assigned)
        names = [f"{number}-{self._client.session_id:x}-{index}" for index in range(len(parts))]
        head = AssignmentHead(number=number, parts=names).encode()
        if self._version == MISSING:
            await self._client.create(self._paths.assignment)
            self._version = 0
        for name, data in zip(names, parts, strict=True):  # invariant B
            path = self._paths.part(name)
            try:
                await self._client.create(path, data)
            except NodeExistsError:  # of an attempt whose head was not written
                await self._client.set(path, data)
        self._version = await self._client.set(self._paths.assignment, head, self._version)
        for name in await self._part_names():
            if name not in names and number_of(name) < number:  # a higher one is of the next leader
                with suppress(NoNodeError):
                    await self._client.delete(self._paths.part(name))


def assignment_version(found: NodeValue | NodeStat | None) -> int:
    """Return the version of an assignment, MISSING if it does not exist."""
    return MISSING if found is None else found.version
