"""Verdicts on hours in which producers wrote to the replica cluster itself, as they do once a topic was promoted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import STILL_COPIED, AuditedHour, MirroredTopic, Route, Status
from pipeline.audit.ledger.ledger import Ledger
from pipeline.audit.ledger.limits import LedgerLimits
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import (
    EAST,
    EXPECTED,
    FULL,
    GRACE_MS,
    HOUR,
    HUB,
    NOW_MS,
    PENDING_MAX_MS,
    WholeWay,
    judged,
    report,
    signs,
)
from tests.support.memory_shelf import MemoryShelf

NEXT_HOUR = HOUR + HOUR_MS
LATER_MS = NOW_MS + HOUR_MS
FORMER_ROUTE = [Route(cluster="east", source=EAST, replica=HUB, topic_id="deleted")]
WHOLE = WholeWay(loaded=None)
READ = {"east": LATER_MS, "hub": LATER_MS}


def at_the_hub(hour_ms: int = HOUR, topic: str = "clicks") -> CountReport:
    partition = HUB._replace(topic=topic)
    return report(Tier.PRODUCER, "hub", partition, {hour_ms: FULL}, instance="p2", revision=1, is_ended=True)


def hours_of(reports: Sequence[CountReport], **changes: Any) -> dict[int, AuditedHour]:
    found = judged(reports, now_ms=LATER_MS, read_to_ms=READ, **changes).hours()
    return {hour.hour_ms: hour for hour in found if hour.topic == "clicks"}


@pytest.mark.parametrize("changes", [{}, {"routes": FORMER_ROUTE}, {"mirrored": []}], ids=["now", "former", "excluded"])
def test_an_hour_of_records_that_went_to_the_hub_itself_is_unknown_although_all_stages_agree(
    changes: dict[str, Any],
) -> None:
    """They may be in no topic any more: a reversal deletes what came after the last promotion."""
    assert hours_of(WHOLE.reports())[HOUR].status is Status.EXACT
    hour = hours_of([*WHOLE.reports(), at_the_hub()], **changes)[HOUR]
    assert hour.status is Status.UNKNOWN
    (witness,) = [each for each in hour.missing_witnesses if each.cluster == "hub" and "producers" in each.name]
    assert witness.name == "producers of clicks in hub"
    assert witness.reason.startswith("10 records were produced to hub itself")


def test_an_hour_that_only_producers_of_the_hub_reported_is_unknown() -> None:
    hours = hours_of([*WHOLE.reports(), at_the_hub(NEXT_HOUR)])
    assert hours[NEXT_HOUR].status is Status.UNKNOWN
    assert hours[HOUR].status is Status.EXACT


def test_producers_of_other_topics_of_the_hub_leave_hours_as_they_are() -> None:
    assert hours_of([*WHOLE.reports(), at_the_hub(topic="orders")])[HOUR].status is Status.EXACT


def test_an_hour_that_was_exact_is_unknown_once_a_producer_of_the_hub_reports_it() -> None:
    ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    statuses = []
    for reports in (WHOLE.reports(), [at_the_hub()]):
        for one in reports:
            ledger.apply(one)
        statuses.append(judge.judge(replace(EXPECTED), NOW_MS).hours()[0].status)
    assert statuses == [Status.EXACT, Status.UNKNOWN]


FORMER = TopicPartition("former.clicks", 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"routes": [*EXPECTED.routes, Route(cluster="east", source=EAST, replica=FORMER, topic_id="deleted")]},
        {"mirrored": [*EXPECTED.mirrored, MirroredTopic(cluster="east", topic="clicks", replica_topic=FORMER.topic)]},
    ],
    ids=["before it was created again", "selected"],
)
def test_an_hour_that_was_exact_is_unknown_once_a_producer_of_another_replica_reports_it(
    changes: dict[str, Any],
) -> None:
    """Neither replica has the topic's name, and only one of them is its newest one."""
    ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
    ledger.apply(at_the_hub(HOUR - 10 * HOUR_MS, topic=FORMER.topic))
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    statuses = []
    for reports in (WHOLE.reports(), [at_the_hub(topic=FORMER.topic)]):
        for one in reports:
            ledger.apply(one)
        (hour,) = judge.judge(replace(EXPECTED, **changes), NOW_MS).hours("clicks", HOUR)
        statuses.append(hour.status)
    assert statuses == [Status.EXACT, Status.UNKNOWN]


def test_a_watermark_does_not_rise_over_hours_that_were_those_of_a_replica_which_is_none_any_more() -> None:
    ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
    lossy = replace(WHOLE, hour_ms=NEXT_HOUR, replica=replace(FULL, records=8))
    for one in (at_the_hub(topic=FORMER.topic), *lossy.reports(), *signs(LATER_MS)):
        ledger.apply(one)
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    former = MirroredTopic(cluster="east", topic="clicks", replica_topic=FORMER.topic)
    for mirrored in ([*EXPECTED.mirrored, former], EXPECTED.mirrored):
        judgement = judge.judge(replace(EXPECTED, mirrored=mirrored, read_to_ms=READ), LATER_MS)
        assert [each.complete_ms for each in judgement.watermarks() if each.topic == "clicks"] == [None]


PROMOTED_MS = HOUR + 30 * 60_000
BACK = replace(FULL, records=20, content=2_468)
"""The records of the hour, and as many copies of what producers sent to the hub."""


def edges_of(hour: AuditedHour) -> dict[str, tuple[Status, int]]:
    return {finding.at.tier: (finding.status, finding.records) for finding in hour.findings}


@pytest.mark.parametrize("until_ms", [PROMOTED_MS, STILL_COPIED], ids=["promoted since", "still a replica"])
def test_copies_in_a_live_topic_are_no_records_too_many(until_ms: int) -> None:
    """After a reversal they are counted with what producers sent to the topic of the name before."""
    reports = replace(WHOLE, live=BACK, replica=BACK).reports() + signs(LATER_MS)
    assert hours_of(reports)[HOUR].status is Status.EXTRA
    hour = hours_of(reports, copied={("east", "clicks"): until_ms})[HOUR]
    assert hour.status is Status.UNKNOWN
    assert edges_of(hour) == {"live": (Status.UNKNOWN, 10)}
    (witness,) = hour.missing_witnesses
    assert witness.name == "copies in clicks in east"
    assert "10 records more than were produced: the topic is a replica itself, or was one then" in hour.findings[0].text


def test_an_hour_that_began_after_a_promotion_has_records_too_many() -> None:
    reports = replace(WHOLE, live=BACK, replica=BACK).reports() + signs(LATER_MS)
    hour = hours_of(reports, copied={("east", "clicks"): HOUR - 1})[HOUR]
    assert edges_of(hour) == {"live": (Status.EXTRA, 10)}


def test_copies_excuse_no_record_that_is_missing_or_changed() -> None:
    copied = {("east", "clicks"): STILL_COPIED}
    for amounts, status in ((replace(FULL, records=8), Status.MISSING), (replace(FULL, content=9), Status.CHANGED)):
        reports = replace(WHOLE, live=amounts, replica=amounts).reports() + signs(LATER_MS)
        assert hours_of(reports, copied=copied)[HOUR].status is status


def test_producers_of_an_hour_after_a_promotion_must_have_reported() -> None:
    """Before it the marked records are copies, and their producers report to another cluster."""
    reports = replace(WHOLE, produced=None).reports() + signs(LATER_MS)
    for until_ms, status in ((HOUR, Status.EXACT), (HOUR - 1, Status.UNKNOWN)):
        hour = hours_of(reports, copied={("east", "clicks"): until_ms})[HOUR]
        assert hour.status is status


@pytest.mark.parametrize(
    ("since_ms", "status"),
    [(PROMOTED_MS, Status.UNKNOWN), (HOUR + HOUR_MS, Status.EXTRA), (STILL_COPIED, Status.EXTRA)],
    ids=["in the hour", "after it", "never"],
)
def test_a_promoted_replica_has_records_of_producers(since_ms: int, status: Status) -> None:
    hour = hours_of(replace(WHOLE, replica=BACK).reports() + signs(LATER_MS), copied={("hub", "clicks"): since_ms})[
        HOUR
    ]
    assert edges_of(hour) == {"replica": (status, 10)}
    names = [witness.name for witness in hour.missing_witnesses]
    assert names == (["producers of clicks in hub"] if status is Status.UNKNOWN else [])


def test_a_topic_that_is_promoted_is_judged_again() -> None:
    ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
    for one in replace(WHOLE, live=BACK, replica=BACK).reports() + signs(LATER_MS):
        ledger.apply(one)
    judge = Judge(ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
    statuses = [
        judge.judge(replace(EXPECTED, copied=copied, read_to_ms=READ), LATER_MS).hours()[0].status
        for copied in ({("east", "clicks"): STILL_COPIED}, {("east", "clicks"): HOUR - 1})
    ]
    assert statuses == [Status.UNKNOWN, Status.EXTRA]
