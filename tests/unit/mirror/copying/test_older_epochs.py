"""A journal of the source's epochs that came back older, as after an unclean election in the hub."""

from collections.abc import Sequence
from random import Random

import pytest

from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.gap_policy import Continuation, GapCrossing, HaltedError
from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.epochs import source_epochs
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.topics.flows import flows_of
from tests.support.brokers import clock
from tests.support.mirrors import CLICKS, Site, batch_at, make, mirror_settings
from tests.support.scripted_broker import ScriptedCluster

END = 4


async def continued(site: Site, source: Sequence[bytes]) -> tuple[Continuation, GapJournal]:
    """Have a replica of the records abcd go on whose source has these, of which the last two are of epoch 1.

    The journal has epoch 0 alone. Return the place, and the ledger.
    """
    east = ScriptedCluster()
    east.add_topic("clicks", [1])
    for number, value in enumerate(source):
        east.partition(CLICKS).epoch = int(number >= END - 2)
        east.partition(CLICKS).append_batch(bytearray(batch_at(0, value)))
    await make(site.hub)
    for value in (b"a", b"b", b"c", b"d"):
        batches = {CLICKS: batch_at(0, value)}
        assert (await raw_produce(site.hub, batches, keep_offsets=False, timeout_s=30))[CLICKS].error is None
    epochs, gaps = EpochJournal(site.hub, clock=clock, rng=Random(1)), GapJournal(site.hub, clock=clock, rng=Random(1))
    await epochs.open()
    await gaps.open()
    config = MirrorConfig.from_settings(mirror_settings("east"))
    now = CurrentConfig(config)
    async with east.broker(1) as address, open_cluster(ClientConfig(bootstrap=(address,))) as cluster:
        topic_id = (await cluster.topic("clicks")).id
        partition = SourcePartition(cluster="east", partition=CLICKS, topic_id=topic_id)
        await epochs.add([source_epochs(partition, ((0, 0),))])
        flows = flows_of(config)["east"]
        crossing = GapCrossing(gaps, epochs, cluster, KeptOffsets(site.hub, now), flows, now, clock=clock)
        copy = PartitionCopy(Assignment(source=partition, replica=CLICKS), is_truncated=True)
        place = await crossing.place_of(copy, END)
        assert epochs.entries_of(partition) == ((1, END - 1),)
        return place, gaps


async def test_a_source_whose_newer_epochs_the_journal_lacks_has_lost_nothing(site: Site) -> None:
    """Its epoch 0 ends before the replica does. Both have the same batch at the replica's end."""
    place, gaps = await continued(site, [b"a", b"b", b"c", b"d", b"e"])
    assert place == Continuation(offset=END, leader_epoch=1)
    assert list(gaps.ledger) == []


@pytest.mark.parametrize("source", [[b"a", b"b", b"c"], [b"a", b"b", b"c", b"x"], [b"a", b"b"]])
async def test_a_source_that_lost_records_halts_the_replica_all_the_same(site: Site, source: Sequence[bytes]) -> None:
    with pytest.raises(HaltedError, match=r"lost offsets 2 to 3"):
        await continued(site, source)
