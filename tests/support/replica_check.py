"""Comparison of a replica with its source and with what a producer was told, piece by piece while both logs grow."""

from collections.abc import Sequence

import httpx
import trio

from pipeline.cli.terminal.connect import connected, randomness, wall_clock
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.model import TopicPartition
from pipeline.records.batch import iterate_headers
from pipeline.records.record import iterate_records
from tests.support.copies import log_ends, read_logs
from tests.support.foreign_producer import ForeignProducer, number_of
from tests.support.mirror_site import MirrorSite
from tests.support.mirror_watch import read_status

CATCH_UP_DEADLINE_S = 180
POLL_S = 0.1
WELL = {"caught_up", "copying", "elsewhere"}


class ReplicaCheck:
    """Compares the partitions of one topic, of one source, with their replicas, which have the same numbers."""

    def __init__(self, site: MirrorSite, partitions: Sequence[TopicPartition], producer: ForeignProducer) -> None:
        self._site = site
        self._partitions = partitions
        self._producer = producer
        self._checked = dict.fromkeys(partitions, 0)
        """Offset up to which each partition was compared."""
        self._numbers: set[int] = set()
        """Numbers of the records that were found."""

    async def run(self) -> int:
        """Wait until the mirror has copied what the source has now, and compare. Returns the number of records so far.

        Raises AssertionError unless the same batches are at the same offsets, each acknowledged record is there once,
        at the offset that was told, all partitions are copied without trouble, and no gap was recorded.
        """
        async with (
            connected(self._site.source.bootstrap, None, "check") as source,
            connected(self._site.hub.bootstrap, None, "check") as hub,
        ):
            told = {each: dict(self._producer.acknowledged[each.partition]) for each in self._partitions}
            unplaced = set(self._producer.unplaced)
            ends = await log_ends(source, self._partitions)
            await self._until_copied(hub, ends)
            await self._until_well()
            assert await read_gaps(hub) == [], "a gap was recorded, though the source lost nothing"
            originals = await read_logs(source, self._partitions, self._checked)
            copies = await read_logs(hub, self._partitions, self._checked)
        for partition, end in ends.items():
            original, copy = (_before(logs[partition], end) for logs in (originals, copies))
            assert _batches(copy) == _batches(original), f"{partition}: other batches than at the source"
            assert copy == original, f"{partition}: other bytes than at the source"
            self._check_records(partition, original, told[partition], end)
            self._checked[partition] = end
        assert not unplaced - self._numbers, f"acknowledged, and not there: {sorted(unplaced - self._numbers)[:5]}"
        assert not self._producer.failed
        return len(self._numbers)

    def _check_records(self, partition: TopicPartition, log: bytes, told: dict[int, int], end: int) -> None:
        found = {record.offset: number_of(record.value or b"") for record in iterate_records(log)}
        begin = self._checked[partition]
        lost = {offset: number for offset, number in told.items() if begin <= offset < end}.items() - found.items()
        assert not lost, f"{partition}: acknowledged, and not there: {sorted(lost)[:5]}"
        assert max(told, default=-1) < end, f"{partition}: the source ends before an acknowledged record"
        numbers = set(found.values())
        assert len(numbers) == len(found), f"{partition}: doubled records"
        assert not numbers & self._numbers, f"{partition}: doubled records: {sorted(numbers & self._numbers)[:5]}"
        assert max(numbers, default=-1) < self._producer.sent, f"{partition}: records that nobody sent"
        self._numbers |= numbers

    async def _until_copied(self, hub: Cluster, ends: dict[TopicPartition, int]) -> None:
        found: dict[TopicPartition, int] = {}
        with trio.move_on_after(CATCH_UP_DEADLINE_S):
            while True:
                found = await log_ends(hub, ends)
                if all(found[each] >= end for each, end in ends.items()):
                    return
                await trio.sleep(POLL_S)
        raise AssertionError(f"the mirror did not catch up to {ends}, only to {found}: {await self._states()}")

    async def _until_well(self) -> None:
        """Wait until all partitions are copied. A halted one stays halted."""
        states: list[tuple[object, ...]] = []
        with trio.move_on_after(CATCH_UP_DEADLINE_S):
            while True:
                states = await self._states()
                if len(states) == len(self._partitions) and {state for state, *_ in states} <= WELL:
                    return
                await trio.sleep(POLL_S)
        raise AssertionError(f"partitions are not copied: {states}")

    async def _states(self) -> list[tuple[object, ...]]:
        async with httpx.AsyncClient(timeout=POLL_S * 100, trust_env=False) as client:
            document = await read_status(client, self._site.url)
        sources = [] if document is None else document["sources"]
        return [(each["state"], each["error"], each["halt"]) for source in sources for each in source["partitions"]]


def _before(log: bytearray, end: int) -> bytes:
    """Return the batches before an offset."""
    size = next((position for position, header in iterate_headers(log) if header.base_offset >= end), len(log))
    return bytes(log[:size])


def _batches(log: bytes) -> list[tuple[int, int, int]]:
    """Return offset, size and checksum of each batch."""
    return [(header.base_offset, header.size_bytes, header.crc) for _, header in iterate_headers(log)]


async def read_gaps(hub: Cluster) -> list[object]:
    """Return all records of the hub's gap ledger, also those that are no gaps."""
    journal = GapJournal(hub, clock=wall_clock, rng=randomness())
    await journal.read_on()
    return [*journal.ledger, *["no gap"] * journal.skipped]
