"""Gaps between a source and its replica: recorded before they are skipped, and skipped only as the settings say."""

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.audit.judgement.verdicts import OffsetSpan
from pipeline.cli.audit.expectations_reader import MirrorJournals
from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import delete_topics, list_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import NetworkError
from pipeline.mirror.copying.resume import NotHaltedError, ResumeRequest
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.gaps import GAPS_TOPIC, Gap, decode_gap
from pipeline.mirror.journals.journal_topic import JournalTopic
from pipeline.model import TopicPartition
from tests.support.brokers import clock
from tests.support.mirrors import (
    CLICKS,
    DEADLINE_S,
    Site,
    batch_at,
    make,
    publish,
    put,
    read,
    reason_of,
    until,
    until_said,
)

VALUES = [b"%d" % number for number in range(10)]


async def ledger_of(hub: Cluster) -> list[Gap]:
    journal = GapJournal(hub, clock=clock, rng=Random(1))
    if GAPS_TOPIC in await list_topics(hub):
        await journal.read_on()
    return list(journal.ledger)


def ranges(gaps: Iterable[Gap]) -> list[tuple[str, str, int, int]]:
    return [(str(gap.partition), gap.reason.value, gap.first, gap.last) for gap in gaps]


async def until_at(hub: Cluster, offsets: Iterable[int], partition: TopicPartition = CLICKS) -> None:
    """Until the replica holds records at these offsets, and no others."""
    expected, found = list(offsets), [-1]
    with trio.move_on_after(DEADLINE_S):
        while found != expected:
            await trio.sleep(0.02)
            if partition.topic in await list_topics(hub):
                found = [offset for offset, _ in await read(hub, partition)]
    assert found == expected


async def fall_behind(site: Site, *, copied: int = 1, deleted: int = 3, written: int = 5) -> None:
    """A replica of `copied` records, and a source that has deleted more and goes on."""
    await make(site.east)
    await publish(site.east, *VALUES[:copied])
    async with site.mirroring():
        await until_at(site.hub, range(copied))
    await publish(site.east, *VALUES[copied:written])
    await delete_records(site.east, {CLICKS: deleted}, timeout_s=DEADLINE_S)


async def test_a_source_that_begins_later_leaves_a_gap_at_the_start_of_its_replica(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES[:4])
    await delete_records(site.east, {CLICKS: 2}, timeout_s=DEADLINE_S)
    for _ in range(2):
        async with site.mirroring():
            await until_at(site.hub, [2, 3])
    (gap,) = await ledger_of(site.hub)
    assert ranges([gap]) == [("clicks-0", "start", 0, 1)]
    assert (gap.source, gap.replica, gap.cluster_id) == ("east", CLICKS, site.east.view.cluster_id)


async def test_an_empty_source_that_had_records_leaves_a_gap_at_once(site: Site) -> None:
    await make(site.east)
    await publish(site.east, *VALUES[:4])
    await delete_records(site.east, {CLICKS: 4}, timeout_s=DEADLINE_S)
    async with site.mirroring() as service:
        await until(lambda: len(list(service.gaps.ledger)) == 1)
        await publish(site.east, b"4")
        await until_at(site.hub, [4])
        shown = {"source": "east", "reason": "start"}
        assert site.metrics.get_sample_value("mirror_gaps_total", shown) == 1
    assert ranges(await ledger_of(site.hub)) == [("clicks-0", "start", 0, 3)]


async def test_a_partition_halts_at_a_gap_and_across_restarts_until_it_is_resumed(site: Site) -> None:
    await fall_behind(site)
    for _ in range(2):
        async with site.mirroring() as service:
            await until_said(service, "pipeline mirror resume --mirror URL --skip --source east clicks-0")
            assert "offsets 1 to 2" in str(reason_of(service))
            assert await ledger_of(site.hub) == []
    async with site.mirroring() as service:
        await until_said(service, "offsets 1 to 2")
        (shown,) = await service.resumption.resume(ResumeRequest(names=["clicks"]))
        assert await ledger_of(site.hub) == []
        (skipped,) = await service.resumption.resume(ResumeRequest(names=["clicks-0"], source="east", skip=True))
        assert (shown["first"], shown["last"], skipped["first"], skipped["last"]) == (1, 2, 1, 2)
        await until_at(site.hub, [0, 3, 4])
        await until(lambda: reason_of(service) is None)
        with pytest.raises(NotHaltedError, match="nothing to resume: clicks-0 is not halted"):
            await service.resumption.resume(ResumeRequest(names=["clicks-0"], skip=True))
    assert ranges(await ledger_of(site.hub)) == [("clicks-0", "retention", 1, 2)]


async def test_gaps_are_skipped_if_the_settings_say_so(site: Site) -> None:
    await fall_behind(site)
    for _ in range(2):
        async with site.mirroring(gap_policy="skip"):
            await until_at(site.hub, [0, 3, 4])
    assert ranges(await ledger_of(site.hub)) == [("clicks-0", "retention", 1, 2)]
    (route,) = (await MirrorJournals(site.hub, clock=clock, metrics=CollectorRegistry()).read()).routes
    assert route.gaps == [OffsetSpan(first=1, last=2)]  # for the audit


async def test_a_source_that_deleted_everything_is_a_gap_before_its_next_record(site: Site) -> None:
    await fall_behind(site, deleted=5)
    async with site.mirroring() as service:
        await until_said(service, "offsets 1 to 4")
    async with site.mirroring(gap_policy="skip") as service:
        await until(lambda: len(list(service.gaps.ledger)) == 1)
        await publish(site.east, b"5")
        await until_at(site.hub, [0, 5])


async def test_a_recorded_gap_is_permission_and_what_was_deleted_since_is_recorded_too(site: Site) -> None:
    await fall_behind(site)
    async with site.mirroring() as service:
        await until_said(service, "offsets 1 to 2")
        halted = service.status()["sources"][0]["partitions"][0]["halt"]
        await service.gaps.record(decode_gap(json.dumps({"version": 1, **halted}).encode()))
    await delete_records(site.east, {CLICKS: 4}, timeout_s=DEADLINE_S)
    async with site.mirroring():
        await until_at(site.hub, [0, 4])
    assert ranges(await ledger_of(site.hub)) == [("clicks-0", "retention", 1, 2), ("clicks-0", "retention", 3, 3)]


async def test_a_record_of_an_unknown_reason_at_the_replica_s_end_stops_nothing(site: Site) -> None:
    await fall_behind(site)
    async with site.mirroring() as service:
        await until_said(service, "offsets 1 to 2")
        halted = service.status()["sources"][0]["partitions"][0]["halt"]
    stray = {"version": 1, **halted, "reason": "recreated"}
    await publish(site.hub, json.dumps(stray).encode(), topic=GAPS_TOPIC)
    async with site.mirroring(gap_policy="skip") as service:
        await until_at(site.hub, [0, 3, 4])
        assert service.gaps.skipped == 1


async def test_two_mirrors_record_a_gap_once(site: Site) -> None:
    await fall_behind(site)
    async with site.mirroring(gap_policy="skip"), site.mirroring(gap_policy="skip"):
        await until_at(site.hub, [0, 3, 4])
    assert ranges(await ledger_of(site.hub)) == [("clicks-0", "retention", 1, 2)]


async def test_nothing_is_skipped_while_the_ledger_cannot_be_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fall_behind(site)
    append = JournalTopic.append

    async def refuse(journal: JournalTopic, records: Any, **settings: Any) -> None:
        if records[0][1].find(b'"first"') >= 0:
            raise NetworkError("the ledger is away")
        await append(journal, records, **settings)

    monkeypatch.setattr(JournalTopic, "append", refuse)
    async with site.mirroring(gap_policy="skip") as service:
        await until_said(service, "the ledger is away")
        monkeypatch.undo()
        await until_at(site.hub, [0, 3, 4])


async def test_what_is_rejected_or_of_another_source_is_not_resumed(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"old")
    async with site.mirroring() as service:
        await until_at(site.hub, [0])
        await delete_topics(site.east, ["clicks"])
        await until_said(service, "no longer exists")
        with pytest.raises(NotHaltedError, match="cannot be resumed: no longer exists in east"):
            await service.resumption.resume(ResumeRequest(names=["clicks"], skip=True))
        with pytest.raises(NotHaltedError, match="no partition of west that is mirrored bears the name clicks"):
            await service.resumption.resume(ResumeRequest(names=["clicks"], source="west", skip=True))


async def test_a_replica_that_is_past_its_source_waits_for_it_once_that_is_accepted(site: Site) -> None:
    await make(site.east)
    await make(site.hub, mirror_source="pipeline")
    await put(site.hub, batch_at(0, *VALUES[:4]))
    await publish(site.east, *VALUES[:2])
    async with site.mirroring() as service:
        await until_said(service, "the source lost offsets 2 to 3")
        await service.resumption.resume(ResumeRequest(names=["clicks"], skip=True))
        await until_said(service, "waits until the source")
        await publish(site.east, *VALUES[2:6])
        await until_at(site.hub, range(6))
    assert ranges(await ledger_of(site.hub)) == [("clicks-0", "truncated", 2, 3)]
