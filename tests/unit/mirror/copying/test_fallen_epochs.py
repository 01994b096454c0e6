"""Source epochs that another mirror recorded, or that the source does not know any more."""

from random import Random
from typing import Any

import pytest

from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.gap_policy import GapCrossing
from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.epochs import EPOCHS_TOPIC, EpochEntries, SourceEpochs, source_epochs
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.model import TopicPartition
from tests.support.brokers import clock
from tests.support.mirrors import (
    CLICKS,
    Site,
    batch_at,
    make,
    mirror_settings,
    publish,
    put,
    read,
    reason_of,
    until_copied,
    until_said,
)

FAR = 99
"""An epoch that no broker of the source has reached."""


async def journal_of(site: Site) -> EpochJournal:
    journal = EpochJournal(site.hub, clock=clock, rng=Random(1))
    await journal.open()
    return journal


async def record(site: Site, journal: EpochJournal, entries: EpochEntries) -> None:
    topic_id = (await site.east.topic("clicks")).id
    await journal.replace(SourceEpochs(source="east", partition=CLICKS, topic_id=topic_id, entries=entries))


@pytest.mark.long
async def test_a_replica_whose_epochs_the_source_does_not_know_is_compared_by_its_last_batch(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a", b"b")
    await record(site, await journal_of(site), ((FAR, 0),))
    await publish(site.east, b"c")
    async with site.mirroring() as service:
        await until_copied(site.hub, CLICKS, b"a", b"b", b"c")
        assert reason_of(service) is None


@pytest.mark.long
async def test_a_replica_with_another_last_batch_halts_when_the_source_does_not_know_its_epochs(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    await put(site.hub, batch_at(1, b"other"))
    await record(site, await journal_of(site), ((FAR, 0),))
    await publish(site.east, b"b", b"c")
    async with site.mirroring() as service:
        await until_said(service, "hold different batches at offset 1")
    assert await read(site.hub, CLICKS) == [(0, b"a"), (1, b"other")]


async def test_epochs_that_another_mirror_recorded_are_known_after_reading_on(site: Site) -> None:
    await make(site.east)
    ours, theirs = await journal_of(site), await journal_of(site)
    await record(site, theirs, ((0, 0), (3, 2)))
    source = SourcePartition(cluster="east", partition=CLICKS, topic_id=(await site.east.topic("clicks")).id)
    assert ours.entries_of(source) == ()
    await ours.read_on()
    assert ours.entries_of(source) == ((0, 0), (3, 2))


async def test_a_mirror_that_is_behind_keeps_the_epochs_that_another_one_recorded(site: Site) -> None:
    await make(site.east)
    ours, theirs = await journal_of(site), await journal_of(site)
    source = SourcePartition(cluster="east", partition=CLICKS, topic_id=(await site.east.topic("clicks")).id)
    await theirs.add([source_epochs(source, ((0, 0), (2, 5)))])
    await theirs.add([source_epochs(source, ((3, 68),))])
    await ours.add([source_epochs(source, ((2, 5),))])
    await theirs.read_on()
    for journal in (ours, theirs, await journal_of(site)):
        assert journal.entries_of(source) == ((0, 0), (2, 5), (3, 68))
    last = (await read(site.hub, TopicPartition(EPOCHS_TOPIC, 0)))[-1][1]
    assert last == source_epochs(source, ((0, 0), (2, 5), (3, 68))).encode()[1]


async def test_epochs_of_a_source_that_was_restored_replace_those_that_are_recorded(site: Site) -> None:
    await make(site.east)
    journal = await journal_of(site)
    source = SourcePartition(cluster="east", partition=CLICKS, topic_id=(await site.east.topic("clicks")).id)
    await journal.add([source_epochs(source, ((4, 0), (7, 5)))])
    await journal.replace(source_epochs(source, ((1, 9),)))
    await journal.add([source_epochs(source, ((2, 12),))])
    for each in (journal, await journal_of(site)):
        assert each.entries_of(source) == ((1, 9), (2, 12))


async def test_a_partition_outside_of_its_source_is_compared_by_the_epochs_that_another_mirror_recorded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b")
    ours, theirs = await journal_of(site), await journal_of(site)
    source = SourcePartition(cluster="east", partition=CLICKS, topic_id=(await site.east.topic("clicks")).id)
    await theirs.add([source_epochs(source, ((0, 0),))])
    await ours.read_on()
    await theirs.add([source_epochs(source, ((3, 1),))])
    compared: list[EpochEntries] = []

    async def shared_end(_source: Any, _partition: Any, entries: EpochEntries, end: int, *, timeout_s: float) -> int:
        compared.append(entries)
        return end

    monkeypatch.setattr("pipeline.mirror.copying.gap_policy.shared_end", shared_end)
    gaps = GapJournal(site.hub, clock=clock, rng=Random(1))
    config = CurrentConfig(MirrorConfig.from_settings(mirror_settings("east")))
    replicas = KeptOffsets(site.hub, config)
    flows = SourceFlows([])
    crossing = GapCrossing(gaps, ours, site.east, replicas, flows, config, clock=clock)
    copy = PartitionCopy(Assignment(source=source, replica=CLICKS), is_out_of_range=True)
    await crossing.continue_at(copy, 2)
    assert compared == [((0, 0), (3, 1))]
