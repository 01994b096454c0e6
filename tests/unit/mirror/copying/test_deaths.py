"""Mirrors that die after each request that changed the hub: ledger, epochs and replica always agree.

A death at any other moment leaves the hub as after the last change, so that all states of the hub are met.
"""

from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import list_topics
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.epochs import EPOCHS_TOPIC, entries_before
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import GAPS_TOPIC, Gap
from pipeline.mirror.journals.table import SourcePartition
from pipeline.model import TopicPartition
from tests.support.brokers import clock
from tests.support.mirror_deaths import Death
from tests.support.mirrors import DEADLINE_S, Site, batch_at, make, publish, put, read, until

VALUES = [b"%d" % number for number in range(8)]


async def gaps_of(site: Site, topic: str) -> list[Gap]:
    journal = GapJournal(site.hub, clock=clock, rng=Random(1))
    if GAPS_TOPIC in await list_topics(site.hub):
        await journal.read_on()
    return [gap for gap in journal.ledger if gap.partition.topic == topic]


async def offsets_of(site: Site, topic: str) -> list[int]:
    if topic not in await list_topics(site.hub):
        return []
    return [offset for offset, _ in await read(site.hub, TopicPartition(topic, 0))]


async def check(site: Site, topic: str, foreign: int) -> None:
    """No offset is missing without a gap, no gap is without missing offsets, nothing is doubled, and epochs are known.

    The first `foreign` records of the replica are not of the mirror.
    """
    offsets, gaps = await offsets_of(site, topic), await gaps_of(site, topic)
    assert offsets == sorted(set(offsets))
    end = offsets[-1] + 1 if offsets else 0
    listed = [offset for gap in gaps for offset in range(gap.first, gap.last + 1)]
    assert listed == sorted(set(listed))
    assert set(range(foreign, end)) - set(offsets) <= set(listed)
    assert set(offsets[foreign:]) & set(listed) == set()
    if end > foreign:
        epochs = EpochJournal(site.hub, clock=clock, rng=Random(1))
        assert EPOCHS_TOPIC in await list_topics(site.hub)
        await epochs.open()
        known = site.east.view.topics[topic]
        source = SourcePartition(cluster="east", partition=TopicPartition(topic, 0), topic_id=known.id)
        assert entries_before(epochs.entries_of(source), end)[-1][0] == known.partitions[0].leader_epoch


async def begin_late(site: Site, topic: str) -> None:
    """Have the source begin at offset 3."""
    await make(site.east, topic)
    await publish(site.east, *VALUES[:6], topic=topic)
    await delete_records(site.east, {TopicPartition(topic, 0): 3}, timeout_s=DEADLINE_S)


async def fall_behind(site: Site, topic: str) -> None:
    """Have the source delete the offsets 1 and 2 before they are copied."""
    await make(site.east, topic)
    await publish(site.east, VALUES[0], topic=topic)
    async with site.mirroring(topics=[topic]):
        await until_offsets(site, topic, [0])
    await publish(site.east, *VALUES[1:6], topic=topic)
    await delete_records(site.east, {TopicPartition(topic, 0): 3}, timeout_s=DEADLINE_S)


async def lose_the_end(site: Site, topic: str) -> None:
    """Have the replica end at offset 4, and its source at 2."""
    await make(site.east, topic)
    await publish(site.east, *VALUES[:2], topic=topic)
    await make(site.hub, topic, mirror_source="east")
    await put(site.hub, batch_at(0, *VALUES[:4]), TopicPartition(topic, 0))


async def until_offsets(site: Site, topic: str, expected: list[int]) -> None:
    with trio.fail_after(DEADLINE_S):
        while await offsets_of(site, topic) != expected:
            await trio.sleep(0.01)


def scene_name(value: Any) -> str:
    return getattr(value, "__name__", "")


SCENES = [
    pytest.param(begin_late, 0, [3, 4, 5], [[(0, 2)]], marks=pytest.mark.long),
    (fall_behind, 0, [0, 3, 4, 5], [[(1, 2)]]),
    # A source that has grown before the gap is recorded is compared by batches; the gap begins where the source does.
    pytest.param(lose_the_end, 4, [0, 1, 2, 3, 4, 5], [[(2, 3)], [(0, 3)]], marks=pytest.mark.long),
]


@pytest.mark.parametrize(
    ("prepare", "foreign", "offsets", "gaps"), SCENES, ids=lambda value: getattr(value, "__name__", "")
)
async def test_a_mirror_that_dies_at_any_change_of_the_hub_leaves_no_gap_unrecorded(
    site: Site, monkeypatch: pytest.MonkeyPatch, prepare: Any, foreign: int, offsets: list[int], gaps: Any
) -> None:
    for number in range(1, 20):
        topic = f"clicks-{number}"
        await prepare(site, topic)
        death = Death(site.hub.request, number)
        with monkeypatch.context() as patched:
            patched.setattr(site.hub, "request", death.request)
            async with site.mirroring(topics=[topic], gap_policy="skip") as service:
                await until(lambda: death.came or is_settled(service.status(), topic))  # noqa: B023
        await check(site, topic, foreign)
        if foreign:
            await publish(site.east, *VALUES[2:6], topic=topic)
        async with site.mirroring(topics=[topic], gap_policy="skip"):
            await until_offsets(site, topic, offsets)
        await check(site, topic, foreign)
        assert [(gap.first, gap.last) for gap in await gaps_of(site, topic)] in gaps
        if not death.came:
            assert number > 2
            return
    raise AssertionError("the mirror does not come to an end")


def is_settled(status: Any, topic: str) -> bool:
    """True if the partition has caught up, or waits for its source."""
    lines = [line for source in status["sources"] for line in source["partitions"] if line["topic"] == topic]
    return any(line["state"] == "caught_up" or "waits until" in str(line["error"]) for line in lines)
