"""What the audit expects of real clusters: what mirrors select, whether they have copied anything or not."""

import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.audit.events.report import POSITION, ROW, CountReport, LifeSign, ReportedTopic
from pipeline.audit.events.tiers import Counter, Tier
from pipeline.audit.expectations.reader import ExpectationsReader
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, OffsetSpan, Status
from pipeline.audit.ledger.ledger import Ledger
from pipeline.cli.audit.expectations_reader import expectations_reader
from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import create_partitions, delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.journals.selection_journal import SelectionJournal
from pipeline.mirror.journals.selections import SELECTIONS_TOPIC, MirrorSelection, SelectedFlow, Selections
from pipeline.mirror.journals.table import TABLE_TOPIC, PartitionTable
from pipeline.mirror.matching import match_within_bound
from pipeline.mirror.topics.expected_replicas import MAX_SLOW_MATCHES, ExpectedReplicas
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import CLICKS, DEADLINE_S, NOBODY, Site, make, publish, read, until_copied


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        serving_cluster(tmp_path / "east") as east,
        serving_cluster(tmp_path / "west") as west,
        serving_cluster(tmp_path / "hub") as hub,
    ):
        yield Site(east, west, hub)


def reader_of(site: Site, *, metrics: CollectorRegistry | None = None, **live: Cluster) -> ExpectationsReader:
    return expectations_reader(
        live or {"east": site.east, "west": site.west},
        ("hub", site.hub),
        clock=clock,
        metrics=metrics or CollectorRegistry(),
        max_age_s=0,
        timeout_s=5,
    )


def copies(expected: Expectations) -> list[tuple[str, str, str]]:
    return sorted((each.cluster, each.topic, each.replica_topic) for each in expected.mirrored)


def select(*topics: str, source: str = "east", template: str = "{topic}", mode: str = "exact") -> MirrorSelection:
    flow = SelectedFlow(name="f", source=source, topics=topics, replica_topic=template)
    return MirrorSelection(mode=mode, sources=(source,), flows=(flow,))


async def record(site: Site, mirror: str, selection: MirrorSelection) -> None:
    journal = SelectionJournal(site.hub, clock=clock, rng=Random(1))
    await journal.open()
    await journal.record(mirror, selection)


async def test_a_topic_that_no_mirror_has_come_to_is_expected_in_the_hub(site: Site) -> None:
    """Fault 4: the mirror that would enter the topic in the partition table is the one that is down."""
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    await make(site.east, "clicks-2", 3)  # the mirror is down
    await make(site.west)
    await make(site.west, "views")
    expected = await reader_of(site).read()
    assert expected.unknown == []
    assert copies(expected) == [
        ("east", "clicks", "clicks"),
        ("east", "clicks-2", "clicks-2"),
        ("west", "clicks", "clicks"),
    ]
    assert expected.partitions["east", "clicks-2"] == 3 and ("hub", "clicks-2") not in expected.partitions
    assert [(route.cluster, route.source, route.replica) for route in expected.routes] == [("east", CLICKS, CLICKS)]
    assert expected.routes[0].topic_id == str(site.east.view.topics["clicks"].id)

    await delete_topics(site.hub, [TABLE_TOPIC])
    expected = await reader_of(site).read()
    assert len(copies(expected)) == 3 and list(expected.routes) == []


async def test_copies_of_a_mirror_in_append_mode_are_not_compared_and_unknown(site: Site) -> None:
    """Their offsets, producers and so their sums differ from those of the source: nobody can tell what is missing."""
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    await make(site.west, "views")
    await make(site.west, "orders")
    await record(site, "appending", select("clicks", mode="append"))
    await record(site, "exact", select("views", source="west"))
    expected = await reader_of(site).read()
    assert [route.cluster for route in expected.routes] == []
    assert not [each for each in copies(expected) if each[0] == "east"]
    assert ("west", "views", "views") in copies(expected)
    (witness,) = [witness for witness in expected.unknown if witness.cluster == "east"]
    assert (witness.name, witness.topic) == ("mirror", "clicks")
    assert "append mode" in witness.reason


async def test_a_hub_without_selections_is_a_missing_witness(site: Site) -> None:
    await make(site.east)
    expected = await reader_of(site).read()
    assert [(witness.name, witness.cluster) for witness in expected.unknown] == [("mirror", None)]
    await record(site, "m", select("clicks"))
    expected = await reader_of(site).read()
    assert expected.unknown == [] and copies(expected) == [("east", "clicks", "clicks")]


async def test_new_partitions_topics_selections_and_gaps_are_read_on(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a", b"b", b"c")
    await delete_records(site.east, {CLICKS: 2}, timeout_s=5)
    reader = reader_of(site)
    await record(site, "m", select("views"))
    assert copies(await reader.read()) == []
    async with site.mirroring(gap_policy="skip"):
        with trio.fail_after(DEADLINE_S):
            while "clicks" not in site.hub.view.topics or await read(site.hub, CLICKS) != [(2, b"c")]:
                await site.hub.refresh()
        await create_partitions(site.east, {"clicks": 2})
        await make(site.east, "views", cleanup_policy="compact")
        expected = await reader.read()
    assert copies(expected) == [("east", "clicks", "clicks"), ("east", "views", "views")]
    assert expected.partitions["east", "clicks"] == 2
    assert expected.compacted == {("east", "views")}
    assert ("hub", "clicks") in expected.copied
    (route,) = [route for route in expected.routes if route.source == CLICKS]
    assert route.gaps == [OffsetSpan(first=0, last=1)]


async def test_two_mirrors_that_contradict_each_other_add_up(site: Site) -> None:
    await make(site.east)
    await record(site, "one", select("clicks", template="{source}.{topic}"))
    await record(site, "two", select("clicks.*", template="{topic}"))
    assert copies(await reader_of(site).read()) == [("east", "clicks", "clicks"), ("east", "clicks", "east.clicks")]


async def test_garbage_in_the_journal_of_selections_changes_nothing(site: Site) -> None:
    await make(site.east)
    await record(site, "m", select("clicks"))
    async with open_producer(site.hub, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
        for key, value in ((b"", b""), (b"\xff", b"{}"), (b"m/0", b"garbage"), (b"m/5", b"{}"), (b"x/0", b"[" * 9_000)):
            await producer.send(SELECTIONS_TOPIC, value, key=key, partition=0)
    metrics = CollectorRegistry()
    expected = await reader_of(site, metrics=metrics).read()
    assert copies(expected) == [("east", "clicks", "clicks")] and expected.unknown == []
    assert metrics.get_sample_value("mirror_table_records_skipped_total") == 0


async def test_a_mirror_without_a_selection_is_named_for_its_sources(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    await delete_topics(site.hub, [SELECTIONS_TOPIC])
    await record(site, "newer", select("clicks", source="west"))
    (witness,) = (await reader_of(site).read()).unknown
    assert witness.cluster == "east" and "upgrade the mirror" in witness.reason


async def test_a_name_that_means_another_cluster_to_the_mirror_is_told(site: Site) -> None:
    await make(site.east)
    await publish(site.east, b"a")
    async with site.mirroring():
        await until_copied(site.hub, CLICKS, b"a")
    (witness,) = (await reader_of(site, east=site.west).read()).unknown
    assert witness.cluster == "east" and "another cluster" in witness.reason


async def test_an_unreachable_cluster_is_a_witness_and_the_others_are_read(site: Site) -> None:
    await make(site.east)
    await record(site, "m", select("clicks"))
    async with open_cluster(NOBODY) as nobody:
        reader = expectations_reader(
            {"east": site.east, "west": nobody},
            ("hub", site.hub),
            clock=clock,
            metrics=CollectorRegistry(),
            timeout_s=0.5,
        )
        expected = await reader.read()
    assert [witness.cluster for witness in expected.unknown] == ["west"]
    assert copies(expected) == [("east", "clicks", "clicks")]


SLOW = r"(a+)+\$"
NAME = "a" * 40


def expected_replicas(*flows: SelectedFlow, matches: Any = match_within_bound) -> ExpectedReplicas:
    selections = Selections()
    for key, value in MirrorSelection(mode="exact", sources=("east",), flows=flows).encode("m", 1):
        selections.apply(key, value)
    return ExpectedReplicas(selections, PartitionTable(), matches)


@pytest.mark.long
def test_ten_thousand_catastrophic_flows_take_no_more_time_than_a_few() -> None:
    flows = [SelectedFlow(name=f"f{number}", source="east", topics=(SLOW,)) for number in range(10_000)]
    expected = expected_replicas(*flows)
    began = time.process_time()
    found, reason = expected.of("east", NAME)
    assert found == [] and reason is not None and "too long" in reason
    assert time.process_time() - began < 2 + MAX_SLOW_MATCHES * 0.3
    began = time.process_time()
    for number in range(1_000):
        assert expected.of("east", f"{NAME}{number}")[1] is not None
    assert time.process_time() - began < 1


@pytest.mark.long
def test_ten_thousand_flows_are_applied_to_a_thousand_topics_in_seconds() -> None:
    flows = [SelectedFlow(name=f"f{number}", source="east", topics=(rf"t{number}\..*",)) for number in range(10_000)]
    expected = expected_replicas(*flows)
    began = time.process_time()
    assert expected.of("east", "t7.x") == (["t7.x"], None)
    for number in range(100):
        assert expected.of("east", f"t{number}.clicks") == ([f"t{number}.clicks"], None)
    assert time.process_time() - began < 10
    assert expected.troubles() == {}


def test_a_selection_with_a_pattern_that_is_none_is_a_trouble() -> None:
    expected = expected_replicas(SelectedFlow(name="f", source="east", topics=("(",)))
    assert expected.of("east", "clicks") == ([], None)
    assert "regular expression" in expected.troubles()["m"]


def test_matches_are_those_of_mirrors() -> None:
    asked: list[str] = []

    def matches(pattern: re.Pattern[str], name: str) -> bool:
        asked.append(name)
        return pattern.fullmatch(name) is not None

    expected = expected_replicas(SelectedFlow(name="f", source="east", topics=("c.*",)), matches=matches)
    assert expected.of("east", "clicks") == (["clicks"], None)
    assert expected.of("east", "_clicks") == ([], None)
    assert expected.of("west", "clicks") == ([], None)
    assert asked and set(asked) <= {"clicks", "_clicks"}


async def test_patterns_leave_the_loop_to_others(site: Site) -> None:
    for number in range(5):
        await make(site.east, f"t{number}")
    flows = [SelectedFlow(name=f"f{number}", source="east", topics=(rf"t{number}.*",)) for number in range(3_000)]
    await record(site, "m", MirrorSelection(mode="exact", sources=("east",), flows=flows))
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = trio.current_time()
            await trio.sleep(0.001)
            longest = max(longest, trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        expected = await reader_of(site).read()
        nursery.cancel_scope.cancel()
    assert len(expected.mirrored) == 5
    assert longest < 5
    assert TopicPartition("t0", 0) == TopicPartition(expected.mirrored[0].topic, 0)
    assert expected.mirrored[0] == MirroredTopic(cluster="east", topic="t0", replica_topic="t0")


HOUR = 1_700_000_000_000 // HOUR_MS * HOUR_MS
LIFE = LifeSign(host="h", started_ms=0, interval_ms=10_000, closed_ms=0)


def counted(cluster: str, topic: str, records: int, now_ms: int) -> CountReport:
    """What a broker counted of partition 0 in one hour."""
    rows, positions = np.zeros(1, ROW), np.zeros(1, POSITION)
    rows["start_ms"], rows["span_ms"], rows["revision"], rows["records"] = HOUR, HOUR_MS, records, records
    rows["batches"], rows["last_offset"], rows["has_sums"] = 1, records - 1, True
    positions["end_offset"], positions["is_leader"] = records, True
    return CountReport(
        counter=Counter(tier=Tier.BROKER, cluster=cluster),
        process="1",
        created_ms=now_ms,
        window_ms=HOUR_MS,
        topics=[ReportedTopic(topic)],
        rows=rows,
        positions=positions,
        life=LIFE,
    )


async def test_hours_of_a_topic_that_was_never_mirrored_are_not_exact(site: Site) -> None:
    """Fault 4, from the clusters to the verdict: live counts alone were called exact."""
    for topic in ("clicks", "views"):
        await make(site.east, topic)
    now_ms = clock()
    ledger = Ledger()
    for report in (counted("east", "clicks", 50, now_ms), counted("hub", "other", 1, now_ms)):
        ledger.apply(report)
    judge = Judge(ledger, grace_ms=60_000, pending_max_ms=3_600_000)

    async def verdict(at_ms: int = now_ms) -> Status:
        expected = await reader_of(site).read()
        expected = replace(expected, read_to_ms=dict.fromkeys(("east", "west", "hub"), at_ms))
        (hour,) = judge.judge(expected, at_ms).hours("clicks")
        assert hour.status is not Status.UNKNOWN or hour.missing_witnesses
        return hour.status

    assert await verdict() is Status.UNKNOWN  # no mirror has said what it selects
    await record(site, "m", select("views"))
    assert await verdict() is Status.EXACT  # a live topic that no mirror should copy
    await record(site, "m", select("clicks"))
    assert await verdict() is Status.PENDING
    later_ms = now_ms + 2 * HOUR_MS
    assert await verdict(later_ms) is Status.UNKNOWN  # no broker gave a life sign since
    for at_ms in range(now_ms, later_ms + 1, LIFE.interval_ms):
        for report in (counted("east", "clicks", 50, at_ms), counted("hub", "other", 1, at_ms)):
            ledger.apply(replace(report, rows=report.rows[:0]))  # nothing new was counted
    assert await verdict(later_ms) is Status.MISSING
