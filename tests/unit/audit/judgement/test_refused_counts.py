"""Counts that do not fit the bounds of a ledger: verdicts without them are not whole, and what happens now has one."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from pipeline.audit.events.report import OLDER, CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import DIFFERING, Judge, Judgement
from pipeline.audit.judgement.verdicts import AuditedHour, MirroredTopic, Route, Status
from pipeline.audit.ledger.hour_room import AHEAD_MS
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
    PENDING_MAX_MS,
    Amounts,
    WholeWay,
    report,
    signs,
)
from tests.support.memory_shelf import MemoryShelf

HOURS = 30
OTHER = TopicPartition("other", 0)
LATER_MS = HOUR + (HOURS + 2) * HOUR_MS
READ = {"east": LATER_MS, "hub": LATER_MS}


class Audit:
    """A ledger with room for ten hours and some counters, and its judge."""

    def __init__(self, series: int = 10, pending_max_ms: int = HOUR_MS) -> None:
        limits = LedgerLimits(hours=10, series=series, rows=0, newest=0)
        self.ledger = Ledger(limits, settle_ms=GRACE_MS, shelf=MemoryShelf())
        self._pending_max_ms = pending_max_ms
        self._judge = Judge(self.ledger, grace_ms=GRACE_MS, pending_max_ms=pending_max_ms)

    def restarted(self) -> "Audit":
        """Return an audit whose ledger is a copy, and whose judge knows no verdict yet."""
        found = Audit(pending_max_ms=self._pending_max_ms)
        found.ledger = pickle.loads(pickle.dumps(self.ledger))
        found._judge = Judge(found.ledger, grace_ms=GRACE_MS, pending_max_ms=self._pending_max_ms)
        return found

    def judged(self, reports: Sequence[CountReport], **changes: object) -> Judgement:
        """Return the judgement after these reports, too."""
        for one in (*reports, *signs(LATER_MS)):
            self.ledger.apply(one)
        self.ledger.shelve()
        return self._judge.judge(replace(EXPECTED, **{"read_to_ms": READ, **changes}), LATER_MS)  # type: ignore[arg-type]


def way(number: int, lost: int = 0) -> list[CountReport]:
    """Reports of an hour at every stage; the replica lacks some records."""
    first = 100 + 10 * number
    whole, in_time = Amounts(first=first), {"created_ms": HOUR + (number + 1) * HOUR_MS + GRACE_MS // 2}
    return WholeWay(
        produced=whole,
        live=whole,
        replica=replace(whole, records=10 - lost),
        loaded=None,
        hour_ms=HOUR + number * HOUR_MS,
        live_options=in_time,
        producer_options={"revision": number + 1, **in_time},
        replica_options={"end": first + 10, **in_time},
    ).reports()


def by_hour(judgement: Judgement) -> dict[int, AuditedHour]:
    return {(each.hour_ms - HOUR) // HOUR_MS: each for each in judgement.hours("clicks")}


def complete_hours(judgement: Judgement) -> int | None:
    (complete_ms,) = (each.complete_ms for each in judgement.watermarks() if each.topic == "clicks")
    return None if complete_ms is None else (complete_ms - HOUR) // HOUR_MS


def test_hours_that_are_written_now_have_verdicts_however_many_there_were() -> None:
    audit = Audit()
    for number in range(HOURS):
        found = by_hour(audit.judged(way(number, lost=3 if number == HOURS - 1 else 0)))
        assert found[number].status is (Status.MISSING if number == HOURS - 1 else Status.EXACT)
    assert list(found) == list(range(HOURS - 10, HOURS))
    assert audit.ledger.refused == 0
    assert complete_hours(audit.judged([])) == HOURS - 1


def test_hours_that_are_older_than_all_there_is_room_for_are_refused() -> None:
    audit = Audit()
    for number in range(HOURS - 10, HOURS):
        audit.judged(way(number))
    found = audit.judged(way(3))
    assert list(by_hour(found)) == list(range(HOURS - 10, HOURS))
    assert {hour.status for hour in by_hour(found).values()} == {Status.EXACT}
    assert audit.ledger.refused == 3


@pytest.mark.parametrize("pending_max_ms", [0, PENDING_MAX_MS])
def test_a_topic_is_not_complete_beyond_an_hour_that_was_forgotten_with_a_difference(pending_max_ms: int) -> None:
    audit = Audit(pending_max_ms=pending_max_ms)
    for number in range(HOURS):
        found = audit.judged(way(number, lost=3 if number == 5 else 0))
    assert {hour.status for hour in by_hour(found).values()} == {Status.EXACT}
    assert complete_hours(found) == 5
    (mark,) = found.watermarks()
    assert "no room any more" in mark.waits_for


def test_older_hours_that_producers_keep_apart_raise_no_alarm_once_the_audit_has_forgotten_them() -> None:
    """Brokers fold their oldest hours to one row, lives of producers never do."""
    audit = Audit()
    for number in range(HOURS):
        audit.judged(way(number))
    border_ms = HOUR + 20 * HOUR_MS
    folded = Amounts(records=200, content=20 * FULL.content, columns={"until_ms": border_ms})
    brokers = (("east", EAST), ("hub", HUB))
    rows = {OLDER: folded}
    found = audit.judged([report(Tier.BROKER, *each, rows, created_ms=LATER_MS, end=400) for each in brokers])
    assert {hour.status for number, hour in by_hour(found).items() if number >= 20} == {Status.EXACT}
    (older,) = found.hours("clicks", OLDER, OLDER + 1)
    assert older.status is Status.UNKNOWN
    (witness,) = older.missing_witnesses
    assert "no room any more" in witness.reason


def test_older_hours_that_came_after_newer_ones_and_were_refused_raise_no_alarm() -> None:
    audit = Audit()
    for number in reversed(range(HOURS)):
        audit.judged(way(number))
    found = audit.judged([folded("east", EAST, 15), folded("hub", HUB, 25)])
    (verdict,) = found.hours("clicks", OLDER, OLDER + 1)
    assert verdict.status is Status.UNKNOWN
    assert "no room any more" in verdict.missing_witnesses[0].reason


def folded(cluster: str, partition: TopicPartition, border: int, lost: int = 0) -> CountReport:
    """Report of a broker that keeps hours before the border no longer apart."""
    columns = {"until_ms": HOUR + border * HOUR_MS}
    older = Amounts(records=10 * border - lost, content=border * FULL.content, columns=columns)
    return report(Tier.BROKER, cluster, partition, {OLDER: older}, created_ms=LATER_MS, end=400)


@pytest.mark.parametrize("tier", [Tier.BROKER, Tier.LOAD])
def test_a_row_of_an_old_hour_that_is_refused_hides_no_difference_of_other_counters(tier: Tier) -> None:
    audit = Audit()
    for number in range(HOURS - 10, HOURS):
        audit.judged(way(number))
    reports = [folded("east", EAST, 25), folded("hub", HUB, 10)]  # of the hours between the hub has nothing
    (verdict,) = audit.judged(reports).hours("clicks", OLDER, OLDER + 1)
    assert verdict.status is Status.MISSING
    topic = OTHER if tier is Tier.BROKER else HUB
    stray = report(tier, "hub", topic, {HOUR + 12 * HOUR_MS: Amounts(records=1)}, created_ms=LATER_MS)
    (verdict,) = audit.judged([stray]).hours("clicks", OLDER, OLDER + 1)
    assert audit.ledger.refused == 1
    assert verdict.status is Status.MISSING


def test_hours_that_lie_ahead_do_not_drive_out_those_that_are_over() -> None:
    audit = Audit()
    ahead = HOUR + LATER_MS - LATER_MS % HOUR_MS + AHEAD_MS
    for number in range(3):
        audit.judged(way(number))
    rows = {ahead + number * HOUR_MS: FULL for number in range(HOURS)}
    found = audit.judged([report(Tier.BROKER, "east", EAST, rows, created_ms=LATER_MS)])
    assert [by_hour(found)[number].status for number in range(3)] == [Status.EXACT] * 3
    assert len(found.hours()) == 5
    assert audit.ledger.refused == HOURS - 2
    assert audit.ledger.refused_ms == {audit.ledger.topics.known("clicks"): ahead + 2 * HOUR_MS}


def test_an_hour_is_not_exact_without_a_counter_that_there_was_no_room_for() -> None:
    audit = Audit(series=3)
    assert by_hour(audit.judged([*way(0), *way(1)]))[1].status is Status.EXACT
    load = report(Tier.LOAD, "hub", HUB, {HOUR + HOUR_MS: Amounts(first=110, records=2)}, name="/lake")
    found = audit.judged([load])
    assert [hour.status for hour in by_hour(found).values()] == [Status.EXACT, Status.UNKNOWN]
    (witness,) = by_hour(found)[1].missing_witnesses
    assert witness.name == "counts of clicks"
    assert complete_hours(found) == 1
    found = audit.judged([report(Tier.GROUP, "east", EAST, {HOUR: FULL}, name="billing", instance="m1")])
    assert [hour.status for hour in by_hour(found).values()] == [Status.UNKNOWN, Status.UNKNOWN]
    assert complete_hours(found) is None


def test_an_hour_is_not_exact_without_a_counter_of_its_replica_of_another_name() -> None:
    replica = TopicPartition("all.clicks", 3)
    expected = {
        "partitions": {("east", "clicks"): 1, ("hub", replica.topic): 4},
        "mirrored": [MirroredTopic(cluster="east", topic="clicks", replica_topic=replica.topic)],
        "routes": [Route(cluster="east", source=EAST, replica=replica)],
    }
    audit = Audit(series=3)
    live = [each for each in way(0) if each.counter.cluster == "east"]
    at_hub = report(Tier.BROKER, "hub", replica, {HOUR: Amounts()}, created_ms=LATER_MS)
    assert by_hour(audit.judged([*live, at_hub], **expected))[0].status is Status.EXACT
    load = report(Tier.LOAD, "hub", replica, {HOUR: Amounts(records=2)}, name="/lake")
    assert by_hour(audit.judged([load], **expected))[0].status is Status.UNKNOWN


def test_a_counter_that_was_refused_before_its_topic_was_named_is_missed_all_the_same() -> None:
    audit = Audit(series=3)
    full = [report(Tier.BROKER, cluster, OTHER, {HOUR: FULL}) for cluster in ("east", "hub")]
    load = report(Tier.LOAD, "hub", HUB, {HOUR + HOUR_MS: Amounts(records=2)}, name="/lake")
    audit.judged([*full, report(Tier.PRODUCER, "east", OTHER, {HOUR: FULL}, instance="p1", revision=1), load])
    found = audit.judged([*way(0), *way(1)])
    assert [hour.status for hour in by_hour(found).values()] == [Status.EXACT, Status.UNKNOWN]
    assert complete_hours(found) == 1


def test_a_silent_producer_that_was_forgotten_may_have_written_to_topics_that_are_named_later() -> None:
    audit = Audit()
    audit.ledger.limits = replace(audit.ledger.limits, lives=3)
    for number in range(5):
        sign = report(Tier.PRODUCER, "east", EAST, {}, instance=f"q{number}", created_ms=HOUR, closed_ms=HOUR)
        audit.ledger.apply(replace(sign, topics=[]))
    found = audit.judged(way(0))
    assert by_hour(found)[0].status is Status.UNKNOWN
    assert complete_hours(found) is None


def test_a_difference_is_not_forgotten_with_its_hour_if_all_is_judged_again_at_once() -> None:
    audit = Audit()
    for number in range(15):
        audit.judged(way(number, lost=3 if number == 5 else 0))
    assert complete_hours(audit.judged([])) == 5
    read = {**READ, "west": LATER_MS}
    audit.judged(way(15), live_clusters=["east", "west"], read_to_ms=read)
    assert list(audit.ledger.differing_ms.values()) == [HOUR + 5 * HOUR_MS]


def test_a_counter_that_was_refused_names_no_topics_of_the_cluster_itself() -> None:
    audit = Audit(series=3)
    audit.judged(way(0))
    audit.judged([report(Tier.LOAD, "hub", TopicPartition("_audit", 0), {HOUR: FULL}, name="/lake")])
    assert audit.ledger.refused_ms == {}
    assert audit.ledger.refused == 1


@pytest.mark.parametrize("seed", range(60))
def test_in_any_order_no_hour_is_alarming_or_exact_without_reason(seed: int) -> None:
    """Hours come in any order, are folded by brokers, and judged and saved in between; one of them may lack records."""
    random = Random(seed)
    lacking = random.choice([None, random.randrange(HOURS)])
    reports = [each for number in range(HOURS) for each in way(number, lost=3 if number == lacking else 0)]
    for cluster, partition in (("east", EAST), ("hub", HUB)):
        for border in random.sample(range(1, HOURS), random.choice([0, 1, 2])):
            lost = 3 if cluster == "hub" and lacking is not None and lacking < border else 0
            reports.append(folded(cluster, partition, border, lost))
    random.shuffle(reports)
    audit = Audit(pending_max_ms=random.choice([HOUR_MS, PENDING_MAX_MS]))
    cuts = [*sorted(random.sample(range(len(reports)), random.choice([0, 1, 2]))), len(reports)]
    for start, end in pairwise([0, *cuts]):
        found = audit.judged(reports[start:end])
        if random.random() < 0.3:
            audit = audit.restarted()
    alarms = {each.hour_ms for each in found.hours("clicks", OLDER) if each.status in DIFFERING}
    assert alarms <= (set() if lacking is None else {OLDER, HOUR + lacking * HOUR_MS})
    if lacking is not None and lacking in by_hour(found):
        assert by_hour(found)[lacking].status is not Status.EXACT
        assert (complete_hours(found) or 0) <= lacking
