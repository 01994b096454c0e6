"""Verdicts on hours of topics that were deleted: those that were closed before hold, and all others are unknown."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.deleted_topics import kept
from pipeline.audit.judgement.hour_verdicts import TopicHour
from pipeline.audit.judgement.judge import Judge
from pipeline.audit.judgement.verdicts import AuditedHour, Expectations, Route, Status
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
    Amounts,
    WholeWay,
    report,
    signs,
)
from tests.support.memory_shelf import MemoryShelf

SETTLED_MS = NOW_MS - 2 * GRACE_MS
LATE_MS = NOW_MS + 10 * HOUR_MS
ENDED = {"is_ended": True}
LESS = Amounts(records=8, content=1_000)
ROUTES = [Route(cluster="east", source=EAST, replica=HUB, topic_id="new")]


class Audit:
    """A judge that judges again and again."""

    def __init__(self) -> None:
        self.ledger = Ledger(LedgerLimits(rows=0, newest=0), settle_ms=GRACE_MS, shelf=MemoryShelf())
        self.judge = Judge(self.ledger, grace_ms=GRACE_MS, pending_max_ms=PENDING_MAX_MS)

    def first_hour(self, reports: Sequence[CountReport], now_ms: int, **changes: Any) -> AuditedHour:
        for one in reports:
            self.ledger.apply(one)
        expected: Expectations = replace(EXPECTED, read_to_ms=dict.fromkeys(("east", "west", "hub"), now_ms), **changes)
        return self.judge.judge(expected, now_ms).hours()[0]


def old_topic(replica: Amounts = FULL) -> list[CountReport]:
    way = WholeWay(
        loaded=None,
        replica=replica,
        producer_options={**ENDED, "created_ms": SETTLED_MS},
        live_options={"topic_id": "old", "created_ms": SETTLED_MS},
        replica_options={"created_ms": SETTLED_MS, "end": 110},
    )
    return [*way.reports(), *signs()]


def new_topic(hour_ms: int = HOUR + 3 * HOUR_MS) -> list[CountReport]:
    way = WholeWay(
        loaded=None,
        hour_ms=hour_ms,
        producer_options={**ENDED, "instance": "p2", "created_ms": LATE_MS},
        live_options={"topic_id": "new", "created_ms": LATE_MS},
        replica_options={"created_ms": LATE_MS},
    )
    return [*way.reports(), *signs(LATE_MS)]


def test_an_hour_that_was_exact_before_its_topic_was_recreated_stays_exact_and_says_so() -> None:
    audit = Audit()
    assert audit.first_hour(old_topic(), NOW_MS).status is Status.EXACT
    for _ in range(2):
        hour = audit.first_hour(new_topic(), LATE_MS, routes=ROUTES)
        assert hour.status is Status.EXACT
        assert hour.rests_on.count("topic clicks that was deleted in east: later; the hour was closed before") == 1


def test_records_that_were_missing_before_the_topic_was_recreated_stay_missing() -> None:
    audit = Audit()
    assert audit.first_hour(old_topic(LESS), NOW_MS).status is Status.MISSING
    assert audit.first_hour(new_topic(), LATE_MS, routes=ROUTES).status is Status.MISSING


def test_an_hour_of_which_the_new_topic_has_records_is_unknown() -> None:
    audit = Audit()
    assert audit.first_hour(old_topic(), NOW_MS).status is Status.EXACT
    assert audit.first_hour(new_topic(HOUR), LATE_MS, routes=ROUTES).status is Status.UNKNOWN


def test_a_record_that_the_old_topic_got_after_the_verdict_makes_the_hour_unknown() -> None:
    audit = Audit()
    assert audit.first_hour(old_topic(), NOW_MS).status is Status.EXACT
    more = report(
        Tier.BROKER, "east", EAST, {HOUR: Amounts(records=12, content=9)}, topic_id="old", created_ms=LATE_MS - 1
    )
    assert audit.first_hour([more, *new_topic()], LATE_MS, routes=ROUTES).status is Status.UNKNOWN


def test_an_audit_that_starts_after_a_topic_was_recreated_does_not_know_its_hours() -> None:
    hour = Audit().first_hour([*old_topic(), *new_topic()], LATE_MS, routes=ROUTES)
    assert hour.status is Status.UNKNOWN
    assert [witness.name for witness in hour.missing_witnesses] == ["topic clicks that was deleted in east"]


def deleted(seen_ms: int | None) -> dict[str, Any]:
    return {
        "partitions": {("hub", "clicks"): 4},
        "described": frozenset({"east", "hub"}),
        "deleted": {} if seen_ms is None else {("east", "clicks"): seen_ms},
    }


def test_an_hour_that_ended_before_its_topic_was_deleted_keeps_its_verdict_and_says_so() -> None:
    audit = Audit()
    hour = audit.first_hour([*old_topic(), *signs(LATE_MS)], LATE_MS, **deleted(HOUR + 3 * HOUR_MS))
    assert hour.status is Status.EXACT
    assert "the hour was closed before" in hour.rests_on[-1]
    assert "deleted after 1970-02-11T19:00:00" in hour.rests_on[-1]


def test_an_hour_in_which_its_topic_was_deleted_is_unknown_though_its_brokers_live_on() -> None:
    early = [replace(one, created_ms=HOUR + HOUR_MS // 2) for one in old_topic()]
    hour = Audit().first_hour([*early, *signs(LATE_MS)], LATE_MS, **deleted(HOUR + HOUR_MS // 2 + 1))
    assert hour.status is Status.UNKNOWN
    assert [witness.name for witness in hour.missing_witnesses] == ["topic clicks in east"]
    assert "it was deleted after" in str(hour.missing_witnesses[0])


def test_an_audit_that_never_saw_the_topic_goes_by_the_last_report_of_its_brokers() -> None:
    for last_ms, status in ((HOUR + HOUR_MS // 2, Status.UNKNOWN), (SETTLED_MS, Status.EXACT)):
        reports = [replace(one, created_ms=last_ms) for one in old_topic()]
        assert Audit().first_hour([*reports, *signs(LATE_MS)], LATE_MS, **deleted(None)).status is status


def test_a_topic_that_is_newer_than_the_list_of_topics_is_not_deleted() -> None:
    changes = {**deleted(None), "partitions": {("hub", "clicks"): 4}}
    assert Audit().first_hour(old_topic(), NOW_MS, **changes).status is Status.EXACT


def test_a_difference_of_another_cluster_that_has_the_topic_is_not_hidden_by_the_verdict_before() -> None:
    replica = TopicPartition("west.clicks", 0)
    of_west = Route(cluster="west", source=EAST, replica=replica)
    changes = {
        "live_clusters": ["east", "west"],
        "partitions": {("east", "clicks"): 1, ("west", "clicks"): 1, ("hub", "clicks"): 4, ("hub", "west.clicks"): 1},
        "mirrored": [],
        "routes": [*ROUTES, of_west],
    }

    def west(created_ms: int, kept: Amounts, **options: Any) -> list[CountReport]:
        sign = report(Tier.BROKER, "west", EAST, {}, created_ms=created_ms, has_position=False)
        of_replica = report(Tier.BROKER, "hub", replica, {HOUR: kept}, created_ms=created_ms, **options)
        return [replace(sign, topics=[]), of_replica]

    audit, foreign = Audit(), {"marked_records": 0, "marked_sum": 0}
    whole = Amounts(columns=foreign)
    live = report(Tier.BROKER, "west", EAST, {HOUR: whole}, created_ms=SETTLED_MS)
    first = [*old_topic(), live, *west(NOW_MS, whole)]
    routes = [replace(ROUTES[0], topic_id="old"), of_west]
    assert audit.first_hour(first, NOW_MS, **{**changes, "routes": routes}).status is Status.EXACT
    assert audit.first_hour([*new_topic(), *west(LATE_MS, whole)], LATE_MS, **changes).status is Status.EXACT
    lost = west(LATE_MS + 1, Amounts(records=5, content=600, columns=foreign), claims=[(1, 105)], epoch=1, end=105)
    hour = audit.first_hour(lost, LATE_MS + 1, **changes)
    assert hour.status is Status.UNKNOWN
    assert [(finding.cluster, finding.status, finding.records) for finding in hour.findings] == [
        ("west", Status.PENDING, 5)
    ]


def test_a_verdict_that_is_unknown_for_no_witness_replaces_the_one_before() -> None:
    before, now = TopicHour(Status.EXACT, {}), TopicHour(Status.UNKNOWN, {})
    assert kept(before, now) is now
