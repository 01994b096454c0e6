"""Producers and brokers: who counts, who does not, and who was killed."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.events.report import ReportedTopic
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.story import story_of
from pipeline.audit.judgement.verdicts import STILL_COPIED, AuditedHour, DiscrepancyKind, Status
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EAST, FULL, GRACE_MS, HOUR, NOW_MS, Amounts, judged, only_hour, report, signs

SETTLED_MS = NOW_MS - 2 * GRACE_MS
DIED_MS = HOUR + HOUR_MS // 2
LATER = [one for one in signs() if one.counter.tier is Tier.BROKER]


def produced(amounts: Amounts | None, *, life: str = "p1", **options: Any) -> Any:
    settings = {"created_ms": SETTLED_MS, "is_ended": "closed_ms" not in options, "revision": 1, **options}
    return report(Tier.PRODUCER, "east", EAST, {} if amounts is None else {HOUR: amounts}, instance=life, **settings)


def verdict(live: Amounts, *producers: Any, **options: Any) -> AuditedHour:
    """Return the verdict on producers, the live broker and a replica that has what the live broker has."""
    counted = {"created_ms": SETTLED_MS, "end": 1_000, **options}
    brokers = [report(Tier.BROKER, cluster, at, {HOUR: live}, **counted) for cluster, at in PLACES]
    return only_hour([*producers, *brokers, *LATER])


def heard(from_ms: int, to_ms: int) -> list[Any]:
    """Return life signs of the broker, which show that the audit topic was written."""
    times = range(from_ms, to_ms, 10_000)
    return [report(Tier.BROKER, "east", EAST, {}, created_ms=time_ms, has_position=False) for time_ms in times]


PLACES = [("east", EAST), ("hub", EAST._replace(partition=3))]
BIGGER = Amounts(records=14, content=5_000)


def mixed(records: int, marked: int, *, marked_sum: int = FULL.content, **columns: Any) -> Amounts:
    """Return what a broker has of producers that count and of others."""
    return Amounts(
        records=records,
        content=9_999,
        columns={"marked_records": marked, "marked_sum": marked_sum, **columns},
    )


def test_a_producer_that_was_killed_is_no_difference_but_a_witness() -> None:
    """The records of its last interval were acknowledged, and never reported."""
    killed = produced(FULL, created_ms=DIED_MS, closed_ms=DIED_MS)
    hour = verdict(BIGGER, killed)
    assert hour.status is Status.UNKNOWN
    (finding,) = hour.findings
    assert (str(finding.at), finding.records) == ("live", 4)
    assert "producer p1 on web-1: it ended without closing its window" in finding.text
    assert "producer p1 on web-1" in [witness.name for witness in hour.missing_witnesses]


def test_a_producer_that_was_killed_before_its_first_counts_is_known() -> None:
    hour = verdict(FULL, produced(None, created_ms=DIED_MS, closed_ms=DIED_MS))
    assert hour.status is Status.UNKNOWN
    assert "ended without closing its window" in hour.findings[0].text


@pytest.mark.parametrize("live", [FULL, mixed(14, 4)], ids=["all", "some"])
def test_marked_records_without_any_report_of_a_producer_are_not_exact(live: Amounts) -> None:
    """The reports are gone with an audit topic that was recreated: nothing says what was sent."""
    brokers = [report(Tier.BROKER, each, at, {HOUR: live}, created_ms=SETTLED_MS, end=200) for each, at in PLACES]
    judgement = judged([*brokers, *LATER])
    (hour,) = judgement.hours()
    assert hour.status is Status.UNKNOWN
    (witness,) = hour.missing_witnesses
    assert witness.name == "producers of clicks in east"
    (mark,) = judgement.watermarks()
    assert mark.complete_ms is None or mark.complete_ms <= HOUR
    copied = only_hour([*brokers, *LATER], copied={("east", "clicks"): STILL_COPIED})
    assert copied.status is Status.EXACT  # their producers report to the cluster that was copied


def test_what_a_killed_producer_counted_and_the_broker_lacks_is_missing() -> None:
    hour = verdict(Amounts(records=8, content=5), produced(FULL, created_ms=DIED_MS, closed_ms=DIED_MS))
    assert (hour.status, hour.findings[0].records) == (Status.MISSING, 2)


def test_an_hour_that_a_killed_producer_had_closed_is_exact_if_all_agrees() -> None:
    closed = produced(FULL, created_ms=HOUR + HOUR_MS + 5, closed_ms=HOUR + HOUR_MS)
    assert verdict(FULL, closed).status is Status.EXACT


def test_a_killed_producer_may_have_written_to_an_hour_that_it_had_closed() -> None:
    """A record with an old time reopens its hour with the next life sign, which a killed producer never gives."""
    closed = produced(FULL, created_ms=HOUR + HOUR_MS + 5, closed_ms=HOUR + HOUR_MS)
    hour = verdict(BIGGER, closed)
    assert (hour.status, hour.findings[0].records) == (Status.UNKNOWN, 4)
    assert verdict(BIGGER, produced(FULL, is_ended=True)).status is Status.EXTRA


@pytest.mark.parametrize(("counted_ms", "status"), [(-2 * GRACE_MS, Status.EXTRA), (0, Status.UNKNOWN)])
def test_only_what_came_after_its_last_sign_can_be_of_a_producer_that_had_closed_the_hour(
    counted_ms: int, status: Status
) -> None:
    """The broker has had these records since before the sign, which said that all of the hour was reported."""
    seen_ms = HOUR + HOUR_MS + 10 * GRACE_MS
    closed = produced(FULL, created_ms=seen_ms, closed_ms=HOUR + HOUR_MS)
    assert verdict(BIGGER, closed, created_ms=seen_ms + counted_ms).status is status


def test_a_producer_that_has_no_marks_has_not_written_marked_records() -> None:
    plain = Amounts(records=2, content=50, columns={"marked_records": 0, "marked_sum": 0})
    live = mixed(16, 14, marked_sum=5)
    dead: dict[str, Any] = {"life": "dead", "created_ms": DIED_MS, "closed_ms": DIED_MS}
    hour = verdict(live, produced(FULL), produced(plain, **dead))
    assert hour.status is Status.EXTRA
    hour = verdict(live, produced(FULL), produced(plain, life="old", is_ended=True), produced(None, **dead))
    assert hour.status is Status.UNKNOWN
    assert "producer dead on web-1" in hour.findings[0].text


def test_the_producer_that_is_named_is_one_that_may_have_written() -> None:
    seen_ms = HOUR - HOUR_MS
    lives = [
        produced(None, life="a", created_ms=seen_ms - 30 * HOUR_MS, closed_ms=seen_ms - 30 * HOUR_MS),
        produced(None, life="b", created_ms=DIED_MS, closed_ms=DIED_MS),
    ]
    hour = verdict(BIGGER, produced(FULL), *lives)
    assert hour.status is Status.UNKNOWN
    assert "producer b on web-1" in hour.findings[0].text


def test_a_producer_that_named_another_topic_explains_nothing() -> None:
    dead = produced(None, life="dead", created_ms=DIED_MS, closed_ms=DIED_MS)
    other = replace(dead, topics=[ReportedTopic("orders")])
    assert verdict(BIGGER, produced(FULL), other).status is Status.EXTRA
    assert verdict(BIGGER, produced(FULL), replace(dead, topics=[])).status is Status.UNKNOWN


def test_a_producer_whose_life_signs_were_lost_may_have_gone_on() -> None:
    dead = produced(None, life="dead", created_ms=HOUR - 5 * HOUR_MS, closed_ms=HOUR - 5 * HOUR_MS)
    others = heard(HOUR - 5 * HOUR_MS, HOUR - 4 * HOUR_MS)
    assert verdict(BIGGER, produced(FULL), dead, *others).status is Status.UNKNOWN
    assert verdict(FULL, produced(FULL), dead, *others).status is Status.EXACT


def test_the_silence_of_a_producer_means_nothing_while_nobody_writes_to_the_audit_topic() -> None:
    """It lived on and sent records, was killed, and brokers lost the records in an unclean election (seed 355)."""
    seen_ms = HOUR - 5 * HOUR_MS
    silent = produced(None, life="silent", created_ms=seen_ms, closed_ms=seen_ms)
    for others in ([], heard(seen_ms - HOUR_MS, seen_ms + 20_000), heard(HOUR + HOUR_MS // 2, HOUR + HOUR_MS)):
        hour = verdict(FULL, produced(FULL), silent, *others)
        assert hour.status is Status.UNKNOWN
        assert [witness.name for witness in hour.missing_witnesses] == ["producer silent on web-1"]
    assert verdict(FULL, produced(FULL), silent, *heard(HOUR - HOUR_MS, HOUR)).status is Status.EXACT


def test_a_day_after_the_death_of_a_producer_hours_have_too_many_records_by_no_fault_of_it() -> None:
    dead = produced(None, life="dead", created_ms=HOUR - 24 * HOUR_MS, closed_ms=HOUR - 24 * HOUR_MS)
    assert verdict(BIGGER, produced(FULL), dead).status is Status.EXTRA


def test_equal_counts_of_the_hour_in_which_a_producer_was_killed_are_no_proof() -> None:
    """The last message may have been acknowledged, lost by the broker, and never been reported."""
    hour = verdict(FULL, produced(FULL, created_ms=DIED_MS, closed_ms=DIED_MS))
    assert hour.status is Status.UNKNOWN
    assert hour.missing_witnesses[0].name == "producer p1 on web-1"


def test_hours_after_the_death_of_a_producer_are_exact_again() -> None:
    dead = produced(None, life="dead", created_ms=HOUR - HOUR_MS, closed_ms=HOUR - HOUR_MS)
    assert verdict(FULL, produced(FULL), dead, *heard(HOUR - HOUR_MS, HOUR)).status is Status.EXACT


def test_producers_that_count_and_others_share_a_partition() -> None:
    hour = verdict(mixed(16, 10), produced(FULL))
    assert (hour.status, hour.findings) == (Status.EXACT, ())
    assert "east: 6 records of producers that do not count, as the brokers have them" in hour.rests_on


@pytest.mark.parametrize(
    ("live", "status", "records"),
    [
        (mixed(15, 9, marked_sum=5), Status.MISSING, 1),
        (mixed(17, 11, marked_sum=5), Status.EXTRA, 1),
        (mixed(16, 10, marked_sum=5), Status.CHANGED, 0),
    ],
    ids=["lost", "doubled", "changed"],
)
def test_other_producers_hide_no_difference_of_those_that_count(live: Amounts, status: Status, records: int) -> None:
    hour = verdict(live, produced(FULL))
    assert (hour.status, hour.findings[0].records) == (status, records)


UNMARKED = Amounts(columns={"marked_records": 0, "marked_sum": 0})


@pytest.mark.parametrize(
    ("live", "status"),
    [
        (UNMARKED, Status.EXACT),
        (Amounts(records=8, content=3, columns={"marked_records": 0, "marked_sum": 0}), Status.MISSING),
        (Amounts(records=12, content=3, columns={"marked_records": 0, "marked_sum": 0}), Status.UNKNOWN),
        (Amounts(content=3, columns={"marked_records": 0, "marked_sum": 0}), Status.CHANGED),
    ],
    ids=["equal", "fewer", "more", "other"],
)
def test_of_producers_without_marks_more_records_may_be_of_others(live: Amounts, status: Status) -> None:
    hour = verdict(live, produced(UNMARKED))
    assert hour.status is status
    if status is Status.UNKNOWN:
        assert "records of producers that do not count, or records doubled" in hour.findings[0].text
        assert hour.missing_witnesses


@pytest.mark.parametrize(("more", "status"), [(2, Status.EXPLAINED), (4, Status.EXTRA), (0, Status.EXACT)])
def test_records_of_unknown_outcome_may_be_there(more: int, status: Status) -> None:
    sent = Amounts(columns={"uncertain_records": 2})
    hour = verdict(Amounts(records=10 + more, content=FULL.content + more), produced(sent))
    assert hour.status is status


def test_a_living_producer_that_has_not_closed_the_hour_leaves_it_pending() -> None:
    hour = verdict(FULL, produced(FULL, created_ms=NOW_MS, closed_ms=HOUR + 5))
    assert hour.status is Status.PENDING
    assert hour.missing_witnesses[0].reason == "it has not closed the hour yet"
    assert verdict(BIGGER, produced(FULL, created_ms=NOW_MS, closed_ms=HOUR + 5)).status is Status.PENDING


def test_lives_add_up() -> None:
    halves = [Amounts(records=4, content=1_000), Amounts(records=6, content=234)]
    hour = verdict(FULL, *(produced(half, life=f"p{number}", is_ended=True) for number, half in enumerate(halves)))
    # The halves' CRC sums and bytes do not add up to those of FULL, which do not count beside marked sums.
    assert hour.status is Status.EXACT


STAMPED = Amounts(content=77, columns={"header_sum": FULL.content * 5, "stamped": 5, "marked_sum": 77})


def test_broker_s_timestamps_alone_are_no_difference() -> None:
    """Fault B3: LogAppendTime renews timestamps and CRC of each batch."""
    hour = verdict(STAMPED, produced(FULL))
    assert (hour.status, hour.findings) == (Status.EXACT, ())
    assert any("LogAppendTime" in text for text in hour.rests_on)


@pytest.mark.parametrize(
    ("columns", "kind"),
    [({"header_sum": 1}, DiscrepancyKind.CHANGED), ({"bytes": 999}, DiscrepancyKind.CHANGED)],
)
def test_broker_s_timestamps_hide_no_other_change(columns: dict[str, int], kind: DiscrepancyKind) -> None:
    changed = Amounts(content=77, columns={**STAMPED.columns, **columns})
    hour = verdict(changed, produced(FULL))
    assert (hour.status, hour.findings[0].kind) == (Status.CHANGED, kind)


@pytest.mark.parametrize("stamped", [0, 5])
def test_batches_that_a_broker_recompressed_are_not_compared(stamped: int) -> None:
    """Fault B4: `compression.type` of the topic."""
    columns = {**STAMPED.columns, "stamped": stamped, "none": 0, "lz4": 5, "bytes": 500}
    hour = verdict(Amounts(content=77, columns=columns), produced(FULL))
    assert (hour.status, hour.findings[0].records) == (Status.RECOMPRESSED, 0)


def one_by_one(records: int, at: int = HOUR) -> Any:
    columns = {"marked_records": 0, "marked_sum": 0, "by_record": True, "has_sums": False, "batches": 0, "bytes": 0}
    return report(
        Tier.PRODUCER,
        "east",
        EAST,
        {at: Amounts(records=records, content=0, columns={**columns, "crc_sum": 0})},
        instance="p1",
        created_ms=SETTLED_MS,
        closed_ms=NOW_MS,
    )


def test_a_producer_that_counts_by_record_is_compared_by_numbers_alone_and_the_verdict_says_so() -> None:
    hour = verdict(UNMARKED, one_by_one(10))
    assert hour.status is Status.EXACT
    told = "east: produced was counted record by record: numbers of records are compared, and not their contents"
    assert told in hour.rests_on
    assert "sums over batch headers" in hour.rests_on, "of live and replica"
    assert "sums of CRCs" not in hour.rests_on
    live = next(text for text in story_of(hour) if text.startswith("The brokers of the live clusters"))
    assert live.endswith("as many as the stage before, which was counted record by record.")


@pytest.mark.parametrize(("second", "status"), [(12, Status.EXACT), (11, Status.UNKNOWN), (13, Status.MISSING)])
def test_records_counted_one_by_one_may_be_in_the_hour_beside(second: int, status: Status) -> None:
    """A batch is filed by its first record; confluent-kafka counts each record by its own time."""
    first, live = HOUR - HOUR_MS, {HOUR - HOUR_MS: UNMARKED, HOUR: Amounts(columns=UNMARKED.columns, first=110)}
    brokers = [report(Tier.BROKER, each, at, live, created_ms=SETTLED_MS, end=1_000) for each, at in PLACES]
    late_ms = NOW_MS + 2 * HOUR_MS
    reports = [one_by_one(8, first), one_by_one(second), *brokers]
    before, after = judged(
        [*reports, *signs(late_ms)], now_ms=late_ms, read_to_ms=dict.fromkeys(("east", "hub"), late_ms)
    ).hours()
    assert {before.status, after.status} == {status}
    early = judged([*reports, *signs()]).hours()
    assert {hour.status for hour in early} == {Status.EXACT if status is Status.EXACT else Status.PENDING}
