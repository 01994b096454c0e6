"""A mirror whose source loses the end of a log by an unclean election, and grows again."""

import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.topics import NewTopic, create_topics, delete_topics, list_topics
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.mirror.copying.resume import ResumeRequest
from pipeline.mirror.journals.epochs import EPOCHS_TOPIC
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.service import MirrorService
from tests.support.brokers import Brokers, clock, replicated_cluster, serving_cluster
from tests.support.mirrors import CLICKS, Site, batch_at, read, until_said

pytestmark = pytest.mark.long

DEADLINE_S = 120
FAST: dict[str, Any] = {"replica_fetch_wait_max_ms": 100, "auto_leader_rebalance_enable": False}
OLD = [b"old %d" % number for number in range(4)]
NEW = [b"new %d" % number for number in range(9)]


@dataclass
class Truncating:
    """A source with the records OLD, of which its second broker, which is down, has the first alone; and a hub."""

    brokers: Brokers
    second: int
    site: Site

    async def produce(self, *batches: Sequence[bytes]) -> None:
        for values in batches:
            data = {CLICKS: batch_at(0, *values)}
            result = await raw_produce(self.brokers.cluster, data, keep_offsets=False, timeout_s=DEADLINE_S)
            assert result[CLICKS].error is None

    async def lose_the_end(self) -> None:
        """Have the second broker lead, without the records 1 to 3."""
        await self.brokers.stop(3 - self.second)
        await self.brokers.start(self.second)
        await self.brokers.wait_until(lambda: self.brokers.leader("clicks") == self.second)
        await self.brokers.cluster.refresh()

    async def lose_all(self) -> None:
        """Have the second broker lead with an empty log: it has lost its disks."""
        await self.brokers.stop(self.second)
        for directory in self.brokers.directory.glob(f"{self.second}*"):
            shutil.rmtree(directory)
        await self.brokers.start(self.second)
        await self.brokers.wait_until(lambda: self.brokers.leader("clicks") == self.second)
        await self.brokers.cluster.refresh()

    async def until_copied(self, values: Iterable[bytes], first: int = 0) -> None:
        """Until the replica holds these values; those from the fifth on begin at the offset `first`."""
        expected = list(values)
        found: list[bytes | None] = []
        with trio.move_on_after(DEADLINE_S):
            while found != expected:
                await trio.sleep(0.02)
                if "clicks" in await list_topics(self.site.hub):
                    records = await read(self.site.hub, CLICKS)
                    found = [value for _, value in records]
                    assert all(offset == place for place, (offset, _) in enumerate(records[:4]))
                    assert not records[4:] or records[4][0] == first
        assert found == expected

    async def gaps(self) -> list[tuple[str, int, int]]:
        journal = GapJournal(self.site.hub, clock=clock, rng=Random(1))
        await journal.read_on()
        return [(gap.reason.value, gap.first, gap.last) for gap in journal.ledger]


@asynccontextmanager
async def truncating(directory: Path) -> AsyncIterator[Truncating]:
    async with (
        replicated_cluster(directory / "east", brokers=2, **FAST) as brokers,
        serving_cluster(directory / "west") as west,
        serving_cluster(directory / "hub") as hub,
    ):
        configs = {"unclean.leader.election.enable": "true"}
        topic = NewTopic(name="clicks", partitions=1, replication_factor=2, configs=configs)
        await create_topics(brokers.cluster, [topic])
        await brokers.wait_for_isr("clicks", 2)
        first = brokers.leader("clicks")
        assert first is not None
        found = Truncating(brokers, 3 - first, Site(brokers.cluster, west, hub))
        await found.produce(OLD[:1])
        await brokers.wait_until(lambda: brokers.replica(found.second, "clicks").log.log_end_offset == 1)
        await brokers.stop(found.second)
        await brokers.wait_for_isr("clicks", 1)
        await found.produce(*([value] for value in OLD[1:]))
        yield found


async def resume(service: MirrorService) -> dict[str, Any]:
    (gap,) = await service.resumption.resume(ResumeRequest(names=["clicks-0"], skip=True))
    return gap


@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
async def test_a_mirror_halts_and_says_what_the_source_lost_until_that_is_skipped(
    tmp_path: Path, is_down: bool
) -> None:
    async with truncating(tmp_path) as case:
        async with case.site.mirroring() as service:
            await case.until_copied(OLD)
            if not is_down:
                await case.lose_the_end()
                await case.produce(*([value] for value in NEW))
                await until_said(service, "the source lost offsets 1 to 3, which the replica has")
        if is_down:
            await case.lose_the_end()
            await case.produce(*([value] for value in NEW))
        async with case.site.mirroring() as service:
            await until_said(service, "the source lost offsets 1 to 3, which the replica has")
            await case.until_copied(OLD)
            assert await case.gaps() == []
            gap = await resume(service)
            assert (gap["reason"], gap["first"], gap["last"]) == ("truncated", 1, 3)
            await case.until_copied([*OLD, *NEW[3:]], first=4)
        async with case.site.mirroring():
            await case.produce([b"last"])
            await case.until_copied([*OLD, *NEW[3:], b"last"], first=4)
        assert await case.gaps() == [("truncated", 1, 3)]


async def test_a_mirror_that_may_skip_waits_until_the_source_has_reached_the_replica(tmp_path: Path) -> None:
    async with truncating(tmp_path) as case:
        async with case.site.mirroring(gap_policy="skip") as service:
            await case.until_copied(OLD)
            await case.lose_the_end()
            await case.produce(NEW[:1])
            await until_said(service, "waits until the source, which lost its end, has reached offset 4")
        async with case.site.mirroring() as service:
            await until_said(service, "waits until the source, which lost its end, has reached offset 4")
            await case.produce(*([value] for value in NEW[1:]))
            await case.until_copied([*OLD, *NEW[3:]], first=4)
        assert await case.gaps() == [("truncated", 1, 3)]


async def test_a_source_that_loses_more_while_its_replica_waits_is_compared_again(tmp_path: Path) -> None:
    async with truncating(tmp_path) as case, case.site.mirroring(gap_policy="skip") as service:
        await case.until_copied(OLD)
        await case.lose_the_end()
        await until_said(service, "waits until the source, which lost its end, has reached offset 4; it is at 1")
        await case.lose_all()
        await case.produce(*([value] for value in NEW))
        await case.until_copied([*OLD, *NEW[4:]], first=4)
        assert await case.gaps() == [("truncated", 1, 3), ("truncated", 0, 3)]


async def test_a_batch_that_reaches_over_the_end_of_the_replica_is_a_gap_as_well(tmp_path: Path) -> None:
    async with truncating(tmp_path) as case, case.site.mirroring(gap_policy="skip"):
        await case.until_copied(OLD)
        await case.lose_the_end()
        await case.produce(NEW, [b"last"])
        await case.until_copied([*OLD, b"last"], first=10)
        assert await case.gaps() == [("truncated", 1, 3), ("truncated", 4, 9)]


async def test_a_replica_whose_epochs_are_not_known_is_compared_with_its_source(tmp_path: Path) -> None:
    async with truncating(tmp_path) as case:
        async with case.site.mirroring():
            await case.until_copied(OLD)
        await delete_topics(case.site.hub, [EPOCHS_TOPIC])
        async with case.site.mirroring():  # adopts the epoch of an equal batch
            await case.produce([b"more"])
            await case.until_copied([*OLD, b"more"], first=4)
        await case.lose_the_end()
        await case.produce(*([value] for value in NEW))
        async with case.site.mirroring() as service:
            await until_said(service, "the source lost offsets 1 to 4")
        await delete_topics(case.site.hub, [EPOCHS_TOPIC])
        async with case.site.mirroring() as service:
            await until_said(service, "hold different batches at offset 4; how far back is not known")
            assert await case.gaps() == []
            await resume(service)
            await case.until_copied([*OLD, b"more", *NEW[4:]], first=4)
        assert await case.gaps() == [("truncated", 0, 4)]
