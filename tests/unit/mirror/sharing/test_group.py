"""Members of a mirror group on a ZooKeeper in memory: assignment, takeover, lost sessions, leaders."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

import pytest
import trio

from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.znodes import CopierEpoch, copier_path
from pipeline.errors import CoordinationError, NoNodeError
from pipeline.mirror.sharing.assignment import Holding, WorkUnit, duties_of
from pipeline.mirror.sharing.group import MirrorGroup
from pipeline.mirror.sharing.group_znodes import AssignmentHead, GroupPaths, MirrorProcess, encode_parts
from pipeline.mirror.sharing.share import Share
from pipeline.model import TopicPartition
from pipeline.net.signals import Wakeup
from pipeline.testing.memory_zookeeper import MemoryClient, MemoryZooKeeper
from tests.support.brokers import clock

DEADLINE_S = 30
PATHS = GroupPaths("mirror")
SESSION_TIMEOUT_S = 0.4


def partitions(count: int) -> list[WorkUnit]:
    return [WorkUnit("east", "clicks", number) for number in range(count)]


@dataclass
class Mirror:
    """One member of the group."""

    group: MirrorGroup
    client: CoordinationClient
    work_changed: Wakeup
    shares: list[Share] = field(default_factory=list)

    @property
    def own(self) -> dict[WorkUnit, int]:
        """Units and epochs."""
        share = self.group.share
        return {unit: epoch for unit in share.assigned if (epoch := share.epoch_of(unit)) is not None}


@dataclass
class Mirrors:
    """Members of one group, and the work that they share."""

    zookeeper: MemoryZooKeeper
    units: list[WorkUnit] = field(default_factory=lambda: partitions(6))
    rates: dict[WorkUnit, float] = field(default_factory=dict)
    refused: set[WorkUnit] = field(default_factory=set)
    rebalance_interval_s: float = 60.0

    @asynccontextmanager
    async def member(self, name: str, client: MemoryClient | None = None) -> AsyncIterator[Mirror]:
        if client is None:
            async with self.zookeeper.open() as opened, self.member(name, opened) as mirror:
                yield mirror
            return
        shares: list[Share] = []
        work_changed = Wakeup()

        group = MirrorGroup(
            client,
            "mirror",
            name,
            describe=lambda: MirrorProcess(host="here", pid=1, http="127.0.0.1:1", joined_ms=0),
            units=self._units,
            rates=lambda: {unit: rate for unit, rate in self.rates.items() if group.share.epoch_of(unit) is not None},
            refused=lambda: {unit: TopicPartition(unit.topic, unit.partition) for unit in self.refused},
            on_share=shares.append,
            work_changed=work_changed,
            clock=clock,
            session_timeout_s=SESSION_TIMEOUT_S,
            rebalance_interval_s=self.rebalance_interval_s,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.run)
            yield Mirror(group, client, work_changed, shares)
            nursery.cancel_scope.cancel()

    def _units(self) -> Collection[WorkUnit]:
        return set(self.units)

    async def until_shared(self, *mirrors: Mirror) -> None:
        """Wait until these members have all units between them, each unit once, and as many as is fair."""

        def is_shared() -> bool:
            held = [unit for mirror in mirrors for unit in mirror.own]
            counts = [len(mirror.own) for mirror in mirrors]
            return sorted(held) == sorted(self.units) and max(counts) - min(counts) <= 1

        await until(is_shared)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():
            await trio.sleep(0.002)


async def test_members_share_all_units_and_take_over_those_of_one_that_left() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.member("a") as a, mirrors.member("b") as b:
        await mirrors.until_shared(a, b)
        before = a.own
        async with mirrors.member("c") as c:
            await mirrors.until_shared(a, b, c)
            assert a.own.items() <= before.items()  # what stays keeps its epoch
            assert min(c.own.values()) > max(before.values())
            kept = a.own
        await mirrors.until_shared(a, b)
        assert kept.items() <= a.own.items()
        await until(lambda: a.group.members.keys() == {"a", "b"})


async def test_the_next_member_leads_when_the_leader_leaves() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.member("b") as b:
        async with mirrors.member("a") as a:
            await mirrors.until_shared(a, b)
            leader = a.group.leader
        await mirrors.until_shared(b)
        await until(lambda: b.group.leader == "b")
        mirrors.units += partitions(9)[6:]
        b.work_changed.set()
        await mirrors.until_shared(b)
    assert leader in {"a", "b"}


async def test_a_member_whose_session_expired_gives_up_its_share_at_once_and_joins_again() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.member("a") as a, mirrors.zookeeper.open() as client, mirrors.member("b", client) as b:
        await mirrors.until_shared(a, b)
        await until(lambda: b.group.is_confirmed)
        before = b.own
        mirrors.zookeeper.expire(client)
        await until(lambda: not b.shares[-1].is_registered or b.own.keys() != before.keys())
        left = next(
            share for share in b.shares if share.assigned.keys() == set(mirrors.units) and not share.is_registered
        )
        assert all(left.epoch_of(unit) is None for unit in before)
        await mirrors.until_shared(a, b)


async def test_without_zookeeper_a_member_keeps_its_partitions_but_not_what_nothing_guards() -> None:
    mirrors = Mirrors(MemoryZooKeeper(), units=[*partitions(3), duties_of("east")])
    async with mirrors.member("a") as a:
        await mirrors.until_shared(a)
        await until(lambda: a.group.has_duties_of("east"))
        before = a.own
        mirrors.zookeeper.stop()
        with trio.fail_after(DEADLINE_S):
            while a.group.has_duties_of("east"):
                await trio.sleep(0.05)
        assert a.own == before
        mirrors.zookeeper.start()
        await until(lambda: a.group.has_duties_of("east"))
        assert a.own == before


async def test_duties_begin_once_the_member_before_cannot_do_them_any_more() -> None:
    duties = duties_of("east")
    mirrors = Mirrors(MemoryZooKeeper(), units=[duties])
    leaves = trio.Event()

    async def be_first(task_status: "trio.TaskStatus[Mirror]") -> None:
        async with mirrors.member("a") as a:
            task_status.started(a)
            await leaves.wait()

    async with trio.open_nursery() as nursery:
        a = await nursery.start(be_first)
        await until(lambda: a.group.has_duties_of("east"))
        async with mirrors.member("b") as b:
            await until(lambda: b.group.share.is_registered)
            assert not b.group.has_duties_of("east")
            before_its_turn = trio.current_time()
            leaves.set()
            await until(lambda: b.group.has_duties_of("east"))
            assert trio.current_time() - before_its_turn >= SESSION_TIMEOUT_S


async def test_a_member_that_does_not_know_the_newest_assignment_does_no_duties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirrors = Mirrors(MemoryZooKeeper(), units=[*partitions(3), duties_of("east")])
    async with mirrors.member("a") as a:
        await until(lambda: a.group.has_duties_of("east"))
        never = trio.Event()

        async def wait_for_ever(*_: object) -> None:
            await never.wait()

        monkeypatch.setattr("pipeline.mirror.sharing.group.read_assignment", wait_for_ever)
        value = await a.client.get(PATHS.assignment)
        await a.client.set(PATHS.assignment, value.data)
        await until(lambda: not a.group.has_duties_of("east"))
        assert a.group.share.is_registered
        assert a.group.share.epoch_of(duties_of("east")) is not None


async def test_units_that_come_and_go_are_assigned_and_dropped() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.member("a") as a, mirrors.member("b") as b:
        await mirrors.until_shared(a, b)
        mirrors.units = [*partitions(10)[4:], duties_of("west")]
        for mirror in (a, b):
            mirror.work_changed.set()
        await mirrors.until_shared(a, b)


async def test_rates_decide_who_gets_how_many() -> None:
    mirrors = Mirrors(MemoryZooKeeper(), rebalance_interval_s=0.05)
    async with mirrors.member("a") as a, mirrors.member("b") as b:
        await mirrors.until_shared(a, b)
        hot = next(iter(a.own))
        mirrors.rates[hot] = 1e6
        await until(lambda: list(a.own) == [hot] and len(b.own) == 5)


async def test_parts_of_earlier_assignments_are_removed() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.member("a") as a, mirrors.member("b") as b:
        await mirrors.until_shared(a, b)
        for count in (7, 8, 9):
            mirrors.units = partitions(count)
            for mirror in (a, b):
                mirror.work_changed.set()
            await mirrors.until_shared(a, b)
        with trio.fail_after(DEADLINE_S):
            while len(await a.client.children(PATHS.assignment)) > 1:
                await trio.sleep(0.01)


async def test_an_assignment_that_cannot_be_read_is_replaced() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.zookeeper.open() as client:
        await client.create(PATHS.assignment, b'{"version":1,"number":4,"parts":["4-1-0"]}')
    async with mirrors.member("a") as a:
        await mirrors.until_shared(a)


NONSENSE = (b"", b"\xff\xfe", b"{}", b"9" * 5_000, b"[" * 100_000)
NOT_OF_A_MIRROR = [
    *[("assignment", data) for data in NONSENSE],
    ("assignment", b'{"version":1,"number":9223372036854775807,"parts":[]}'),
    ("assignment", b'{"version":1,"number":5,"parts":["../../leader","","a/b"]}'),
    ("assignment/999999999999999999-1-0", b""),
    ("assignment/999999999999999-1-0", b""),
    *[("leader", data) for data in NONSENSE[1:3]],
    *[("members/x", data) for data in NONSENSE[1:3]],
    ("members/x", MirrorProcess(host="x", pid=1, http="", joined_ms=0).encode()),
    ("members/a", NONSENSE[1]),
    *[("rates/a", data) for data in NONSENSE[1:3]],
    ("rates/x", NONSENSE[1]),
    ("rates/a", b'{"version":1,"rows":[["east","clicks",{"0":Infinity,"1":NaN,"2":1e308}]]}'),
    ("rates/a", b'{"version":1,"rows":[],"refused":[["east","clicks",0,1,9223372036854775807]]}'),
]


@pytest.mark.long
@pytest.mark.parametrize("is_leader_new", [False, True], ids=["same leader", "next leader"])
async def test_znodes_that_no_mirror_has_written_stop_nobody(is_leader_new: bool) -> None:
    async def write(znode: str, data: bytes) -> None:
        mirrors = Mirrors(MemoryZooKeeper(), rebalance_interval_s=0.05)
        path = f"/mirrors/mirror/{znode}"
        async with mirrors.zookeeper.open() as admin, mirrors.member("b") as b:
            async with mirrors.member("a") as a:
                await mirrors.until_shared(a, b)
                try:
                    await admin.set(path, data)
                except NoNodeError:
                    await admin.create(path, data)
                if is_leader_new:
                    await trio.sleep(0.1)  # the member that leads may have seen it, or not
                else:
                    async with mirrors.member("c") as c:
                        await mirrors.until_shared(a, b, c)
            await mirrors.until_shared(b)
            mirrors.units = partitions(9)
            b.work_changed.set()
            await mirrors.until_shared(b)

    async with trio.open_nursery() as nursery:
        for znode, data in NOT_OF_A_MIRROR:
            nursery.start_soon(write, znode, data)


async def test_a_leader_s_znode_that_no_session_holds_is_removed() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.zookeeper.open() as admin:
        await admin.create(PATHS.leader, b"b")
        async with mirrors.member("a") as a, mirrors.member("b") as b:
            await mirrors.until_shared(a, b)


async def test_an_assignment_that_somebody_else_writes_or_removes_is_replaced() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.zookeeper.open() as admin, mirrors.member("a") as a, mirrors.member("b") as b:
        await mirrors.until_shared(a, b)
        (part,) = encode_parts(dict.fromkeys(mirrors.units, Holding("nobody", 5)))
        await admin.create(PATHS.part("1-x-0"), part)
        await admin.set(PATHS.assignment, AssignmentHead(number=1, parts=["1-x-0"]).encode())
        await until(lambda: any("nobody" in {each.member for each in share.assigned.values()} for share in a.shares))
        await mirrors.until_shared(a, b)
        held = a.own | b.own
        for name in await admin.children(PATHS.assignment):
            with suppress(NoNodeError):  # the leader removes parts of before by itself
                await admin.delete(PATHS.part(name))
        await admin.delete(PATHS.assignment)
        with trio.fail_after(DEADLINE_S):
            while not await admin.exists(PATHS.assignment) or not await admin.children(PATHS.assignment):
                await trio.sleep(0.01)
        await mirrors.until_shared(a, b)
        assert a.own | b.own == held  # nothing moves, and nothing is claimed anew


async def test_a_unit_that_brokers_refuse_gets_an_epoch_above_the_one_that_they_know() -> None:
    """The group's znodes went back in time, or an earlier leader's clock was ahead."""
    mirrors = Mirrors(MemoryZooKeeper(), rebalance_interval_s=0.05)
    async with mirrors.zookeeper.open() as admin, mirrors.member("a") as a, mirrors.member("b") as b:
        await mirrors.until_shared(a, b)
        before = a.own | b.own
        unit = next(iter(b.own))
        year_ahead = clock() + 365 * 86_400_000
        known = CopierEpoch(topic_id=UUID(int=1), epoch=year_ahead)
        await admin.create(copier_path(unit.topic, unit.partition), known.encode())
        mirrors.refused.add(unit)
        await until(lambda: (a.own | b.own)[unit] > year_ahead)
        mirrors.refused.clear()
        del before[unit]
        assert before.items() <= (a.own | b.own).items()
        assert unit in b.own


@pytest.mark.parametrize("data", [b"nonsense", CopierEpoch(topic_id=UUID(int=1), epoch=2**63 - 1).encode()])
async def test_a_copier_epoch_of_no_clock_stops_no_assignment(data: bytes) -> None:
    mirrors = Mirrors(MemoryZooKeeper(), rebalance_interval_s=0.05)
    async with mirrors.zookeeper.open() as admin, mirrors.member("a") as a:
        await mirrors.until_shared(a)
        await admin.create(copier_path("clicks", 0), data)
        mirrors.refused.add(WorkUnit("east", "clicks", 0))
        async with mirrors.member("b") as b:
            await mirrors.until_shared(a, b)


def _lose_the_leader(_client: MemoryClient, path: str) -> None:
    if path == PATHS.leader:
        raise CoordinationError(path, "cannot be read")


async def test_an_error_that_lasts_is_shown_although_the_session_is_alive() -> None:
    mirrors = Mirrors(MemoryZooKeeper())
    async with mirrors.zookeeper.open() as admin, mirrors.member("a") as a:
        await mirrors.until_shared(a)
        await until(lambda: a.group.problem is None)
        mirrors.zookeeper.before_request = _lose_the_leader
        await admin.set(PATHS.assignment, b"nonsense")
        await until(lambda: "/mirrors/mirror/assignment: cannot be read" in (a.group.problem or ""))
        registered = a.group.share.is_registered
        mirrors.zookeeper.before_request = None
        await mirrors.until_shared(a)
        await until(lambda: a.group.problem is None)
    assert registered
