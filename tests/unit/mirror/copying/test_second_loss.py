"""A source that loses more of its log while a replica that is ahead of it waits."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.divergence import FallenEpochsError
from pipeline.mirror.copying.gap_policy import GapCrossing, HaltedError, WaitingError
from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.epochs import source_epochs
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.mirror.topics.flows import flows_of
from pipeline.model import LeaderEpoch
from tests.support.brokers import clock
from tests.support.mirrors import CLICKS, Site, make, mirror_settings, publish

END = 4
"""Offset at which the replica ends."""


class Waiting:
    """A replica that ends at `END`, and a source that has less, whose log is the same up to `shared`."""

    def __init__(self, site: Site, gaps: GapJournal, crossing: GapCrossing, copy: PartitionCopy) -> None:
        self.site = site
        self.shared: int | None = None
        self.gaps = gaps
        self._crossing = crossing
        self._copy = copy

    async def shared_end(self, *_: Any, **__: Any) -> int:
        if self.shared is None:
            raise FallenEpochsError("the source knows no leader epoch as high as 0")
        return self.shared

    async def continue_with(self, shared: int | None) -> tuple[int, int | None]:
        self.shared = shared
        place = await self._crossing.continue_at(self._copy, END)
        return place.offset, place.leader_epoch

    def truncated(self) -> list[tuple[int, int]]:
        return [(gap.first, gap.last) for gap in self.gaps.ledger]


async def waiting(site: Site, monkeypatch: pytest.MonkeyPatch, policy: str, epoch: int = 0) -> Waiting:
    await make(site.east)
    await publish(site.east, b"a", b"b")
    epochs = EpochJournal(site.hub, clock=clock, rng=Random(1))
    gaps = GapJournal(site.hub, clock=clock, rng=Random(1))
    await epochs.open()
    await gaps.open()
    source = SourcePartition(cluster="east", partition=CLICKS, topic_id=(await site.east.topic("clicks")).id)
    await epochs.add([source_epochs(source, ((epoch, 0),))])
    config = MirrorConfig.from_settings(mirror_settings("east", gap_policy=policy))
    now = CurrentConfig(config)
    flows = flows_of(config)["east"]
    crossing = GapCrossing(gaps, epochs, site.east, KeptOffsets(site.hub, now), flows, now, clock=clock)
    copy = PartitionCopy(Assignment(source=source, replica=CLICKS), is_truncated=True)
    found = Waiting(site, gaps, crossing, copy)
    monkeypatch.setattr("pipeline.mirror.copying.gap_policy.shared_end", found.shared_end)
    with pytest.raises(WaitingError if policy == "skip" else HaltedError):
        await found.continue_with(None if epoch else 2)
    return found


async def test_what_the_source_loses_while_the_replica_waits_is_recorded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = await waiting(site, monkeypatch, "skip")
    assert case.truncated() == [(2, 3)]
    for shared, truncated in ((3, [(2, 3)]), (1, [(2, 3), (1, 3)]), (1, [(2, 3), (1, 3)])):
        with pytest.raises(WaitingError):
            await case.continue_with(shared)
        assert case.truncated() == truncated
    await publish(site.east, b"c", b"d")
    assert await case.continue_with(1) == (END, site.east.view.leader_epoch_of(CLICKS))
    assert case.truncated() == [(2, 3), (1, 3)]


async def test_a_replica_that_a_user_resumed_halts_again_when_its_source_loses_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = await waiting(site, monkeypatch, "halt")
    assert case.truncated() == []
    with pytest.raises(HaltedError) as halted:
        await case.continue_with(2)
    await case.gaps.record(halted.value.gap)
    with pytest.raises(WaitingError):
        await case.continue_with(2)
    with pytest.raises(HaltedError, match="the source lost offsets 1 to 3"):
        await case.continue_with(1)


async def test_a_source_whose_epochs_fell_while_the_replica_waits_may_have_lost_all(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = await waiting(site, monkeypatch, "skip")
    for _ in range(2):
        with pytest.raises(WaitingError):
            await case.continue_with(None)
    assert case.truncated() == [(2, 3), (0, 3)]


async def test_a_leader_that_was_replaced_and_does_not_know_it_yet_makes_no_gap(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names a lower leader epoch than the replica's records have. A source that was restored goes on doing so."""
    case = await waiting(site, monkeypatch, "skip", epoch=7)
    assert case.truncated() == []
    with pytest.raises(WaitingError, match="a broker that leads no more may have answered"):
        await case.continue_with(None)
    assert case.truncated() == []
    compared = []

    async def adopt_epoch(_: GapCrossing, copy: PartitionCopy, end: int) -> None:
        compared.append((copy.source, end))

    monkeypatch.setattr(GapCrossing, "_adopt_epoch", adopt_epoch)
    monkeypatch.setattr("pipeline.mirror.copying.gap_policy.STALE_LEADER_S", 0.0)
    await case.continue_with(None)
    assert compared == [(CLICKS, END)]


async def test_each_leader_that_does_not_know_yet_that_it_was_replaced_has_to_stand(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of the leader between two of them shows that the first one stood for nothing."""
    case = await waiting(site, monkeypatch, "skip", epoch=7)
    with pytest.raises(WaitingError, match="waits until the source, which lost its end"):
        await case.continue_with(2)
    assert case.truncated() == [(2, 3)]
    monkeypatch.setattr("pipeline.mirror.copying.gap_policy.STALE_LEADER_S", 0.5)
    await trio.sleep(0.6)
    with pytest.raises(WaitingError, match="a broker that leads no more may have answered"):
        await case.continue_with(None)
    assert case.truncated() == [(2, 3)]


async def test_a_replaced_leader_whose_successor_becomes_known_meanwhile_makes_no_gap(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = await waiting(site, monkeypatch, "skip", epoch=7)
    with pytest.raises(WaitingError):
        await case.continue_with(2)

    async def shared_end(source: Cluster, *_: Any, **__: Any) -> int:
        topic = source.view.topics["clicks"]
        partitions = {0: replace(topic.partitions[0], leader_epoch=LeaderEpoch(7))}
        topics = {**source.view.topics, "clicks": replace(topic, partitions=partitions)}
        source.view = replace(source.view, topics=topics)
        raise FallenEpochsError("the broker that led knows no leader epoch as high as 7")

    async def bound(_: GapCrossing, copy: PartitionCopy, position: int) -> int:
        return 0  # as the new leader answers

    monkeypatch.setattr("pipeline.mirror.copying.gap_policy.shared_end", shared_end)
    monkeypatch.setattr(GapCrossing, "_bound", bound)
    with pytest.raises(WaitingError, match="a broker that leads no more may have answered"):
        await case.continue_with(None)
    assert case.truncated() == [(2, 3)]
