"""Hours that are young, or whose first reports are: pending, not unknown, as long as a party may still speak."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.missing_words import name_of_clock, silent_counter_witness
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import Status, Witness
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import (
    EAST,
    GRACE_MS,
    HOUR,
    NOW_MS,
    Amounts,
    WholeWay,
    judged,
    only_hour,
    report,
    signs,
)

END_MS = HOUR + HOUR_MS
SILENT_MS = 30_000 + GRACE_MS
"""Three intervals and the grace."""
SETTLED_MS = NOW_MS - 2 * GRACE_MS


def read_to(now_ms: int) -> dict[str, Any]:
    return {"now_ms": now_ms, "read_to_ms": {"east": now_ms, "hub": now_ms}}


def produced(created_ms: int, **options: Any) -> list[CountReport]:
    """Return the report of a producer; no broker has reported the topic."""
    amounts = {HOUR: Amounts()}
    return [report(Tier.PRODUCER, "east", EAST, amounts, instance="p1", revision=1, created_ms=created_ms, **options)]


@pytest.mark.parametrize("since_ms", [1_000, HOUR_MS // 2])
def test_an_hour_that_is_not_over_is_pending_though_its_broker_never_reported(since_ms: int) -> None:
    created_ms = HOUR + 60_000
    hour = only_hour(produced(created_ms), **read_to(created_ms + since_ms))
    assert (hour.status, hour.findings) == (Status.PENDING, ())
    assert [str(witness) for witness in hour.missing_witnesses] == ["the hour: the hour is not over"]


@pytest.mark.parametrize("partitions", [1, 30])
def test_an_old_hour_waits_for_the_first_report_of_its_broker(partitions: int) -> None:
    """The first record of a new topic has an old time."""
    reports = produced(NOW_MS, is_ended=True)
    counted = {("east", "clicks"): partitions, ("hub", "clicks"): 4}
    for passed_ms, status in [(1_000, Status.PENDING), (SILENT_MS, Status.PENDING), (SILENT_MS + 1, Status.UNKNOWN)]:
        hour = only_hour(reports, partitions=counted, **read_to(NOW_MS + passed_ms))
        assert hour.status is status, passed_ms
        assert any("leads clicks-0" in witness.name for witness in hour.missing_witnesses)


def test_a_broker_that_is_silent_is_named_once_the_hour_is_over() -> None:
    reports = WholeWay(live=Amounts(records=8, content=1), live_options={"created_ms": HOUR + 60_000}).reports()
    assert only_hour(reports, **read_to(END_MS - 1)).status is Status.PENDING
    assert only_hour(reports).status is Status.UNKNOWN


def mirrored(records: int, created_ms: int, instance: str = "m1") -> CountReport:
    amounts = {HOUR: Amounts(records=records, content=9_999)}
    return report(Tier.MIRROR, "east", EAST, amounts, instance=instance, created_ms=created_ms, closed_ms=0)


def test_an_hour_is_pending_while_the_mirror_copied_records_that_no_broker_reported_yet() -> None:
    """Late records: the report of the mirror overtook those of the brokers."""
    exact = WholeWay(loaded=None).reports()
    assert only_hour(exact).status is Status.EXACT
    judgement = judged([*exact, mirrored(12, NOW_MS)])
    (hour,), (watermark,) = judgement.hours(), judgement.watermarks()
    assert hour.status is Status.PENDING
    assert hour.findings[0].text.endswith("2 records that the mirror copied are in no report of the brokers yet")
    assert watermark.complete_ms is None
    assert only_hour([*exact, mirrored(10, NOW_MS)]).status is Status.EXACT
    later_ms = NOW_MS + 60_000
    more = Amounts(records=12, content=5)
    caught_up = [
        *(each for each in WholeWay(produced=more, live=more, replica=more, loaded=None).reports()),
        mirrored(12, NOW_MS),
        *signs(later_ms),
    ]
    assert only_hour(caught_up, **read_to(later_ms)).status is Status.EXACT


def test_what_a_mirror_copied_twice_keeps_no_hour_pending() -> None:
    """The brokers have spoken since, and have no more."""
    exact = WholeWay(loaded=None).reports()
    again = [mirrored(10, SETTLED_MS), mirrored(10, SETTLED_MS, "m2")]
    assert only_hour([*exact, *again, *signs()]).status is Status.EXACT


def test_a_mirror_s_copies_wait_for_a_silent_broker_by_name() -> None:
    exact = WholeWay(loaded=None).reports()
    later_ms = NOW_MS + 2 * HOUR_MS
    hub = signs(later_ms)[1]
    hour = only_hour([*exact, hub, mirrored(12, later_ms)], **read_to(later_ms))
    assert hour.status is Status.UNKNOWN
    assert any("leads clicks-0" in witness.name for witness in hour.missing_witnesses)


def test_a_mirror_s_copies_that_wait_for_brokers_whose_clock_is_wrong_name_the_clock() -> None:
    """The hour ended long before the clock was wrong; only the words about the copies come at an unknown time."""
    later_ms = NOW_MS + 2 * HOUR_MS
    clock = Witness(
        name=name_of_clock("east"), reason="it is 10 min ahead", cluster="east", since_ms=later_ms - 600_000
    )
    reports = [*WholeWay(loaded=None).reports(), signs(later_ms)[1], mirrored(12, later_ms)]
    hour = only_hour(reports, unknown=[clock], **read_to(later_ms))
    assert hour.status is Status.UNKNOWN
    (witness,) = hour.missing_witnesses
    assert (witness.name, witness.cluster, witness.partition) == (clock.name, "east", EAST)
    assert (
        witness.reason
        == f"it is 10 min ahead. Until then reports of clicks-0 count for no time after {iso_time(NOW_MS)}"
    )
    for other in (replace(clock, name=name_of_clock("hub"), cluster="hub"), replace(clock, name="mirror")):
        (witness,) = only_hour(reports, unknown=[other], **read_to(later_ms)).missing_witnesses
        assert witness.name == "the broker of east that leads clicks-0"


def test_an_hour_after_which_a_broker_with_a_wrong_clock_is_silent_names_the_clock() -> None:
    """The broker reports, and its reports count for no time after its clock went wrong."""
    later_ms = NOW_MS + 2 * HOUR_MS
    clock = Witness(name=name_of_clock("east"), reason="it is 10 min ahead", cluster="east", since_ms=later_ms)
    word_ms = HOUR + 60_000
    way = WholeWay(loaded=None, live_options={"created_ms": word_ms})
    reports = [*way.reports(), signs(later_ms)[1]]
    hour = only_hour(reports, unknown=[clock], **read_to(later_ms))
    assert hour.status is Status.UNKNOWN
    (witness,) = hour.missing_witnesses
    assert (witness.name, witness.cluster, witness.partition) == (clock.name, "east", EAST)
    assert (
        witness.reason
        == f"it is 10 min ahead. Until then reports of clicks-0 count for no time after {iso_time(word_ms)}"
    )
    (witness,) = only_hour(reports, **read_to(later_ms)).missing_witnesses
    assert str(witness) == "the broker of east that leads clicks-0: it did not report clicks-0 after the hour was over"


def test_a_counter_that_never_gave_its_word_is_named_whatever_the_clock_is() -> None:
    clock = Witness(name=name_of_clock("east"), reason="it is 10 min ahead", cluster="east")
    witness = silent_counter_witness("east", EAST, 0, clock, never=True)
    assert str(witness) == "the broker of east that leads clicks-0: it never reported it"


def test_hours_to_come_are_pending() -> None:
    amounts = {HOUR + 30 * HOUR_MS: Amounts()}
    ahead = report(Tier.PRODUCER, "east", EAST, amounts, instance="p1", revision=1)
    (hour,) = judged([ahead], mirrored=[], routes=[], replica_cluster=None).hours()
    assert hour.status is Status.PENDING


def test_nobody_waits_for_the_old_leader_of_a_partition_that_moved() -> None:
    way = WholeWay(loaded=None, live_options={"created_ms": HOUR + 60_000})
    moved_ms = HOUR + 120_000
    old = report(Tier.BROKER, "east", EAST, {}, created_ms=moved_ms, is_leader=False, end=110, is_ended=True)
    new = report(Tier.BROKER, "east", EAST, {}, process="2", created_ms=moved_ms + 1, end=110)
    sign = replace(report(Tier.BROKER, "east", EAST, {}, process="2", has_position=False), topics=[])
    assert only_hour([*way.reports(), old, new, sign]).status is Status.EXACT
    hour = only_hour([*way.reports(), old, *signs()[1:]])
    assert hour.status is Status.UNKNOWN, "nobody knows what the new leader has"


def test_a_leader_that_leads_no_more_vouches_for_nothing() -> None:
    """The new leader was killed before it could report."""
    way = WholeWay(loaded=None, live_options={"created_ms": HOUR + 60_000})
    left = report(Tier.BROKER, "east", EAST, {}, created_ms=HOUR + 120_000, is_leader=False, end=110)
    hour = only_hour([*way.reports(), left, *signs()])
    assert hour.status is Status.UNKNOWN
    assert any("leads clicks-0" in witness.name for witness in hour.missing_witnesses)


def test_a_broker_that_was_stopped_is_named_until_it_is_back() -> None:
    way = WholeWay(loaded=None, live_options={"created_ms": HOUR + 60_000})
    stopped = report(Tier.BROKER, "east", EAST, {}, created_ms=HOUR + 120_000, end=110, is_ended=True)
    told = [*way.reports(), stopped, *signs()[1:]]
    hour = only_hour(told)
    assert hour.status is Status.UNKNOWN
    assert "it was stopped at 1970-02-11T16:02:00Z" in str(hour.missing_witnesses[0])
    back = signs()[0]
    assert back.life is not None
    back = replace(back, life=replace(back.life, started_ms=END_MS))
    assert only_hour([*told, back]).status is Status.EXACT
    assert only_hour([back, *told]).status is Status.EXACT, "whichever comes first"
