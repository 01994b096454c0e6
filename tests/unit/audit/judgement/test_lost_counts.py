"""Records that brokers had counted, and that a power failure or an unclean election took."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EAST, GRACE_MS, HOUR, HUB, NOW_MS, Amounts, judged, only_hour, report, signs

SETTLED_MS = NOW_MS - 2 * GRACE_MS
NAME = "lost records of clicks-0 in east"
UNMARKED = {"marked_records": 0, "marked_sum": 0}
ALL = Amounts(columns=UNMARKED)
LEFT = Amounts(records=4, content=400, columns=UNMARKED)


def counted(amounts: Amounts | None = ALL, **options: Any) -> CountReport:
    """Return a report of a broker about records of producers that do not count, unless other ones are given."""
    rows = {} if amounts is None else {HOUR: amounts}
    return report(Tier.BROKER, "east", EAST, rows, **{"created_ms": SETTLED_MS, "end": 200, **options})


def verdict(*reports: CountReport, left: Amounts = LEFT) -> AuditedHour:
    copied = report(Tier.BROKER, "hub", HUB, {HOUR: left}, created_ms=SETTLED_MS, end=200)
    return only_hour([*reports, copied, *(one for one in signs() if one.counter.tier is Tier.BROKER)])


def named(hour: AuditedHour) -> list[str]:
    return [witness.name for witness in hour.missing_witnesses]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_records_that_were_counted_and_are_gone_make_an_hour_unknown(order: Sequence[int]) -> None:
    reports = [
        counted(revision=110, created_ms=SETTLED_MS - 2),
        counted(LEFT, claims=[(1, 104)], end=104, epoch=1, revision=104),
        counted(None, end=200, epoch=1),
    ]
    hour = verdict(*(reports[place] for place in order))
    assert hour.status is Status.UNKNOWN
    assert named(hour) == [NAME]
    assert "up to offset 109, and those from offset 104 on are gone" in hour.missing_witnesses[0].reason


@pytest.mark.parametrize("start", [110, 120])
def test_a_leader_that_goes_on_after_all_that_was_counted_says_nothing_of_a_loss(start: int) -> None:
    """Rows of lower epochs that counted further are void, too, though all records of the hour are there."""
    hour = verdict(
        counted(revision=130, created_ms=SETTLED_MS - 1),
        counted(claims=[(1, start)], epoch=1, revision=200),
        left=ALL,
    )
    assert (hour.status, named(hour)) == (Status.EXACT, [])


def test_records_that_came_again_are_not_lost() -> None:
    """A producer that got no acknowledgement sent its batches again."""
    hour = verdict(
        counted(revision=110, created_ms=SETTLED_MS - 1),
        counted(claims=[(1, 104)], epoch=1, revision=110),
        left=ALL,
    )
    assert (hour.status, named(hour)) == (Status.EXACT, [])


def test_of_records_of_producers_that_count_these_tell_what_was_lost() -> None:
    left = Amounts(records=4, content=400)
    sent = report(Tier.PRODUCER, "east", EAST, {HOUR: Amounts()}, instance="p", created_ms=SETTLED_MS, is_ended=True)
    hour = verdict(
        sent,
        counted(Amounts(), revision=110, created_ms=SETTLED_MS - 1),
        counted(left, claims=[(1, 104)], epoch=1, revision=104),
        left=left,
    )
    assert hour.status is Status.MISSING
    assert named(hour) == []
    assert [finding.records for finding in hour.findings] == [6]


def test_an_hour_of_which_all_records_are_there_is_not_concerned() -> None:
    """Its row went as far as that of the hour that lost records, so the claim made both void."""
    earlier_ms = HOUR - HOUR_MS
    whole = Amounts(first=50, columns=UNMARKED)
    both = {earlier_ms: whole, HOUR: ALL}
    options: dict[str, Any] = {"created_ms": SETTLED_MS, "end": 200}
    reports = [
        report(Tier.BROKER, "east", EAST, both, revision=110, **options | {"created_ms": SETTLED_MS - 1}),
        report(Tier.BROKER, "east", EAST, {earlier_ms: whole, HOUR: LEFT}, epoch=1, claims=[(1, 104)], **options),
        report(Tier.BROKER, "hub", HUB, {earlier_ms: whole, HOUR: LEFT}, **options),
        *(one for one in signs() if one.counter.tier is Tier.BROKER),
    ]
    earlier, later = judged(reports).hours()
    assert (earlier.status, named(earlier)) == (Status.EXACT, [])
    assert (later.status, named(later)) == (Status.UNKNOWN, [NAME])
