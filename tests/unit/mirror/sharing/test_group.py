"""Members of a mirror group on a ZooKeeper in memory: assignment, takeover, lost sessions, leaders."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from pipeline.coordination.interface import CoordinationClient
from pipeline.mirror.sharing.assignment import WorkUnit, duties_of
from pipeline.mirror.sharing.group import MirrorGroup
from pipeline.mirror.sharing.group_znodes import GroupPaths, MirrorProcess
from pipeline.mirror.sharing.share import Share
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
    times: list[float] = field(default_factory=list)
    """Times of the shares, of trio's clock."""

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
    rebalance_interval_s: float = 60.0

    @asynccontextmanager
    async def member(self, name: str, client: MemoryClient | None = None) -> AsyncIterator[Mirror]:
        if client is None:
            async with self.zookeeper.open() as opened, self.member(name, opened) as mirror:
                yield mirror
            return
        shares: list[Share] = []
        times: list[float] = []
        work_changed = Wakeup()

        def take(share: Share) -> None:
            shares.append(share)
            times.append(trio.current_time())

        group = MirrorGroup(
            client,
            "mirror",
            name,
            describe=lambda: MirrorProcess(host="here", pid=1, http="127.0.0.1:1", joined_ms=0),
            units=self._units,
            rates=lambda: {unit: rate for unit, rate in self.rates.items() if group.share.epoch_of(unit) is not None},
            on_share=take,
            work_changed=work_changed,
            clock=clock,
            session_timeout_s=SESSION_TIMEOUT_S,
            rebalance_interval_s=self.rebalance_interval_s,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.run)
            yield Mirror(group, client, work_changed, shares, times)
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
    async with mirrors.member("b") as b:
        async with mirrors.member("a") as a:
            await until(lambda: a.group.has_duties_of("east") or b.group.has_duties_of("east"))
            assert not (a.group.has_duties_of("east") and b.group.has_duties_of("east"))
        await until(lambda: b.group.has_duties_of("east"))
        since = next(at for share, at in zip(b.shares, b.times, strict=True) if share.epoch_of(duties) is not None)
        assert trio.current_time() - since >= SESSION_TIMEOUT_S


async def test_a_member_that_does_not_know_the_newest_assignment_does_no_duties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mirrors = Mirrors(MemoryZooKeeper(), units=[*partitions(3), duties_of("east")])
    async with mirrors.member("a") as a:
        await until(lambda: a.group.has_duties_of("east"))
        never = trio.Event()

        async def wait_for_ever(*_: object) -> None:
            await never.wait()

        monkeypatch.setattr(a.group, "_read_parts", wait_for_ever)
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
