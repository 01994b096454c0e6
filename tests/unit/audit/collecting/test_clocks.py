"""Clocks that are wrong by a day, of counters, of the brokers that store events, and of the collector."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pipeline.audit.collecting.clocks import LATE_MS, SENT_WITHIN_MS, TOLERANCE_MS, StoredAt, StoringClock
from pipeline.audit.collecting.decoding import decode_portion
from pipeline.audit.events.encoding import encode_count_report
from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.times import iso_time
from pipeline.audit.judgement.verdicts import AuditedHour, Status
from pipeline.audit.ledger.ledger import Ledger
from pipeline.records.batch import HEADER_SIZE, BatchHeader, read_header, set_log_append_time
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import (
    EAST,
    EXPECTED,
    GRACE_MS,
    HOUR,
    HUB,
    NOW_MS,
    PENDING_MAX_MS,
    Amounts,
    WholeWay,
    report,
    signs,
)

DAY_MS = 24 * HOUR_MS
END_MS = HOUR + HOUR_MS
HALF_PAST_MS = HOUR + HOUR_MS // 2


def stored(event: CountReport, stamp_ms: int | None, *, create_ms: int = 0) -> tuple[BatchHeader, bytes]:
    """Return a batch with one event, as a broker stored it; with its own timestamp if the topic says so."""
    builder = BatchBuilder(Codec.NONE, 10_000_000)
    assert builder.append(None, encode_count_report(event), (), create_ms)
    built = builder.build()
    if stamp_ms is not None:
        set_log_append_time(built, 0, stamp_ms)
    return read_header(built, 0), bytes(built[HEADER_SIZE:])


class Site:
    """Events of two clusters, read one by one at a time of the collector's clock."""

    def __init__(self) -> None:
        self.ledger = Ledger(settle_ms=GRACE_MS)
        self.clocks = {name: StoringClock(name) for name in ("east", "hub")}
        self.read_to_ms: dict[str, int] = {}

    def read(self, event: CountReport, stamp_ms: int | None, now_ms: int, after_ms: int | None = None) -> CountReport:
        header, payload = stored(event, stamp_ms)
        at = self.clocks[event.counter.cluster].stored_at(header, now_ms, after_ms)
        (believed,) = decode_portion([(header, payload, at)], 0).events
        assert isinstance(believed, CountReport)
        self.ledger.apply(believed)
        return believed

    def read_all(self, skews_ms: dict[Tier, int], *, now_ms: int, counted_ms: int) -> None:
        """Read what all counters say at a time; the clocks of some tiers are wrong."""
        for event in WholeWay(loaded=None).reports():
            said_ms = counted_ms + skews_ms.get(event.counter.tier, 0)
            assert event.life is not None
            life = replace(event.life, closed_ms=said_ms, started_ms=min(said_ms, event.life.started_ms))
            self.read(replace(event, created_ms=said_ms, life=life), counted_ms, max(counted_ms, now_ms))

    def hour(self, now_ms: int = NOW_MS) -> AuditedHour:
        judge = Judge(self.ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)
        unknown = [clock.witness for clock in self.clocks.values() if clock.witness is not None]
        read_to_ms = {"east": now_ms, "hub": now_ms}
        (hour,) = judge.judge(replace(EXPECTED, read_to_ms=read_to_ms, unknown=unknown), now_ms).hours()
        return hour


@pytest.mark.parametrize("tier", [Tier.BROKER, Tier.PRODUCER])
def test_a_counter_whose_clock_is_a_day_ahead_vouches_for_no_hour_to_come(tier: Tier) -> None:
    site = Site()
    site.read_all({tier: DAY_MS}, now_ms=NOW_MS, counted_ms=HALF_PAST_MS)
    hour = site.hour()
    assert hour.status is Status.UNKNOWN, "its last word was in the middle of the hour"
    site.read_all({tier: DAY_MS}, now_ms=NOW_MS, counted_ms=NOW_MS - 1)
    assert site.hour().status is Status.EXACT, "its word after the hour counts"


@pytest.mark.parametrize("tier", [Tier.BROKER, Tier.PRODUCER])
def test_a_counter_whose_clock_is_a_day_behind_is_named(tier: Tier) -> None:
    site = Site()
    site.read_all({tier: -DAY_MS}, now_ms=NOW_MS, counted_ms=NOW_MS - 1)
    hour = site.hour()
    assert hour.status is Status.UNKNOWN
    names = [str(witness) for witness in hour.missing_witnesses]
    who = "producer p1 on web-1" if tier is Tier.PRODUCER else "the broker of east that leads clicks-0"
    assert any(name.startswith(who) and "its clock is 24 h behind" in name for name in names), names
    (watermark,) = (
        Judge(site.ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS).judge(EXPECTED, NOW_MS).watermarks()
    )
    assert tier is not Tier.PRODUCER or "24 h behind" in watermark.waits_for


def test_a_producer_whose_clock_is_behind_is_not_taken_for_dead() -> None:
    """A producer that looks silent would not be waited for in later hours."""
    site = Site()
    site.read_all({Tier.PRODUCER: -DAY_MS}, now_ms=NOW_MS, counted_ms=NOW_MS - 1)
    (life,) = (life for lives in site.ledger.lives.values() for life in lives.values() if life.process == "p1")
    assert not life.is_silent(NOW_MS, GRACE_MS)


def test_times_are_capped_at_the_time_of_storing_and_a_minute_is_no_fault() -> None:
    site = Site()
    for skew_ms, said_ms in [
        (-DAY_MS, NOW_MS - DAY_MS),
        (0, NOW_MS),
        (TOLERANCE_MS, NOW_MS),
        (TOLERANCE_MS + 1, NOW_MS - SENT_WITHIN_MS),  # true when it was sent, not when it was stored
        (DAY_MS, NOW_MS - SENT_WITHIN_MS),
    ]:
        event = report(Tier.BROKER, "east", EAST, {}, created_ms=NOW_MS + skew_ms)
        found = site.read(event, NOW_MS, NOW_MS + 5)
        assert found.life is not None
        assert (found.created_ms, found.life.closed_ms, found.skew_ms) == (said_ms, said_ms, skew_ms)


def test_without_stamps_times_are_capped_at_the_time_of_the_collector() -> None:
    site = Site()
    within = site.read(report(Tier.BROKER, "east", EAST, {}, created_ms=NOW_MS + 1_000), None, NOW_MS)
    assert (within.created_ms, within.heard_ms) == (NOW_MS, NOW_MS)
    ahead = report(Tier.BROKER, "east", EAST, {}, created_ms=NOW_MS + DAY_MS)
    header, payload = stored(ahead, None, create_ms=NOW_MS + DAY_MS)
    known = site.read(report(Tier.BROKER, "east", EAST, {}, created_ms=END_MS), None, NOW_MS)
    assert known.created_ms == END_MS
    clock = StoringClock("east", floor_ms=END_MS)
    for now_ms in (NOW_MS, NOW_MS + HOUR_MS):  # a collector that starts later says no more
        at = clock.stored_at(header, now_ms, None)
        (found,) = decode_portion([(header, payload, at)], 0).events
        assert found.created_ms == END_MS - SENT_WITHIN_MS
    assert clock.witness is None


def test_brokers_whose_clock_is_a_day_ahead_vouch_for_nothing_and_are_named_until_it_is_right() -> None:
    site = Site()
    site.read_all({}, now_ms=NOW_MS, counted_ms=HALF_PAST_MS)
    for event in WholeWay(loaded=None).reports():  # counters and stamps are a day ahead
        site.read(replace(event, created_ms=END_MS + DAY_MS), END_MS + DAY_MS, END_MS)
    hour = site.hour()
    assert hour.status is Status.UNKNOWN
    named = {witness.name: witness.reason for witness in hour.missing_witnesses}
    assert named["clock of the brokers of east"].startswith("it is 24 h ahead of the clock of the audit")
    late = Site()  # the same, read by a collector that starts two hours later
    late.read_all({}, now_ms=NOW_MS, counted_ms=HALF_PAST_MS)
    for event in WholeWay(loaded=None).reports():
        believed = late.read(replace(event, created_ms=END_MS + DAY_MS), END_MS + DAY_MS, NOW_MS)
        assert believed.created_ms <= HALF_PAST_MS
    site.read_all({}, now_ms=NOW_MS, counted_ms=NOW_MS - 1)
    assert site.hour().status is Status.EXACT
    assert all(clock.witness is None for clock in site.clocks.values())


def test_hours_of_before_the_clocks_differed_are_not_touched() -> None:
    site = Site()
    site.read_all({}, now_ms=NOW_MS, counted_ms=NOW_MS - 1)
    later_ms = NOW_MS + 3 * DAY_MS
    sign = replace(
        report(Tier.BROKER, "hub", HUB, {}, created_ms=later_ms),
        topics=[],
        positions=report(Tier.PRODUCER, "hub", HUB, {}).positions,
    )
    site.read(sign, later_ms + DAY_MS, later_ms)
    assert site.clocks["hub"].witness is not None
    assert site.hour(later_ms).status is Status.EXACT


def test_late_records_of_an_old_hour_that_wait_for_brokers_whose_clock_is_wrong_name_the_clock() -> None:
    """The hour ended long before the clock was wrong, and was exact. So the clock alone is no reason against it."""
    site = Site()
    site.read_all({}, now_ms=NOW_MS, counted_ms=NOW_MS - 1)
    assert site.hour().status is Status.EXACT
    later_ms = NOW_MS + DAY_MS
    more = Amounts(records=12, content=5_555)
    late = WholeWay(produced=more, live=more, replica=more, loaded=None).reports()
    skews_ms = {"east": 600_000, "hub": 0}
    for number in range(10):  # all brokers live, and report on
        at_ms = later_ms + number * 10_000
        for event in late:
            stamp_ms = at_ms + skews_ms[event.counter.cluster]
            site.read(replace(event, created_ms=stamp_ms), stamp_ms, at_ms)
    hour = site.hour(at_ms)
    assert hour.status is Status.UNKNOWN
    assert {witness.name for witness in hour.missing_witnesses} == {"clock of the brokers of east"}
    (reason,) = {witness.reason for witness in hour.missing_witnesses}
    assert reason.startswith(
        "it is 10 min ahead of the clock of the audit; set the one that is wrong. Until then reports"
    )
    assert reason.endswith(f"of clicks-0 count for no time after {iso_time(NOW_MS - 1)}")
    assert all("clock of the brokers of east" in finding.text for finding in hour.findings)
    at_ms += 700_000
    for event in late:
        site.read(replace(event, created_ms=at_ms), at_ms, at_ms)
    at_ms += GRACE_MS  # the next reports
    for event in late:
        site.read(replace(event, created_ms=at_ms), at_ms, at_ms)
    assert site.hour(at_ms).status is Status.EXACT


MORE_PRODUCED = WholeWay(produced=Amounts(records=12, content=5_555), producer_options={"revision": 2}).reports()[0]


def test_records_under_way_are_not_missing_while_the_clock_of_brokers_is_behind() -> None:
    """What is stored since then looks older than the brokers' last words, which have not counted it."""
    site = Site()
    site.read_all({}, now_ms=NOW_MS, counted_ms=NOW_MS - 1)
    at_ms = NOW_MS + HOUR_MS
    for sign in signs(at_ms):
        site.read(sign, at_ms, at_ms)
    site.read(replace(MORE_PRODUCED, created_ms=at_ms), at_ms - DAY_MS, at_ms + 1_000, at_ms)
    hour = site.hour(at_ms)
    assert hour.status is Status.UNKNOWN
    assert {witness.name for witness in hour.missing_witnesses} == {"clock of the brokers of east"}
    (finding,) = hour.findings
    assert (finding.status, finding.records) == (Status.UNKNOWN, 2)


def test_records_that_were_missing_long_before_the_clock_of_brokers_went_wrong_stay_missing() -> None:
    site = Site()
    site.read_all({}, now_ms=NOW_MS, counted_ms=NOW_MS - 1)
    site.read(replace(MORE_PRODUCED, created_ms=NOW_MS), NOW_MS, NOW_MS)
    later_ms = NOW_MS + DAY_MS
    for sign in signs(later_ms):
        site.read(sign, later_ms, later_ms)
    assert site.hour(later_ms).status is Status.MISSING
    site.read(signs(later_ms)[0], later_ms - HOUR_MS, later_ms, later_ms - 1_000)
    assert site.clocks["east"].witness is not None
    assert site.hour(later_ms).status is Status.MISSING


def test_a_collector_whose_clock_is_behind_or_ahead_says_that_clocks_differ() -> None:
    event = report(Tier.BROKER, "east", EAST, {}, created_ms=NOW_MS)
    behind = Site()
    behind.read(event, NOW_MS, NOW_MS - DAY_MS)
    assert "24 h ahead of the clock of the audit" in str(behind.clocks["east"].witness)
    ahead = Site()
    ahead.read(event, NOW_MS, NOW_MS + DAY_MS)  # an old event, for all that it knows
    assert ahead.clocks["east"].witness is None
    ahead.read(event, NOW_MS, NOW_MS + DAY_MS, after_ms=NOW_MS + DAY_MS - 1_000)  # an event that is new
    witness = ahead.clocks["east"].witness
    assert witness is not None
    assert "24 h behind the clock of the audit" in str(witness)
    assert witness.since_ms == NOW_MS


def test_an_event_that_waited_for_replicas_says_nothing_of_clocks() -> None:
    site = Site()
    event = report(Tier.BROKER, "east", EAST, {}, created_ms=NOW_MS)
    site.read(event, NOW_MS, NOW_MS + LATE_MS, after_ms=NOW_MS + LATE_MS)
    assert site.clocks["east"].witness is None


def test_no_times_of_events_and_batches_are_believed_beyond_the_present() -> None:
    rng = Random(5)
    numbers = [0, 5, NOW_MS, NOW_MS + DAY_MS, 2**62, 2**63 - 1, -(2**63)]
    for _ in range(300):
        event: Any = report(
            Tier.BROKER, "east", EAST, {}, created_ms=rng.choice(numbers), closed_ms=rng.choice(numbers)
        )
        stamp = rng.choice([None, 0, NOW_MS, 2**62])
        found = Site().read(event, stamp, NOW_MS)
        assert found.life is not None
        assert max(found.created_ms, found.life.closed_ms, found.life.started_ms) <= NOW_MS


def test_a_batch_of_unknown_time_is_believed_up_to_the_batch_before() -> None:
    at = StoredAt(NOW_MS + DAY_MS, NOW_MS, HOUR)
    header, payload = stored(report(Tier.BROKER, "east", EAST, {}, created_ms=HOUR - 1), NOW_MS + DAY_MS)
    (found,) = decode_portion([(header, payload, at)], 0).events
    assert found.created_ms == HOUR - 1
