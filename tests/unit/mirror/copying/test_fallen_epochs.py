"""Source epochs that another mirror recorded, or that the source does not know any more."""

from random import Random

from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.epochs import EpochEntries, SourceEpochs
from pipeline.mirror.journals.table import SourcePartition
from tests.support.brokers import clock
from tests.support.mirrors import CLICKS, Site, batch_at, make, publish, put, read, reason_of, until_copied, until_said

FAR = 99
"""An epoch that no broker of the source has reached."""


async def journal_of(site: Site) -> EpochJournal:
    journal = EpochJournal(site.hub, clock=clock, rng=Random(1))
    await journal.open()
    return journal


async def record(site: Site, journal: EpochJournal, entries: EpochEntries) -> None:
    topic_id = (await site.east.topic("clicks")).id
    await journal.record([SourceEpochs(source="east", partition=CLICKS, topic_id=topic_id, entries=entries)])


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
