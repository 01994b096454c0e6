"""Stages that keep offsets: what has come, what is under way, what is missing, and what explains it."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.events.report import CountReport, SkippedOffsets
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.verdicts import AuditedHour, DiscrepancyKind, Explanation, OffsetSpan, Status
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import (
    EAST,
    EXPECTED,
    FULL,
    GRACE_MS,
    HOUR,
    HUB,
    LAKE,
    NOW_MS,
    Amounts,
    judged,
    only_hour,
    report,
    signs,
)

SETTLED_MS = NOW_MS - 2 * GRACE_MS
SIGNS_MS = 30_000
"""Time between two life signs without a break."""
LESS = Amounts(records=8, content=1_000)
PLAIN = Amounts(columns={"none": 1, "snappy": 4, "header_sum": 5})
PACKED = Amounts(content=99, columns={"bytes": 500, "header_sum": 5, "none": 0, "zstd": 5})


def live(amounts: Amounts = FULL, **options: Any) -> CountReport:
    """Report records of producers that do not count."""
    settings: dict[str, Any] = {"created_ms": SETTLED_MS, "end": 200, **options}
    return report(Tier.BROKER, "east", EAST, {HOUR: unmarked(amounts)}, **settings)


def unmarked(amounts: Amounts) -> Amounts:
    return replace(amounts, columns={"marked_records": 0, "marked_sum": 0, **amounts.columns})


def replica(amounts: Amounts | None = FULL, **options: Any) -> CountReport:
    settings: dict[str, Any] = {"created_ms": SETTLED_MS, "end": 200, **options}
    return report(Tier.BROKER, "hub", HUB, {} if amounts is None else {HOUR: amounts}, **settings)


def load(amounts: Amounts = FULL, *, cluster: str = "hub", at: TopicPartition = HUB, **options: Any) -> CountReport:
    settings: dict[str, Any] = {"created_ms": SETTLED_MS, "end": 200, "name": LAKE, **options}
    return report(Tier.LOAD, cluster, at, {HOUR: amounts}, **settings)


def verdict(*reports: CountReport, now_ms: int = NOW_MS, **changes: Any) -> AuditedHour:
    """Return the verdict on reports and later life signs of all brokers, which never rested."""
    read: dict[str, Any] = {"read_to_ms": {"east": now_ms, "hub": now_ms}, **changes}
    times = range(max(SETTLED_MS, now_ms - 3 * HOUR_MS), now_ms, SIGNS_MS)
    heard = [one for at_ms in (*times, now_ms) for one in brokers(at_ms)]
    return only_hour([*reports, *heard], now_ms=now_ms, **read)


def brokers(now_ms: int = NOW_MS) -> list[CountReport]:
    return [one for one in signs(now_ms) if one.counter.tier is Tier.BROKER]


def found(hour: AuditedHour) -> list[tuple[str, Status, int]]:
    return [(str(finding.at), finding.status, finding.records) for finding in hour.findings]


@pytest.mark.parametrize(
    "before",
    [PLAIN, Amounts(columns={"none": 0, "lz4": 5, "header_sum": 5})],
    ids=["of several codecs", "of one"],
)
def test_a_replica_in_zstd_is_recompressed(before: Amounts) -> None:
    hour = verdict(live(before), replica(PACKED))
    assert found(hour) == [("replica", Status.RECOMPRESSED, 0)]
    assert "contents were not compared" in hour.findings[0].text


@pytest.mark.parametrize(
    ("columns", "status"),
    [
        ({"records": 9}, Status.MISSING),
        ({"records": 11}, Status.EXTRA),
        ({"batches": 4, "zstd": 4}, Status.CHANGED),
        ({"batches": 6, "zstd": 6}, Status.CHANGED),
        ({"header_sum": 6}, Status.CHANGED),
        ({"none": 1, "snappy": 4, "zstd": 0}, Status.CHANGED),
        ({"zstd": 0}, Status.CHANGED),
        ({"bytes": 1_000}, Status.CHANGED),
        ({"gzip": 1, "zstd": 4}, Status.CHANGED),
        ({"lz4": 5, "zstd": 0}, Status.CHANGED),
    ],
    ids=[
        *("fewer records", "more records", "fewer batches", "more batches", "other headers", "same codecs", "unknown"),
        *("not smaller", "two codecs", "a codec that mirrors do not make"),
    ],
)
def test_no_other_difference_of_a_replica_is_recompression(columns: dict[str, int], status: Status) -> None:
    hour = verdict(live(PLAIN), replica(replace(PACKED, columns={**PACKED.columns, **columns})))
    assert [finding.status for finding in hour.findings] == [status]


def test_loads_recompress_nothing() -> None:
    hour = verdict(live(PLAIN), replica(PLAIN), load(PACKED))
    assert found(hour) == [("loaded", Status.CHANGED, 0)]


def test_a_loss_in_a_past_hour_is_definite_while_traffic_goes_on() -> None:
    later = HOUR + HOUR_MS
    at_ms = later + 600_000
    reports = [
        report(Tier.BROKER, "east", EAST, {HOUR: FULL, later: Amounts(first=150)}, created_ms=at_ms),
        report(Tier.BROKER, "hub", HUB, {HOUR: LESS, later: Amounts(first=150, records=4)}, created_ms=at_ms),
    ]
    now_ms = at_ms + GRACE_MS
    hours = judged([*reports, *brokers(now_ms)], now_ms=now_ms, read_to_ms={"east": now_ms, "hub": now_ms}).hours()
    assert [hour.status for hour in hours] == [Status.MISSING, Status.PENDING]


def test_a_report_that_was_overtaken_makes_no_loss() -> None:
    """A report with a higher offset comes before the one that has the rows of the offsets below."""
    overtaking = replica(None, end=300, created_ms=NOW_MS)
    assert verdict(live(), overtaking).status is Status.PENDING
    assert verdict(live(), overtaking, replica()).status is Status.EXACT
    later_ms = NOW_MS + 2 * GRACE_MS
    assert verdict(live(), overtaking, now_ms=later_ms).status is Status.MISSING


def with_gaps(*gaps: tuple[int, int]) -> dict[str, Any]:
    spans = [OffsetSpan(first=first, last=last) for first, last in gaps]
    return {"routes": [replace(EXPECTED.routes[0], gaps=spans)]}


@pytest.mark.parametrize(
    ("gaps", "status"),
    [
        ([], Status.MISSING),
        ([(108, 109)], Status.EXPLAINED),
        ([(100, 109)], Status.EXPLAINED),
        ([(0, 100), (109, 500)], Status.EXPLAINED),
        ([(108, 108)], Status.MISSING),
        ([(110, 500)], Status.MISSING),
        ([(0, 99)], Status.MISSING),
        ([(108, 108), (108, 108)], Status.MISSING),
    ],
)
def test_gaps_explain_what_lies_in_them_and_no_record_more(gaps: list[tuple[int, int]], status: Status) -> None:
    hour = verdict(live(), replica(LESS), **with_gaps(*gaps))
    assert found(hour) == [("replica", status, 2)]
    assert (hour.findings[0].explanation is Explanation.GAP) is (status is Status.EXPLAINED)
    if status is Status.EXPLAINED:
        assert "as the mirror's ledger of gaps says" in hour.findings[0].text


@pytest.mark.parametrize(("gap", "status"), [((108, 111), Status.EXPLAINED), ((108, 110), Status.MISSING)])
def test_two_hours_cannot_both_use_the_same_offsets(gap: tuple[int, int], status: Status) -> None:
    """Offsets of two hours overlap, because producers write to both; each hour lacks two records."""
    later = HOUR + HOUR_MS
    whole = dict.fromkeys((HOUR, later), unmarked(Amounts(columns={"last_offset": 119})))
    less = {start: replace(LESS, columns={"last_offset": 119}) for start in whole}
    reports = [
        report(tier, cluster, at, rows, created_ms=later + HOUR_MS, end=200)
        for tier, cluster, at, rows in ((Tier.BROKER, "east", EAST, whole), (Tier.BROKER, "hub", HUB, less))
    ]
    now_ms = NOW_MS + HOUR_MS
    judgement = judged(
        [*reports, *brokers(now_ms)], now_ms=now_ms, read_to_ms={"east": now_ms, "hub": now_ms}, **with_gaps(gap)
    )
    assert [hour.status for hour in judgement.hours()] == [status, status]


def test_an_explained_loss_hides_no_other_difference() -> None:
    hour = verdict(live(), replica(LESS), load(replace(LESS, content=7)), **with_gaps((108, 109)))
    assert found(hour) == [("replica", Status.EXPLAINED, 2), ("loaded", Status.CHANGED, 0)]
    assert hour.status is Status.CHANGED


def test_retention_of_the_source_alone_explains_nothing() -> None:
    """The mirror may have lost the records before retention deleted them: its ledger of gaps would have them."""
    hour = verdict(live(start=500), replica(LESS))
    assert hour.status is Status.MISSING


def test_compacted_topics_may_lack_records_at_later_stages() -> None:
    hour = verdict(live(), replica(LESS), compacted=frozenset({("east", "clicks")}))
    assert found(hour) == [("replica", Status.EXPLAINED, 2)]
    assert hour.findings[0].explanation is Explanation.COMPACTION
    assert "the audit cannot tell compaction from loss here" in hour.findings[0].text


def cleaned(one: CountReport, offset: int) -> CountReport:
    """The report of a broker whose cleaner has reached an offset."""
    one.positions["cleaned_to"] = offset + 1
    return one


@pytest.mark.parametrize(
    ("live_offset", "replica_offset", "status"),
    [
        (0, 0, Status.MISSING),  # nothing was compacted
        (100, 100, Status.MISSING),  # the hour begins there
        (101, 0, Status.MISSING),  # one record of the hour may have gone, and two are missing
        (102, 0, Status.EXPLAINED),
        (0, 102, Status.EXPLAINED),
        (1_000, 0, Status.EXPLAINED),
    ],
)
def test_compaction_explains_no_more_records_than_the_cleaner_has_passed_in_the_hour(
    live_offset: int, replica_offset: int, status: Status
) -> None:
    reports = cleaned(live(), live_offset), cleaned(replica(LESS), replica_offset)
    hour = verdict(*reports, compacted=frozenset({("east", "clicks")}))
    assert found(hour) == [("replica", status, 2)]


def test_a_broker_that_does_not_say_what_it_compacted_may_have_compacted_all() -> None:
    reports = cleaned(live(), 0), replica(LESS)
    assert found(verdict(*reports, compacted=frozenset({("east", "clicks")}))) == [("replica", Status.EXPLAINED, 2)]


def test_a_replica_ahead_of_its_source_has_too_much_once_the_source_had_time_to_speak() -> None:
    reports = [live(LESS, end=108), replica(created_ms=NOW_MS)]
    assert verdict(*reports).status is Status.PENDING
    later_ms = NOW_MS + GRACE_MS + 1
    assert found(verdict(*reports, now_ms=later_ms)) == [("replica", Status.EXTRA, 2)]


def test_topics_without_producers_and_loads_have_fewer_stages() -> None:
    hour = verdict(live(), replica())
    assert list(map(str, hour.stages)) == ["live", "replica"]
    assert hour.status is Status.EXACT
    assert "east: no producer counted, so nothing says what was sent" in hour.rests_on


def test_a_replica_that_reports_no_row_is_pending() -> None:
    assert verdict(live(), replica(None, end=0)).status is Status.PENDING


def test_a_selected_topic_that_no_mirror_has_copied_is_pending_and_then_missing() -> None:
    """Fault 4: what is expected follows from the mirror's selection, not from what the mirror has done."""
    hour = verdict(live(), routes=[])
    assert found(hour) == [("replica", Status.PENDING, 10)]
    hour = verdict(live(), routes=[], pending_max_ms=HOUR_MS // 2, now_ms=NOW_MS + HOUR_MS)
    assert found(hour) == [("replica", Status.MISSING, 10)]


def test_one_partition_that_no_mirror_has_copied_is_missing() -> None:
    """Fault 4: the line of a partition is written by the very mirror that is down."""
    other = TopicPartition("clicks", 1)
    second = report(Tier.BROKER, "east", other, {HOUR: FULL}, created_ms=SETTLED_MS)
    late_ms = NOW_MS + HOUR_MS
    counted = {("east", "clicks"): 2, ("hub", "clicks"): 4}
    hour = verdict(live(), replica(), second, partitions=counted, pending_max_ms=HOUR_MS // 2, now_ms=late_ms)
    assert [(finding.source, finding.status) for finding in hour.findings] == [(other, Status.MISSING)]


def test_a_topic_that_the_mirror_does_not_select_ends_at_the_live_cluster() -> None:
    other = replace(EXPECTED.mirrored[0], topic="views", replica_topic="views")
    hour = verdict(live(), routes=[], mirrored=[other])
    assert (list(map(str, hour.stages)), hour.status) == (["live"], Status.EXACT)


def test_records_that_a_stopped_replica_lacks_are_missing() -> None:
    behind = [live(), replica(LESS, end=108)]
    for now_ms, status in ((SETTLED_MS + HOUR_MS, Status.PENDING), (SETTLED_MS + HOUR_MS + 1, Status.MISSING)):
        hour = verdict(*behind, now_ms=now_ms, pending_max_ms=HOUR_MS)
        assert found(hour) == [("replica", status, 2)]
    assert "nothing new for longer than pending.max.ms" in hour.findings[0].text


def test_a_replica_whose_cluster_was_away_for_long_has_not_stopped_when_it_is_back() -> None:
    """Its mirror has only begun to catch up."""
    back_ms = SETTLED_MS + 5 * HOUR_MS
    behind = [live(), replica(LESS, end=108)]
    for since_back_ms, status in ((0, Status.PENDING), (HOUR_MS, Status.PENDING), (HOUR_MS + 1, Status.MISSING)):
        now_ms = back_ms + since_back_ms
        live_signs = [one for one in brokers(now_ms) if one.counter.cluster == "east"]
        hub_signs = [
            one
            for at_ms in (*range(back_ms, now_ms, SIGNS_MS), now_ms)
            for one in brokers(at_ms)
            if one.counter.cluster == "hub"
        ]
        read = {"east": now_ms, "hub": now_ms}
        hour = only_hour([*behind, *live_signs, *hub_signs], now_ms=now_ms, pending_max_ms=HOUR_MS, read_to_ms=read)
        assert found(hour) == [("replica", status, 2)]


def test_a_topic_that_no_mirror_has_copied_to_a_silent_cluster_is_not_missing() -> None:
    """Its audit topic may be read to its end before its brokers are back: nothing says how long they were away."""
    away_ms = SETTLED_MS + 2 * HOUR_MS
    every = [one for at_ms in range(SETTLED_MS, away_ms + 1, SIGNS_MS) for one in brokers(at_ms)]
    for silent_ms, status in ((0, Status.MISSING), (3 * HOUR_MS, Status.UNKNOWN)):
        now_ms = away_ms + silent_ms
        reports = [live(), *(one for one in brokers(now_ms) if one.counter.cluster == "east")]
        reports += [one for one in every if one.counter.cluster == "hub"]
        read = {"east": now_ms, "hub": now_ms}
        hour = only_hour(reports, routes=[], now_ms=now_ms, pending_max_ms=HOUR_MS, read_to_ms=read)
        assert found(hour) == [("replica", status, 10)]
    assert [witness.name for witness in hour.missing_witnesses] == ["brokers of hub"]


def test_records_that_a_moving_replica_lacks_are_pending_and_of_an_unreadable_one_unknown() -> None:
    late_ms = SETTLED_MS + 2 * HOUR_MS
    moving = replica(LESS, end=109, created_ms=SETTLED_MS + HOUR_MS + 1)
    behind = [live(), replica(LESS, end=108)]
    assert verdict(*behind, moving, now_ms=late_ms, pending_max_ms=HOUR_MS).status is Status.PENDING
    unread = {"read_to_ms": {"east": late_ms, "hub": SETTLED_MS}}
    hour = verdict(*behind, now_ms=late_ms, pending_max_ms=HOUR_MS, **unread)
    assert hour.status is Status.UNKNOWN
    assert "audit topic of hub" in [witness.name for witness in hour.missing_witnesses]


def test_records_that_no_load_has_reached_stay_pending() -> None:
    late_ms = NOW_MS + 9 * HOUR_MS
    hour = verdict(live(), replica(), load(LESS, end=108), now_ms=late_ms, pending_max_ms=HOUR_MS)
    assert found(hour) == [("loaded", Status.PENDING, 2)]


@pytest.mark.parametrize(
    ("loaded", "quarantined", "status", "records", "text"),
    [
        (LESS, 2, Status.QUARANTINED, 2, "2 records are in the quarantine of the load"),
        (Amounts(records=7, content=3), 1, Status.MISSING, 2, "are missing; 1 record in the quarantine of the load"),
        (FULL, 1, Status.EXTRA, 1, "1 record more than were at the replica; 1 record in the quarantine"),
    ],
)
def test_an_hour_with_records_in_quarantine_is_never_exact(
    loaded: Amounts, quarantined: int, status: Status, records: int, text: str
) -> None:
    aside = load(replace(loaded, columns={"quarantined": quarantined}))
    hour = verdict(live(), replica(), aside)
    assert found(hour) == [("loaded", status, records)]
    assert text in hour.findings[0].text
    assert verdict(live(), replica(), aside, load(created_ms=SETTLED_MS + 1)).status is Status.EXACT  # released


@pytest.mark.parametrize(
    ("fact", "status", "explanation"),
    [
        (SkippedOffsets(0, 3, HOUR + 600_000, 100, 109, 2, "aborted"), Status.EXPLAINED, Explanation.ABORTED),
        (SkippedOffsets(0, 3, None, 104, 106, 3, "lost"), Status.EXPLAINED, Explanation.SKIPPED),
        (SkippedOffsets(0, 3, None, 104, 106, 3, "compacted"), Status.EXPLAINED, Explanation.COMPACTION),
        (SkippedOffsets(0, 3, None, 104, 106, 1, "lost"), Status.MISSING, None),
        (SkippedOffsets(0, 3, HOUR + HOUR_MS, 100, 109, 2, "aborted"), Status.MISSING, None),
        (SkippedOffsets(0, 3, None, 200, 300, 99, "lost"), Status.MISSING, None),
        (SkippedOffsets(0, 2, None, 100, 109, 9, "lost"), Status.MISSING, None),
    ],
)
def test_ranges_that_a_load_skipped_explain_what_it_lacks(
    fact: SkippedOffsets, status: Status, explanation: Explanation | None
) -> None:
    hour = verdict(live(), replica(), replace(load(LESS), skipped=[fact]))
    assert found(hour) == [("loaded", status, 2)]
    assert hour.findings[0].explanation is explanation


@pytest.mark.parametrize(("lost", "status"), [(0, Status.MISSING), (1, Status.MISSING), (2, Status.EXPLAINED)])
def test_offsets_that_an_older_load_found_deleted_explain_as_many_records(lost: int, status: Status) -> None:
    hour = verdict(live(), replica(), load(LESS, lost=lost))
    assert found(hour) == [("loaded", status, 2)]


def test_a_load_that_began_at_an_offset_lacks_what_is_before() -> None:
    hour = verdict(live(), replica(), load(LESS, start=102))
    assert found(hour) == [("loaded", Status.EXPLAINED, 2)]
    assert verdict(live(), replica(), load(LESS, start=101)).status is Status.MISSING


def test_two_lakes_of_one_topic_do_not_hide_each_other() -> None:
    """Fault 16: the one that reported last hid the other's loss."""
    other = load(name="/second", created_ms=SETTLED_MS + 1)
    hour = verdict(live(), replica(), load(LESS), other)
    assert found(hour) == [("loaded:/lake", Status.MISSING, 2)]
    assert list(map(str, hour.stages)) == ["live", "replica", "loaded:/lake", "loaded:/second"]


def test_loads_of_a_cluster_without_replica_follow_on_it() -> None:
    changes: dict[str, Any] = {"routes": [], "mirrored": [], "replica_cluster": None}
    hour = verdict(live(), load(cluster="east", at=EAST), **changes)
    assert (list(map(str, hour.stages)), hour.status) == (["live", "loaded"], Status.EXACT)
    other = TopicPartition("clicks", 1)
    second = report(Tier.BROKER, "east", other, {HOUR: FULL}, created_ms=SETTLED_MS)
    hour = verdict(live(), load(cluster="east", at=EAST), second, partitions={("east", "clicks"): 2}, **changes)
    assert [(finding.source, finding.status) for finding in hour.findings] == [(other, Status.PENDING)]


def test_files_that_were_read_back_are_compared_as_far_as_they_were_read() -> None:
    stored: dict[str, Any] = {"created_ms": SETTLED_MS, "name": LAKE}
    reports = [live(), replica(), load()]
    read = report(Tier.STORED, "hub", HUB, {HOUR: FULL}, end=200, **stored)
    hour = verdict(*reports, read)
    assert list(map(str, hour.stages)) == ["live", "replica", "loaded", "stored"]
    assert hour.status is Status.EXACT
    less = report(Tier.STORED, "hub", HUB, {HOUR: LESS}, end=200, **stored)
    assert found(verdict(*reports, less)) == [("stored", Status.MISSING, 2)]
    more = Amounts(records=12, columns={"content_sum": 0, "place_sum": 0, "has_sums": False})
    (finding,) = verdict(*reports, report(Tier.STORED, "hub", HUB, {HOUR: more}, end=200, **stored)).findings
    assert (str(finding.at), finding.status, finding.records) == ("stored", Status.EXTRA, 2)
    assert finding.kind is DiscrepancyKind.DOUBLED
    assert "2 records more than were loaded: the files have their offsets twice" in finding.text
    earlier = report(Tier.STORED, "hub", HUB, {}, end=90, **stored)
    assert verdict(*reports, earlier).status is Status.EXACT


@pytest.mark.parametrize(
    ("start", "counted_from", "status", "explanation"),
    [
        (102, 102, Status.EXPLAINED, Explanation.RETENTION),
        (0, 102, Status.EXPLAINED, Explanation.SKIPPED),
        (102, 0, Status.MISSING, None),
        (102, 101, Status.MISSING, None),
    ],
)
def test_a_group_lacks_what_is_before_the_offset_where_it_began(
    start: int, counted_from: int, status: Status, explanation: Explanation | None
) -> None:
    group = report(
        Tier.GROUP,
        "east",
        EAST,
        {HOUR: LESS},
        name="billing",
        instance="m1",
        counted_from=counted_from,
        created_ms=SETTLED_MS,
        end=200,
    )
    hour = verdict(live(start=start), replica(), group)
    assert found(hour) == [("consumed:billing", status, 2)]
    assert hour.findings[0].explanation is explanation


def test_members_of_a_group_add_up_and_the_one_that_is_behind_is_pending() -> None:
    halves = [Amounts(records=4, content=1_000), Amounts(records=6, content=234, first=104)]
    members = [
        report(Tier.GROUP, "east", EAST, {HOUR: half}, name="billing", instance=f"m{number}", created_ms=SETTLED_MS)
        for number, half in enumerate(halves)
    ]
    for member, (size, batches, crc) in zip(members, ((400, 2, 500), (600, 3, 117)), strict=True):
        member.rows["bytes"], member.rows["batches"], member.rows["crc_sum"] = size, batches, crc
    assert verdict(live(), replica(), *members).status is Status.EXACT
    hour = verdict(live(), replica(), members[0])
    assert found(hour) == [("consumed:billing", Status.PENDING, 6)]


@pytest.mark.parametrize("order", [1, -1])
def test_counters_that_know_different_ends_of_an_hour_make_no_loss(order: int) -> None:
    """A broker died after it had counted the beginning; the next one lost its checkpoint and counts from the middle."""
    first = live(Amounts(records=4, content=3), process="2", created_ms=SETTLED_MS - 1)
    rest = live(Amounts(records=6, content=4, first=104), counted_from=104)
    hour = verdict(*[first, rest][::order], replica())
    assert found(hour) == [("replica", Status.UNKNOWN, 4)]
    assert "counter of clicks-0 in east" in [witness.name for witness in hour.missing_witnesses]
    whole = live(process="3")
    assert verdict(*[first, rest][::order], whole, replica()).status is Status.EXACT


def produced(amounts: Amounts) -> CountReport:
    return report(
        Tier.PRODUCER, "east", EAST, {HOUR: amounts}, instance="p1", revision=1, created_ms=SETTLED_MS, is_ended=True
    )


def test_records_that_were_deleted_before_their_broker_counted_them_are_not_missing() -> None:
    """The broker was killed before its first report, and counts from the new log start on: the hour has no row."""
    later = report(Tier.BROKER, "east", EAST, {}, created_ms=SETTLED_MS, start=110, counted_from=110, end=200)
    hour = verdict(produced(FULL), later, replica())
    assert found(hour) == [("live", Status.UNKNOWN, 10), ("replica", Status.UNKNOWN, 10)]
    assert [witness.name for witness in hour.missing_witnesses] == ["counter of clicks-0 in east"]


@pytest.mark.parametrize("counted_from", [0, 90, 100])
def test_records_behind_the_offset_at_which_a_broker_began_to_count_are_missing(counted_from: int) -> None:
    later = report(Tier.BROKER, "east", EAST, {}, created_ms=SETTLED_MS, counted_from=counted_from, end=200)
    hour = verdict(produced(FULL), later, replica())
    assert found(hour) == [("live", Status.MISSING, 10), ("replica", Status.EXTRA, 10)]


def test_a_late_record_at_the_offset_where_a_counter_began_does_not_say_when_that_was() -> None:
    """The counter's first batch belongs to an hour long ago; the records before it may belong to any later one."""
    ago = HOUR - 5 * HOUR_MS
    first = unmarked(Amounts(records=2, content=3, first=104))
    rest = unmarked(Amounts(records=4, content=5, first=106))
    begun = report(
        Tier.BROKER, "east", EAST, {ago: first, HOUR: rest}, created_ms=SETTLED_MS, counted_from=104, end=200
    )
    whole = report(Tier.BROKER, "hub", HUB, {ago: first, HOUR: unmarked(FULL)}, created_ms=SETTLED_MS, end=200)
    hours = judged([begun, whole, *brokers()]).hours()
    by_time = {hour.hour_ms: hour for hour in hours}
    assert found(by_time[HOUR]) == [("replica", Status.UNKNOWN, 6)]
    assert "counter of clicks-0 in east" in [witness.name for witness in by_time[HOUR].missing_witnesses]
