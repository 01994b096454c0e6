"""Mirror processes that share partitions: a source and a hub of three brokers, and what each process says it copies."""

import os
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trio

from pipeline.cli.child_services import ServiceUnit, stop_in_reverse
from pipeline.cli.terminal.connect import connected
from pipeline.model import TopicPartition
from tests.support.copies import log_ends
from tests.support.mirror_site import MirrorSite, Victim, mirror_site
from tests.support.mirror_watch import read_status

SESSION_TIMEOUT_MS = 3000
"""Default of `zookeeper.session.timeout.ms` of a mirror."""
DEADLINE_S = 90
POLL_S = 0.05
WELL = {"caught_up", "copying"}


@dataclass
class MirrorGroupSite:
    """The processes of a group."""

    site: MirrorSite
    members: list[Victim] = field(default_factory=list)

    def url(self, number: int) -> str:
        """URL of a member."""
        unit = self.members[number].unit
        assert isinstance(unit, ServiceUnit)
        return unit.url

    async def owned(self) -> list[set[int]]:
        """The partitions that each member copies, by what it says itself; none if it does not answer."""
        async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
            return [_owned(await read_status(client, self.url(number))) for number in range(len(self.members))]

    async def until_owned(self, is_right: Callable[[list[set[int]]], bool]) -> list[set[int]]:
        """Wait until the members' partitions are as wanted, and return them."""
        with trio.fail_after(DEADLINE_S):
            while not is_right(found := await self.owned()):
                await trio.sleep(POLL_S)
        return found

    async def until_shared(self, *numbers: int, partitions: int) -> list[set[int]]:
        """Wait until these members have all partitions between them."""

        def is_shared(found: list[set[int]]) -> bool:
            counts = Counter(partition for number in numbers for partition in found[number])
            return counts == Counter(range(partitions)) and all(found[number] for number in numbers)

        return await self.until_owned(is_shared)

    def pause(self, number: int) -> None:
        """Stop a member by SIGSTOP."""
        os.kill(self.members[number].pid, signal.SIGSTOP)

    def wake(self, number: int) -> None:
        """Let a stopped member go on."""
        os.kill(self.members[number].pid, signal.SIGCONT)

    async def kill(self, number: int) -> None:
        """Kill a member, and let it stay dead."""
        os.kill(self.members[number].pid, signal.SIGKILL)
        await self.members[number].unit.wait()

    def log(self, number: int) -> str:
        """The log of a member."""
        unit = self.members[number].unit
        assert isinstance(unit, ServiceUnit)
        return (unit.directory / "mirror.log").read_text(encoding="utf-8")


@asynccontextmanager
async def mirror_group(directory: Path, count: int, topic: str) -> AsyncIterator[MirrorGroupSite]:
    """Start the site's clusters, and this many mirrors with one group; stop all when the block ends."""
    shared = {"zookeeper.connect": "", "mirror.rebalance.interval.ms": 2000}
    async with mirror_site(directory, [topic], is_mirror_started=False) as site:
        first = site.mirror.unit
        assert isinstance(first, ServiceUnit)
        settings: dict[str, Any] = {**first.settings, **shared, "zookeeper.connect": site.hub.zookeeper_connect}
        group = MirrorGroupSite(site)
        group.members = [
            Victim(ServiceUnit(f"mirror-{number}", "mirror", directory / f"mirror-{number}", settings))
            for number in range(count)
        ]
        try:
            async with trio.open_nursery() as nursery:
                for member in group.members:
                    nursery.start_soon(member.start)
            yield group
        finally:
            await stop_in_reverse([[member.unit for member in group.members]])


class GrowthWatch:
    """Asks the hub for the ends of replicas until cancelled, and notes how long each did not grow."""

    def __init__(self, bootstrap: str, partitions: Sequence[TopicPartition]) -> None:
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._ends: dict[int, int] = {}
        self._grown_at: dict[int, float] = {}
        self._longest_s: defaultdict[int, float] = defaultdict(float)

    async def run(self) -> None:
        """Ask until cancelled."""
        async with connected(self._bootstrap, None, "growth") as hub:
            while True:
                for partition, end in (await log_ends(hub, self._partitions)).items():
                    self._note(partition.partition, end, trio.current_time())
                await trio.sleep(POLL_S)

    def begin(self) -> None:
        """Forget earlier stops."""
        self._longest_s.clear()
        self._grown_at = dict.fromkeys(self._grown_at, trio.current_time())

    def stops_s(self) -> dict[int, float]:
        """Return for each partition the longest time without new records since `begin`."""
        now = trio.current_time()
        return {each: max(self._longest_s[each], now - at) for each, at in sorted(self._grown_at.items())}

    def _note(self, number: int, end: int, now: float) -> None:
        if end > self._ends.get(number, -1):
            self._longest_s[number] = max(self._longest_s[number], now - self._grown_at.get(number, now))
            self._ends[number], self._grown_at[number] = end, now


def _owned(document: dict[str, Any] | None) -> set[int]:
    if document is None:
        return set()
    return {
        partition["partition"]
        for source in document["sources"]
        for partition in source["partitions"]
        if partition["state"] in WELL
    }
