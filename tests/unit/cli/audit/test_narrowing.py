"""A difference of counts is followed to the record, in the logs of real brokers that hold forged copies."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from pipeline.audit.counting.load_rows import name_of_root
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Finding, OffsetSpan, Stage, Status
from pipeline.audit.narrowing.narrower import Narrower, NarrowLimits
from pipeline.cli.audit.log_access import BrokerLogs
from pipeline.cli.audit.table_access import TableFiles
from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.range_sums import can_sum_ranges
from pipeline.client.admin.topics import delete_topics
from pipeline.client.cluster.cluster import Cluster, open_cluster
from pipeline.mirror.journals.gaps import GapLedger, GapReason, gap_of
from pipeline.mirror.journals.table import PartitionTable, Proposal, SourcePartition
from pipeline.mirror.verification import sides
from pipeline.model import TopicPartition
from pipeline.protocol.schema import ZERO_UUID
from pipeline.records.batch import write_crc
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import serving_cluster
from tests.support.load_task import batch as load_batch
from tests.support.mirrors import CLICKS, NOBODY, Site, make, put
from tests.unit.cli.test_load_report import damage, load_all
from tests.unit.hadoop.load.test_release import BATCHES
from tests.unit.hadoop.load.test_task import NOON_MS, users

HOUR = 1_700_000_000_000 // HOUR_MS * HOUR_MS
Row = tuple[bytes | None, bytes | None, int]
"""Key, value and time after the beginning of the hour."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serving_cluster(tmp_path / "east") as east, serving_cluster(tmp_path / "hub") as hub:
        yield Site(east, east, hub)


@pytest.fixture(params=["summed", "fetched"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, site: Site) -> str:
    """Brokers of the source that sum ranges, and such as Apache Kafka's, whose batches are fetched."""

    async def only_of_the_hub(cluster: Cluster, topic_partition: TopicPartition) -> bool:
        return cluster is site.hub and await can_sum_ranges(cluster, topic_partition)

    if request.param == "fetched":
        monkeypatch.setattr(sides, "can_sum_ranges", only_of_the_hub)
    return str(request.param)


def batch(offset: int, *rows: Row, headers: tuple[tuple[str, bytes], ...] = (), codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder(codec, 1 << 20)
    for key, value, at in rows:
        assert builder.append(key, value, headers, HOUR + at)
    built = builder.build()
    built[0:8] = offset.to_bytes(8, "big")
    return bytes(built)


def rows(number: int, count: int = 5) -> list[Row]:
    return [(b"k%d" % number, b"v%d-%d" % (number, each), number * 1000 + each) for each in range(count)]


def batches(first: int = 0, count: int = 20) -> list[bytes]:
    """Batches of five records."""
    return [batch(5 * number, *rows(first + number)) for number in range(count)]


async def lay(site: Site, source: Sequence[bytes], replica: Sequence[bytes], partition: int = 0) -> None:
    place = TopicPartition("clicks", partition)
    if partition == 0:
        await make(site.east, partitions=2, mirror_source="elsewhere")
        await make(site.hub, partitions=2, mirror_source="east")
    for each in source:
        await put(site.east, each, place)
    for each in replica:
        await put(site.hub, each, place)


def finding(partition: int = 0, status: Status = Status.CHANGED, offsets: tuple[int, int] = (0, 99)) -> Finding:
    place = TopicPartition("clicks", partition)
    return Finding(
        cluster="east",
        source=place,
        replica=place,
        hour_ms=HOUR,
        after=Stage(tier="live"),
        at=Stage(tier="replica"),
        status=status,
        records=0,
        offsets=OffsetSpan(first=offsets[0], last=offsets[1]),
    )


def narrower(site: Site, gaps: GapLedger | None = None, limits: NarrowLimits | None = None) -> Narrower:
    return Narrower(BrokerLogs({"east": site.east, "hub": site.hub}, "hub", gaps), "hub", limits)


def told(found: Sequence[Finding]) -> list[tuple[str, int, int, int]]:
    """Kind, offsets and records of each finding."""
    return [
        (str(each.kind), *((each.offsets.first, each.offsets.last) if each.offsets else (-1, -1)), each.records)
        for each in found
    ]


def edited(changes: Callable[[list[bytes]], None]) -> list[bytes]:
    copies = batches()
    changes(copies)
    return copies


def change_a_value(copies: list[bytes]) -> None:
    new = rows(4)
    new[2] = (new[2][0], b"forged", new[2][2])
    copies[4] = batch(20, *new)


def change_a_key_and_a_time(copies: list[bytes]) -> None:
    new = rows(4)
    new[1] = (None, new[1][1], new[1][2])
    new[3] = (new[3][0], new[3][1], new[3][2] + 1)
    copies[4] = batch(20, *new)


def drop_a_batch(copies: list[bytes]) -> None:
    del copies[7]


def drop_the_end(copies: list[bytes]) -> None:
    del copies[18:]


def lose_one_and_double_one(copies: list[bytes]) -> None:
    copies[9] = batch(45, *rows(3))


def swap_two(copies: list[bytes]) -> None:
    copies[5], copies[6] = batch(25, *rows(6)), batch(30, *rows(5))


def lose_a_record_in_a_batch(copies: list[bytes]) -> None:
    """The batch keeps its last offset, as a compacted one does."""
    new = rows(4)
    new[4] = (b"other", b"record", 1)
    copies[4] = batch(20, *new)


def insert_headers(copies: list[bytes]) -> None:
    copies[2] = batch(10, *rows(2), headers=(("h", b"1"),))


@pytest.mark.parametrize(
    ("forge", "expected"),
    [
        (change_a_value, [("changed", 22, 22, 0)]),
        (change_a_key_and_a_time, [("changed", 21, 21, 0), ("changed", 23, 23, 0)]),
        (drop_a_batch, [("missing", 35, 39, 5)]),
        (drop_the_end, [("missing", 90, 99, 10)]),
        (lose_a_record_in_a_batch, [("changed", 24, 24, 0)]),
        (insert_headers, [("changed", 10, 14, 0)]),
    ],
)
async def test_each_forgery_is_found_to_the_record(
    site: Site, way: str, forge: Callable[[list[bytes]], None], expected: list[tuple[str, int, int, int]]
) -> None:
    await lay(site, batches(), edited(forge))
    found = await narrower(site).narrow(finding())
    assert told(found) == expected
    assert all(each.witness is None and each.text.startswith("offset") for each in found)


@pytest.mark.long
async def test_one_lost_and_one_doubled_are_both_named(site: Site, way: str) -> None:
    await lay(site, batches(), edited(lose_one_and_double_one))
    found = await narrower(site).narrow(finding())
    assert told(found) == [("doubled", 45, 49, 5), ("missing", 45, 49, 5)]
    assert found[0].text.endswith("it has what the source has at offsets 15 to 19 a second time")
    assert [each.status for each in found] == [Status.EXTRA, Status.MISSING]


@pytest.mark.long
async def test_swapped_batches_are_reordered_and_nothing_is_missing(site: Site, way: str) -> None:
    await lay(site, batches(), edited(swap_two))
    found = await narrower(site).narrow(finding())
    assert told(found) == [("reordered", 25, 29, 0), ("reordered", 30, 34, 0)]


@pytest.mark.long
async def test_records_swapped_between_partitions_are_misplaced_in_both(site: Site, way: str) -> None:
    here, there = batches(), batches(first=100)
    copies_here, copies_there = list(here), list(there)
    copies_here[3], copies_there[8] = batch(15, *rows(108)), batch(40, *rows(3))
    await lay(site, here, copies_here)
    await lay(site, there, copies_there, 1)
    findings = [finding(0), finding(1)]
    first = await narrower(site).narrow(findings[0], findings)
    second = await narrower(site).narrow(findings[1], findings)
    assert {each.kind for each in (*first, *second)} == {DiscrepancyKind.MISPLACED}
    assert told(first) == [("misplaced", 15, 19, 0)] and told(second) == [("misplaced", 40, 44, 0)]
    assert "what should be there is at offsets 40 to 44 of clicks-1" in first[0].text
    assert "it has what the source has at offsets 40 to 44 of clicks-1" in first[0].text
    assert "offsets 15 to 19 of clicks-0" in second[0].text


async def test_headers_of_a_batch_that_differ_are_named(site: Site) -> None:
    def change_the_producer(copies: list[bytes]) -> None:
        new = bytearray(copies[3])
        new[43:51] = (7).to_bytes(8, "big")
        new[51:53] = (0).to_bytes(2, "big")
        new[53:57] = (0).to_bytes(4, "big")
        write_crc(new, 0, len(new))
        copies[3] = bytes(new)

    await lay(site, batches(), edited(change_the_producer))
    (found,) = await narrower(site).narrow(finding())
    assert (found.kind, found.offsets) == (DiscrepancyKind.CHANGED, OffsetSpan(first=15, last=19))
    assert "producer_id, producer_epoch, base_sequence of the batch differs" in found.text


async def test_records_that_only_the_replica_has(site: Site, way: str) -> None:
    await lay(site, batches()[:10], [*batches()[:10], batch(50, *rows(77))])
    (found,) = await narrower(site).narrow(finding(status=Status.EXTRA))
    assert (found.kind, found.status, found.records) == (DiscrepancyKind.UNEXPLAINED, Status.EXTRA, 5)
    assert found.offsets == OffsetSpan(first=50, last=54)


async def test_differences_of_another_hour_are_not_told(site: Site) -> None:
    await lay(site, batches(), edited(change_a_value))
    (found,) = await narrower(site).narrow(replace(finding(), hour_ms=HOUR - HOUR_MS))
    assert found.status is Status.UNKNOWN and found.witness is not None


async def test_batches_of_two_hours_in_one_batch_of_the_replica_lack_nothing(site: Site) -> None:
    this = [(b"k", b"v%d" % each, each) for each in range(5)]
    following = [(b"k", b"w%d" % each, HOUR_MS + each) for each in range(5)]
    await lay(site, [batch(0, *this), batch(5, *following)], [batch(0, *this, *following)])
    for hour_ms in (HOUR, HOUR + HOUR_MS):
        found = await narrower(site).narrow(replace(finding(offsets=(0, 9)), hour_ms=hour_ms))
        assert {each.kind for each in found} == {DiscrepancyKind.CHANGED}
        assert all("the records are equal" in each.text for each in found)


def recorded_gap(first: int, last: int) -> GapLedger:
    table = PartitionTable()
    source = SourcePartition(cluster="east", partition=CLICKS, topic_id=ZERO_UUID)
    table.apply(Proposal(source=source, replica_topic="clicks"))
    gaps = GapLedger()
    gaps.apply(gap_of(table.assignments()[0], first, last, GapReason.RETENTION, now_ms=1))
    return gaps


async def test_recorded_gaps_are_explained(site: Site) -> None:
    await lay(site, batches(), edited(drop_a_batch))
    (found,) = await narrower(site, recorded_gap(35, 39)).narrow(finding())
    assert found.status is Status.EXPLAINED and found.offsets == OffsetSpan(first=35, last=39)


@pytest.mark.long
async def test_records_of_a_recorded_gap_that_are_elsewhere_are_not_doubled(site: Site, way: str) -> None:
    def move_into_another_batch(copies: list[bytes]) -> None:
        copies[9] = batch(45, *rows(7))
        drop_a_batch(copies)

    await lay(site, batches(), edited(move_into_another_batch))
    found = await narrower(site, recorded_gap(35, 39)).narrow(finding())
    kinds = {(str(each.kind), str(each.status)) for each in found}
    assert kinds == {("missing", "missing"), ("reordered", "changed"), ("missing", "explained")}


async def test_logs_that_are_equal_now_are_said_to_be(site: Site) -> None:
    await lay(site, batches(), batches())
    (found,) = await narrower(site).narrow(finding())
    assert found.status is Status.UNKNOWN and "equal now" in found.text


async def test_what_retention_has_deleted_is_said(site: Site) -> None:
    await lay(site, batches(), edited(drop_a_batch))
    await delete_records(site.east, {CLICKS: 60}, timeout_s=5)
    found = await narrower(site).narrow(finding())
    assert [(each.status, each.offsets) for each in found] == [(Status.UNKNOWN, OffsetSpan(first=0, last=59))]
    assert "deleted from a log" in found[0].text


async def test_a_replica_that_ends_before_its_source_begins_lacks_what_the_source_still_has(
    site: Site, way: str
) -> None:
    await lay(site, batches(), batches()[:10])
    await delete_records(site.east, {CLICKS: 60}, timeout_s=5)
    missing, gone = await narrower(site).narrow(finding())
    assert told([missing]) == [("missing", 60, 99, 40)]
    assert (gone.status, gone.offsets) == (Status.UNKNOWN, OffsetSpan(first=0, last=59))


async def test_of_records_that_may_have_been_deleted_nobody_says_that_they_never_were(site: Site) -> None:
    source, replica = batches(), batches()
    replica[18] = batch(90, *rows(2))
    del source[18]
    await lay(site, source, replica)
    (doubled,) = await narrower(site).narrow(finding())
    assert (doubled.kind, doubled.offsets) == (DiscrepancyKind.DOUBLED, OffsetSpan(first=90, last=94))
    await delete_records(site.east, {CLICKS: 60}, timeout_s=5)
    more, gone = await narrower(site).narrow(finding())
    assert (more.kind, more.offsets) == (DiscrepancyKind.UNEXPLAINED, OffsetSpan(first=90, last=94))
    assert "where it was searched" in more.text
    assert gone.witness is not None


async def test_offsets_that_neither_log_has_are_not_taken_for_those_of_files(site: Site) -> None:
    await lay(site, batches(), batches())
    (found,) = await narrower(site).narrow(finding(offsets=(200, 300)))
    assert "nothing in common" in found.text and found.status is Status.UNKNOWN


async def test_memory_is_bounded_and_what_was_left_out_is_said(site: Site) -> None:
    await lay(site, batches(), edited(change_a_value))
    (found,) = await narrower(site, limits=NarrowLimits(max_held_bytes=1_000)).narrow(finding())
    assert found.witness is not None and "too much memory" in found.witness.reason


async def test_bounds_are_kept_and_what_was_left_out_is_said(site: Site) -> None:
    def change_many(copies: list[bytes]) -> None:
        for number in range(0, 20, 2):
            copies[number] = batch(5 * number, *rows(500 + number))

    await lay(site, batches(), edited(change_many))
    found = await narrower(site, limits=NarrowLimits(max_bytes=700)).narrow(finding())
    assert any(each.kind is DiscrepancyKind.CHANGED and each.witness is None for each in found)
    assert any(each.witness is not None and "spent" in each.witness.reason for each in found)
    (found_late,) = await narrower(site, limits=NarrowLimits(timeout_s=0)).narrow(finding())
    assert found_late.status is Status.UNKNOWN and "time" in found_late.text


async def test_a_dead_broker_is_a_reason_and_no_error(site: Site) -> None:
    await lay(site, batches(), edited(drop_a_batch))
    async with open_cluster(NOBODY) as nobody:
        logs = BrokerLogs({"east": nobody, "hub": site.hub}, "hub", None)
        (found,) = await Narrower(logs, "hub", NarrowLimits(timeout_s=1)).narrow(finding())
    assert found.status is Status.UNKNOWN and found.witness is not None
    await delete_topics(site.hub, ["clicks"])
    (found,) = await narrower(site, limits=NarrowLimits(timeout_s=2)).narrow(finding())
    assert found.status is Status.UNKNOWN and found.witness is not None


@pytest.mark.long
async def test_a_narrowing_beside_retention_never_calls_deleted_records_missing(site: Site, way: str) -> None:
    await lay(site, batches(count=60), [*batches(count=60)[:40], *batches(count=60)[41:]])
    wide = finding(offsets=(0, 299))
    results: list[list[Finding]] = []

    async def delete() -> None:
        for end in range(0, 260, 10):
            await delete_records(site.east, {CLICKS: end}, timeout_s=5)
            await delete_records(site.hub, {CLICKS: max(0, end - 5)}, timeout_s=5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        while len(results) < 12:
            results += [await narrower(site).narrow(wide)]
    for found in results:
        for each in found:
            if each.witness is None:
                assert (each.kind, each.offsets) == (DiscrepancyKind.MISSING, OffsetSpan(first=200, last=204)), (
                    each.text
                )


@pytest.mark.long
@pytest.mark.parametrize("offsets", [(-5, 10), (50, 10), (2**63 - 2, 2**63 - 1), (0, 2**63 - 1), (10**6, 10**7)])
async def test_offsets_of_hostile_events_do_no_harm(site: Site, offsets: tuple[int, int]) -> None:
    await lay(site, batches(), edited(drop_a_batch))
    found = await narrower(site, limits=NarrowLimits(timeout_s=5)).narrow(finding(offsets=offsets))
    assert found and all(each.text for each in found)
    assert await narrower(site, limits=NarrowLimits(timeout_s=5)).narrow(produced(OffsetSpan(first=0, last=2**63 - 1)))


async def test_a_cluster_that_cannot_sum_is_fetched_within_bounds(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(_cluster: Cluster, _partition: TopicPartition) -> bool:
        return False

    monkeypatch.setattr(sides, "can_sum_ranges", nobody)
    await lay(site, batches(), edited(change_a_value))
    logs = BrokerLogs({"east": site.east, "hub": site.hub}, "hub", None, max_fetched_bytes=1000)
    found = await Narrower(logs, "hub").narrow(finding())
    assert any(each.witness is not None and "fetched" in each.witness.reason for each in found)


def produced(offsets: OffsetSpan | None) -> Finding:
    found = finding(status=Status.EXTRA)
    return replace(found, after=Stage(tier="produced"), at=Stage(tier="live"), replica=None, offsets=offsets)


async def test_a_batch_that_was_sent_again_is_named_at_the_live_broker(site: Site) -> None:
    await lay(site, [*batches()[:5], batch(25, *rows(2))], [])
    (found,) = await narrower(site).narrow(produced(OffsetSpan(first=0, last=29)))
    assert (found.kind, found.offsets) == (DiscrepancyKind.DOUBLED, OffsetSpan(first=25, last=29))
    assert "offsets 10 to 14 is there a second time" in found.text
    (other,) = await narrower(site).narrow(replace(produced(OffsetSpan(first=0, last=29)), hour_ms=HOUR - HOUR_MS))
    assert other.status is Status.UNKNOWN and "no batch is repeated" in other.text
    (unknown,) = await narrower(site).narrow(produced(None))
    assert unknown.status is Status.UNKNOWN and "not known" in unknown.text


async def test_stages_without_a_log_say_so(site: Site) -> None:
    (found,) = await narrower(site).narrow(replace(finding(), at=Stage(tier="consumed", name="billing")))
    assert found.status is Status.UNKNOWN and "consumed:billing" in found.text


async def test_a_record_that_no_file_of_a_table_holds_is_found(tmp_path: Path, site: Site) -> None:
    loaded, topic = BATCHES, "t"
    await make(site.east, topic, 5, mirror_source="elsewhere")
    for each in loaded:
        await put(site.east, bytes(each), TopicPartition(topic, 4))
    load_all(tmp_path / "lake")
    root = name_of_root(str(tmp_path / "lake"))
    tables = TableFiles([str(tmp_path / "lake")])
    lost = Finding(
        cluster="east",
        source=TopicPartition(topic, 4),
        replica=None,
        hour_ms=NOON_MS,
        after=Stage(tier="live"),
        at=Stage(tier="loaded", name=root),
        status=Status.MISSING,
        records=1,
        offsets=OffsetSpan(first=0, last=20),
    )
    logs = BrokerLogs({"east": site.east, "hub": site.hub}, "hub", None)
    (equal,) = await Narrower(logs, "hub", tables=tables).narrow(lost)
    assert equal.status is Status.UNKNOWN and "the files hold all records" in equal.text

    await put(site.east, bytes(load_batch(8, users(b"x", b"y"))), TopicPartition(topic, 4))
    (behind,) = await Narrower(logs, "hub", tables=tables).narrow(lost)
    assert (behind.kind, behind.offsets, behind.records) == (DiscrepancyKind.MISSING, OffsetSpan(first=8, last=9), 2)
    assert "the load has come to offset 8" in behind.text

    damage(tmp_path / "lake", lambda path: path.unlink())
    found = await Narrower(logs, "hub", tables=tables).narrow(replace(lost, at=Stage(tier="stored", name=root)))
    assert told(found)[0] == ("missing", 0, 7, 8) and "cannot be read" in found[0].text
    assert any("is missing" in each.text and each.witness is not None for each in found)

    for other in (TableFiles([]), None):
        (unknown,) = await Narrower(logs, "hub", tables=other).narrow(lost)
        assert unknown.status is Status.UNKNOWN and "load verify" in unknown.text
