"""Verification of replicas: sources and hub in this process, faults made by hand."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.range_sums import can_sum_ranges
from pipeline.client.admin.resource_configs import ConfigResource, alter_configs
from pipeline.client.admin.topics import create_partitions, delete_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.mirror.journals.gaps import GapLedger, GapReason, gap_of, recreation_of
from pipeline.mirror.journals.table import PartitionTable, Proposal, SourcePartition
from pipeline.mirror.journals.table_journal import TableJournal
from pipeline.mirror.verification import sides
from pipeline.mirror.verification.comparison import COMPACTED, DELETED, DifferenceKind
from pipeline.mirror.verification.verifier import CopyVerdict, PartitionReport, ReplicaVerifier
from pipeline.model import TopicPartition
from pipeline.promotion import MIRROR_PROMOTED, Promotion
from pipeline.protocol.messages.describe_configs import ResourceType
from pipeline.records.batch import HEADER_SIZE
from tests.support.brokers import clock
from tests.support.mirrors import CLICKS, DEADLINE_S, Site, batch_at, make, mirroring_of, publish, put, until_copied


async def table_of(site: Site, *, cluster_id: str | None = None) -> PartitionTable:
    """A table with one entry, as a mirror would have written it."""
    topic = (await site.east.fetch_all_topics()).topics["clicks"]
    source = SourcePartition(cluster="east", partition=CLICKS, topic_id=topic.id, cluster_id=cluster_id)
    table = PartitionTable()
    table.apply(Proposal(source=source, replica_topic="clicks"))
    return table


async def verify(
    site: Site,
    *,
    is_deep: bool = False,
    may_fetch: bool = False,
    gaps: tuple[tuple[int, int], ...] = (),
    reason: GapReason = GapReason.RETENTION,
) -> PartitionReport:
    table, ledger = await table_of(site), GapLedger()
    (assignment,) = table.assignments()
    for first, last in gaps:
        ledger.apply(gap_of(assignment, first, last, reason, now_ms=1))
    verifier = ReplicaVerifier(table, ledger, {"east": site.east}, site.hub, is_deep=is_deep, may_fetch=may_fetch)
    (report,) = await verifier.verify()
    return report


async def copied(site: Site, batches: list[bytes]) -> None:
    """These batches at the source, and their copies."""
    await make(site.east, mirror_source="elsewhere")
    await make(site.hub, mirror_source="east")
    for batch in batches:
        await put(site.east, batch)
        await put(site.hub, batch)


def batches_of(count: int = 50) -> list[bytes]:
    """Batches of two records."""
    return [batch_at(2 * number, b"a%d" % number, b"b%d" % number) for number in range(count)]


def kinds(report: PartitionReport) -> list[tuple[DifferenceKind, int, int]]:
    return [(found.kind, found.first_offset, found.last_offset) for found in report.comparison.differences]


@pytest.fixture(params=["summed", "fetched"])
def may_fetch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, site: Site) -> bool:
    """False if the source's broker sums, True if the source is fetched, as one of Apache Kafka is."""
    if request.param == "summed":
        return False
    forget_feature(monkeypatch, site)
    return True


def forget_feature(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    async def only_of_the_hub(cluster: Cluster, topic_partition: TopicPartition) -> bool:
        return cluster is site.hub and await can_sum_ranges(cluster, topic_partition)

    monkeypatch.setattr(sides, "can_sum_ranges", only_of_the_hub)


async def test_equal_logs_are_equal(site: Site, may_fetch: bool) -> None:
    await copied(site, batches_of())
    report = await verify(site, may_fetch=may_fetch)
    assert (report.verdict, report.from_offset, report.up_to_offset, report.lag) == (CopyVerdict.EQUAL, 0, 100, 0)
    sums = report.comparison.compared
    assert (sums.batches, sums.records, sums.size_bytes) == (50, 100, sum(map(len, batches_of())))
    assert kinds(report) == []


async def test_a_mirror_s_copy_is_equal_while_records_arrive(site: Site) -> None:
    await make(site.east)
    async with mirroring_of(site.hub, east=site.east):
        values = [b"v%d" % number for number in range(30)]
        await publish(site.east, *values)
        await until_copied(site.hub, CLICKS, *values)
        journal = TableJournal(site.hub, lambda _: None)
        await journal.read_on()
        verifier = ReplicaVerifier(journal.table, GapLedger(), {"east": site.east}, site.hub)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(publish, site.east, *values))
            for _ in range(5):
                (report,) = await verifier.verify(["clicks"])
                assert report.verdict is CopyVerdict.EQUAL
                assert report.comparison.compared.records >= 30
        assert await verifier.verify(["other"]) == []


async def test_missing_extra_and_other_batches_are_found(site: Site, may_fetch: bool) -> None:
    batches = batches_of()
    source = [batch for number, batch in enumerate(batches) if number != 44]
    replica = [batch for number, batch in enumerate(batches) if number not in (0, 7, 8, 9, 30)]
    replica[replica.index(batches[20])] = batch_at(40, b"other", b"content")
    await make(site.east, mirror_source="elsewhere")
    await make(site.hub, mirror_source="east")
    for batch in source:
        await put(site.east, batch)
    for batch in replica:
        await put(site.hub, batch)
    report = await verify(site, may_fetch=may_fetch)
    assert report.verdict is CopyVerdict.DIFFERENT
    assert kinds(report) == [
        (DifferenceKind.MISSING, 0, 1),
        (DifferenceKind.MISSING, 14, 19),
        (DifferenceKind.OTHER, 40, 41),
        (DifferenceKind.MISSING, 60, 61),
        (DifferenceKind.EXTRA, 88, 89),
    ]
    missing = report.comparison.differences[1]
    assert (missing.source.batches, missing.source.records, missing.replica.batches) == (3, 6, 0)
    assert report.to_json()["differences"][1]["kind"] == "missing at the replica"


async def test_a_recorded_gap_is_no_difference_but_is_counted(site: Site) -> None:
    batches = batches_of()
    await make(site.east, mirror_source="elsewhere")
    await make(site.hub, mirror_source="east")
    for number, batch in enumerate(batches):
        await put(site.east, batch)
        if number not in (7, 8, 9):
            await put(site.hub, batch)
    report = await verify(site, gaps=((14, 19),))
    assert (report.verdict, report.comparison.recorded_gaps) == (CopyVerdict.EQUAL, 1)
    assert kinds(report) == [(DifferenceKind.RECORDED_GAP, 14, 19)]
    assert (await verify(site, gaps=((14, 18),))).verdict is CopyVerdict.DIFFERENT


async def test_a_gap_of_deleted_records_explains_no_other_content(site: Site) -> None:
    batches = batches_of()
    await make(site.east, mirror_source="elsewhere")
    await make(site.hub, mirror_source="east")
    for number, batch in enumerate(batches):
        await put(site.east, batch)
        await put(site.hub, batch_at(14, b"other", b"content") if number == 7 else batch)
    report = await verify(site, gaps=((14, 15),))
    assert (report.verdict, kinds(report)) == (CopyVerdict.DIFFERENT, [(DifferenceKind.OTHER, 14, 15)])
    report = await verify(site, gaps=((14, 15),), reason=GapReason.TRUNCATED)
    assert (report.verdict, kinds(report)) == (CopyVerdict.EQUAL, [(DifferenceKind.RECORDED_GAP, 14, 15)])


@pytest.mark.parametrize("is_deep", [False, True])
async def test_a_flipped_bit_in_the_replica_s_file_is_found(site: Site, tmp_path: Path, is_deep: bool) -> None:
    batches = batches_of()
    await copied(site, batches)
    path = tmp_path / "hub" / "clicks-0" / f"{0:020}.log"
    content = bytearray(path.read_bytes())
    start = sum(map(len, batches[:30]))
    content[start + HEADER_SIZE + 3] ^= 1
    path.write_bytes(content)
    report = await verify(site, is_deep=is_deep)
    assert kinds(report) == ([(DifferenceKind.DAMAGED_REPLICA, 60, 99)] if is_deep else [])
    content[start + 20] ^= 1  # the checksum
    path.write_bytes(content)
    assert (DifferenceKind.OTHER, 60, 61) in kinds(await verify(site, is_deep=is_deep))
    content[start + 8] ^= 0x40  # the length
    path.write_bytes(content)
    report = await verify(site, is_deep=is_deep)
    kind, first, last = kinds(report)[-1]
    assert kind is DifferenceKind.DAMAGED_REPLICA
    assert 60 in range(first, last + 1)
    assert report.comparison.compared.records >= 60


async def test_offsets_that_retention_deleted_are_not_compared(site: Site, may_fetch: bool) -> None:
    await copied(site, batches_of())
    await delete_records(site.east, {CLICKS: 21}, timeout_s=DEADLINE_S)
    report = await verify(site, may_fetch=may_fetch)
    assert (report.verdict, report.from_offset, report.comparison.compared.records) == (CopyVerdict.EQUAL, 21, 80)
    await delete_records(site.hub, {CLICKS: 90}, timeout_s=DEADLINE_S)
    report = await verify(site, may_fetch=may_fetch)
    assert (report.verdict, report.from_offset, report.comparison.compared.records) == (CopyVerdict.EQUAL, 90, 10)
    await delete_records(site.east, {CLICKS: 100}, timeout_s=DEADLINE_S)
    assert (await verify(site, may_fetch=may_fetch)).verdict is CopyVerdict.EMPTY


async def test_a_range_that_was_deleted_meanwhile_as_a_whole_is_not_equal(site: Site) -> None:
    await copied(site, batches_of())
    (assignment,) = (await table_of(site)).assignments()
    report = PartitionReport(source=assignment.source, replica=assignment.replica, from_offset=10, up_to_offset=20)
    assert report.verdict is CopyVerdict.EQUAL
    report.comparison.note_uncompared(10, 15, DELETED)
    assert report.verdict is CopyVerdict.EQUAL
    report.comparison.note_uncompared(15, 20, DELETED)
    assert report.verdict is CopyVerdict.EMPTY


async def test_an_empty_replica_of_a_source_with_records_is_not_compared(site: Site) -> None:
    await make(site.east, mirror_source="elsewhere")
    await make(site.hub, mirror_source="east")
    assert (await verify(site)).verdict is CopyVerdict.EMPTY
    await put(site.east, batches_of()[0])
    report = await verify(site)
    assert (report.verdict, report.lag) == (CopyVerdict.NOT_COMPARED, 2)
    assert report.reason is not None
    assert "nothing in common" in report.reason


async def test_a_replica_that_ends_beyond_its_source_has_extra_records(site: Site) -> None:
    await copied(site, batches_of(3))
    await put(site.hub, batch_at(6, b"more"))
    report = await verify(site)
    assert kinds(report) == [(DifferenceKind.EXTRA, 6, 6)]
    assert report.verdict is CopyVerdict.DIFFERENT


async def test_of_a_promoted_replica_only_the_copies_are_compared(site: Site) -> None:
    await copied(site, batches_of(3))
    topic = ConfigResource(ResourceType.TOPIC, "clicks")
    for promotion, source in ((Promotion(at_ms=1), "east"), (Promotion(at_ms=1, ends=(6,)), None)):
        changes = {MIRROR_PROMOTED: promotion.encode(), "mirror.source": source}
        await alter_configs(site.hub, {topic: changes}, timeout_s=DEADLINE_S)
    async with open_producer(site.hub, ProducerConfig(linger_ms=0), clock=clock, rng=Random(1)) as producer:
        await producer.send("clicks", b"of the hub")
    await put(site.east, batch_at(6, b"of the source"))
    report = await verify(site)
    assert (report.verdict, report.up_to_offset, report.lag, report.promoted_end) == (CopyVerdict.EQUAL, 6, 1, 6)


async def test_a_source_that_cannot_sum_is_not_fetched_unasked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await copied(site, batches_of())
    forget_feature(monkeypatch, site)
    report = await verify(site)
    assert report.verdict is CopyVerdict.NOT_COMPARED
    assert report.reason is not None
    assert "--fetch" in report.reason


async def test_a_compacted_source_that_says_nothing_of_its_compaction_is_compared_where_it_is_equal(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_feature(monkeypatch, site)
    batches = batches_of()
    await make(site.east, mirror_source="elsewhere", cleanup_policy="compact")
    await make(site.hub, mirror_source="east")
    for batch in batches:
        await put(site.east, batch)
        await put(site.hub, batch)
    assert (await verify(site, may_fetch=True)).verdict is CopyVerdict.EQUAL
    await put(site.east, batch_at(100, b"a"))
    await put(site.hub, batch_at(100, b"b"))
    report = await verify(site, may_fetch=True)
    assert (report.verdict, kinds(report)) == (CopyVerdict.NOT_COMPARED, [])
    assert report.comparison.uncompared[0].reason == COMPACTED


async def test_partitions_that_cannot_be_compared_have_their_reason(site: Site) -> None:
    await copied(site, batches_of())
    table = await table_of(site, cluster_id="another")
    for sources, reason in (({}, "no source east"), ({"east": site.east}, "is cluster another in the partition table")):
        (report,) = await ReplicaVerifier(table, GapLedger(), sources, site.hub).verify()
        assert report.verdict is CopyVerdict.NOT_COMPARED
        assert reason in str(report.reason)
    table = await table_of(site)
    await delete_topics(site.east, ["clicks"])
    (report,) = await ReplicaVerifier(table, GapLedger(), {"east": site.east}, site.hub).verify()
    assert "gone from the source" in str(report.reason)
    await make(site.east)
    (report,) = await ReplicaVerifier(table, GapLedger(), {"east": site.east}, site.hub).verify()
    assert "deleted and created again" in str(report.reason)


async def test_a_partition_of_a_copied_topic_that_has_no_replica_is_not_compared(site: Site) -> None:
    await copied(site, batches_of())
    await create_partitions(site.east, {"clicks": 2})
    first, second = await ReplicaVerifier(await table_of(site), GapLedger(), {"east": site.east}, site.hub).verify()
    assert (first.verdict, second.verdict) == (CopyVerdict.EQUAL, CopyVerdict.NOT_COMPARED)
    assert (second.source.partition.partition, second.to_json()["replica_topic"]) == (1, None)


async def test_the_end_of_a_topic_that_is_gone_explains_nothing_of_the_one_that_took_over(site: Site) -> None:
    await make(site.east, mirror_source="elsewhere")
    await make(site.hub, mirror_source="east")
    for number, batch in enumerate(batches_of()):
        await put(site.east, batch)
        if number != 7:
            await put(site.hub, batch)
    table, ledger = await table_of(site), GapLedger()
    (assignment,) = table.assignments()
    former = replace(assignment, source=replace(assignment.source, topic_id=UUID(int=1)))
    ledger.apply(recreation_of(former, 0, now_ms=1, cluster_id=None, detail=""))
    (report,) = await ReplicaVerifier(table, ledger, {"east": site.east}, site.hub).verify()
    assert kinds(report) == [(DifferenceKind.MISSING, 14, 15)]
