"""Journals whose logs lost their ends, as in an unclean election, and grew again."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.mirror.journals.journal_topic import JournalLostRecordsError
from pipeline.mirror.journals.table import TABLE_TOPIC
from pipeline.mirror.journals.table_journal import TableJournal
from tests.support.mirrors import DEADLINE_S
from tests.support.partition_tables import JOURNAL, record
from tests.support.scripted_broker import ScriptedCluster

READ = 3
"""Records that were read before the log was truncated, each of them a batch."""


@asynccontextmanager
async def read_journal() -> AsyncIterator[tuple[ScriptedCluster, TableJournal]]:
    hub = ScriptedCluster()
    hub.add_topic(TABLE_TOPIC, [1])
    write(hub, *range(READ))
    with trio.fail_after(DEADLINE_S):
        async with hub.broker(1) as address, open_cluster(ClientConfig(bootstrap=(address,))) as cluster:
            journal = TableJournal(cluster, lambda _: None)
            await journal.read_on()
            assert journal.table.size == READ
            yield hub, journal


def write(hub: ScriptedCluster, *partitions: int) -> None:
    for number in partitions:
        hub.partition(JOURNAL).append_values([record(partition=number)])
    hub.notify()


@pytest.mark.parametrize("grown_to", [READ - 1, READ, READ + 1], ids=["shorter", "as long", "longer"])
async def test_records_that_replaced_others_are_not_read_as_if_they_followed_them(grown_to: int) -> None:
    """Another mirror wrote them: its table has other replicas for the same partitions."""
    async with read_journal() as (hub, journal):
        hub.partition(JOURNAL).truncate(1)
        write(hub, *range(10, 10 + grown_to - 1))
        for _ in range(2):
            with pytest.raises(JournalLostRecordsError, match="restart the mirror then"):
                await journal.read_on()
        assert journal.table.size == READ


def elect(hub: ScriptedCluster) -> None:
    hub.partition(JOURNAL).epoch += 1


def restore_zookeeper(hub: ScriptedCluster) -> None:
    """The brokers know no leader epoch as high as that of the records: nobody can tell from epochs."""
    hub.partition(JOURNAL).end_of_epoch = lambda _: (-1, -1)  # type: ignore[assignment]
    elect(hub)


@pytest.mark.parametrize("change", [elect, restore_zookeeper])
async def test_a_new_leader_that_has_all_records_is_read_on(change: Callable[[ScriptedCluster], None]) -> None:
    async with read_journal() as (hub, journal):
        change(hub)
        await journal.read_on()
        write(hub, 10)
        await journal.read_on()
        change(hub)
        write(hub, 11)
        await journal.read_on()
        assert journal.table.size == READ + 2
        asked = hub.requests["OffsetForLeaderEpochRequest"]
        await journal.read_on()
        await journal.read_on()
        assert hub.requests["OffsetForLeaderEpochRequest"] <= asked + 1  # once for each leader
