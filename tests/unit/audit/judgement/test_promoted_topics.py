"""Verdicts on hours in which producers wrote to the replica cluster itself, as they do once a topic was promoted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Route, Status
from pipeline.audit.ledger.ledger import Ledger, LedgerLimits
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
)
from tests.support.memory_shelf import MemoryShelf

NEXT_HOUR = HOUR + HOUR_MS
LATER_MS = NOW_MS + HOUR_MS
FORMER_ROUTE = [Route(cluster="east", source=EAST, replica=HUB, topic_id="deleted")]
WHOLE = WholeWay(loaded=None)


def at_the_hub(hour_ms: int = HOUR, topic: str = "clicks") -> CountReport:
    partition = HUB._replace(topic=topic)
    return report(Tier.PRODUCER, "hub", partition, {hour_ms: FULL}, instance="p2", revision=1, is_ended=True)


def hours_of(reports: Sequence[CountReport], **changes: Any) -> dict[int, AuditedHour]:
    read = {"east": LATER_MS, "hub": LATER_MS}
    found = judged(reports, now_ms=LATER_MS, read_to_ms=read, **changes).hours()
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
