"""Stages that appear later: a judge that goes on sees them in all hours of their topics, as a new one does."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pipeline.audit.events.report import OLDER, CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.judge import Judge, Judgement
from pipeline.audit.judgement.verdicts import Expectations, MirroredTopic, Route, Status
from pipeline.audit.ledger.ledger import Ledger
from pipeline.model import TopicPartition
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EAST, EXPECTED, FULL, GRACE_MS, HOUR, HUB, Amounts, WholeWay, report, signs

HOURS = 4
LATER_MS = HOUR + 10 * HOUR_MS
READ = {"east": LATER_MS, "hub": LATER_MS}
LAST = HOUR + (HOURS - 1) * HOUR_MS


class Audit:
    """A ledger, a judge that goes on, and new ones."""

    def __init__(self, expected: Expectations) -> None:
        self.expected = replace(expected, read_to_ms=READ)
        self.ledger = Ledger(settle_ms=GRACE_MS)
        self._judge = self._new_judge()

    def _new_judge(self) -> Judge:
        return Judge(self.ledger, grace_ms=GRACE_MS, pending_max_ms=HOUR_MS)

    def judged(self, reports: Sequence[CountReport]) -> list[Status]:
        """Return the verdicts after these reports, too, by hour: equal to those of a new judge."""
        for one in (*reports, *signs(LATER_MS)):
            self.ledger.apply(one)
        found = self._judge.judge(self.expected, LATER_MS)
        assert told(found) == told(self._new_judge().judge(self.expected, LATER_MS))
        return [status for _, status in told(found)]


def told(judgement: Judgement) -> list[tuple[int, Status]]:
    return [((each.hour_ms - HOUR) // HOUR_MS, each.status) for each in judgement.hours("clicks")]


def way(number: int) -> list[CountReport]:
    """Reports of an hour from the producer to the replica."""
    whole, in_time = Amounts(first=100 + 10 * number), {"created_ms": HOUR + (number + 1) * HOUR_MS + GRACE_MS // 2}
    return WholeWay(
        produced=whole,
        live=whole,
        replica=whole,
        loaded=None,
        hour_ms=HOUR + number * HOUR_MS,
        live_options=in_time,
        producer_options={"revision": number + 1, **in_time},
        replica_options={"end": 110 + 10 * number, **in_time},
    ).reports()


@pytest.mark.parametrize(
    ("tier", "cluster", "partition", "options"),
    [
        (Tier.LOAD, "hub", HUB, {"name": "/lake"}),
        (Tier.GROUP, "east", EAST, {"name": "billing", "instance": "m1"}),
        (Tier.MIRROR, "east", EAST, {}),
        (Tier.PRODUCER, "east", EAST, {"instance": "p2", "revision": 1}),
    ],
)
def test_a_stage_that_appears_has_all_hours_of_its_topics_judged_again(
    tier: Tier, cluster: str, partition: TopicPartition, options: dict[str, object]
) -> None:
    audit = Audit(EXPECTED)
    assert audit.judged([each for number in range(HOURS) for each in way(number)]) == [Status.EXACT] * HOURS
    rows = {LAST: Amounts(first=100 + 10 * (HOURS - 1))}
    found = audit.judged([report(tier, cluster, partition, rows, created_ms=LATER_MS, **options)])  # type: ignore[arg-type]
    if tier in (Tier.LOAD, Tier.GROUP):
        assert found == [Status.PENDING] * (HOURS - 1) + [Status.EXACT]


def test_an_hour_whose_files_are_gone_is_not_exact_any_more_once_files_were_read_back_beyond_it() -> None:
    audit = Audit(EXPECTED)
    rows = {HOUR + number * HOUR_MS: Amounts(first=100 + 10 * number) for number in range(HOURS)}
    ends = {HOUR + number * HOUR_MS: 110 + 10 * number for number in range(HOURS)}

    def held(tier: Tier, *hours: int) -> CountReport:
        mine = {HOUR + number * HOUR_MS: rows[HOUR + number * HOUR_MS] for number in hours}
        return report(tier, "hub", HUB, mine, name="/lake", end=ends[max(mine)], created_ms=LATER_MS)

    reports = [each for number in range(HOURS) for each in way(number)]
    assert audit.judged([*reports, held(Tier.LOAD, 0, 1, 2, 3), held(Tier.STORED, 0, 1)]) == [Status.EXACT] * HOURS
    assert audit.judged([held(Tier.STORED, 0, 1, 3)])[2] is Status.PENDING


def test_a_producer_that_appears_where_none_was_has_all_hours_judged_again() -> None:
    audit = Audit(EXPECTED)
    foreign = [each for number in range(HOURS) for each in way(number) if each.counter.tier is not Tier.PRODUCER]
    audit.judged(foreign)
    audit.judged([report(Tier.PRODUCER, "east", EAST, {LAST: FULL}, instance="p1", revision=1, created_ms=LATER_MS)])


def test_an_id_of_a_topic_that_makes_a_route_valid_has_all_its_hours_judged_again() -> None:
    replica = TopicPartition("east.clicks", 0)
    route = Route(cluster="east", source=EAST, replica=replica, topic_id="new")
    partitions = {("east", "clicks"): 1, ("hub", replica.topic): 1}
    audit = Audit(replace(EXPECTED, partitions=partitions, mirrored=[], routes=[route]))
    copied = {HOUR + number * HOUR_MS: FULL for number in range(3)}
    audit.judged(
        [
            report(Tier.BROKER, "east", EAST, {HOUR + 2 * HOUR_MS: FULL}, topic_id="old", created_ms=LATER_MS - 9),
            report(Tier.BROKER, "hub", replica, copied, created_ms=LATER_MS - 8),
            report(Tier.BROKER, "east", TopicPartition("other", 0), {HOUR: FULL}, created_ms=LATER_MS - 8),
        ]
    )
    newest = report(Tier.BROKER, "east", EAST, {HOUR + HOUR_MS: FULL}, topic_id="new", created_ms=LATER_MS - 5)
    assert len(audit.judged([newest])) == 3


def test_an_older_id_of_a_topic_that_is_reported_again_has_all_its_hours_judged_again() -> None:
    audit = Audit(EXPECTED)
    reports = [each for number in range(HOURS) for each in way(number) if each.counter.cluster != "hub"]
    hub = [report(Tier.BROKER, "hub", HUB, {}, topic_id="old", created_ms=HOUR)]
    for number in range(HOURS):
        row = {HOUR + number * HOUR_MS: Amounts(first=100 + 10 * number)}
        end, in_time = 110 + 10 * number, HOUR + (number + 1) * HOUR_MS
        hub.append(report(Tier.BROKER, "hub", HUB, row, topic_id="new", end=end, created_ms=in_time))
    assert audit.judged([*reports, *hub]) == [Status.EXACT] * HOURS
    assert Status.EXACT not in audit.judged([report(Tier.BROKER, "hub", HUB, {}, topic_id="old", created_ms=LATER_MS)])


@pytest.mark.parametrize(("cluster", "partition"), [("east", EAST), ("hub", HUB)])
def test_a_counter_that_is_found_to_have_begun_later_has_all_hours_judged_again(
    cluster: str, partition: TopicPartition
) -> None:
    audit = Audit(EXPECTED)
    assert audit.judged(way(0)) == [Status.EXACT]
    begun = report(Tier.BROKER, cluster, partition, {}, end=200, counted_from=105, created_ms=LATER_MS)
    assert audit.judged([begun]) == [Status.UNKNOWN]


def test_a_member_of_a_group_that_began_in_what_was_counted_has_all_hours_judged_again() -> None:
    """Records were counted one by one, and cross the edge of an hour."""
    audit = Audit(EXPECTED)
    unmarked = {"marked_records": 0, "marked_sum": 0}
    one_by_one = {**unmarked, "by_record": True, "has_sums": False}
    in_time = HOUR + 2 * HOUR_MS + GRACE_MS
    kept = {HOUR: Amounts(columns=unmarked), HOUR + HOUR_MS: Amounts(first=110, columns=unmarked)}
    read = {
        HOUR: Amounts(records=8, content=0, columns=one_by_one),
        HOUR + HOUR_MS: Amounts(first=108, records=12, content=0, columns=one_by_one),
    }
    found = audit.judged(
        [
            report(Tier.BROKER, "east", EAST, kept, end=120, created_ms=in_time),
            report(Tier.BROKER, "hub", HUB, kept, end=120, created_ms=in_time),
            report(
                Tier.GROUP, "east", EAST, read, name="g", instance="m1", end=120, counted_from=100, created_ms=in_time
            ),
        ]
    )
    assert found == [Status.EXACT] * 2
    overlap = report(
        Tier.GROUP, "east", EAST, {}, name="g", instance="m2", end=115, counted_from=105, created_ms=in_time
    )
    assert audit.judged([overlap]) == [Status.UNKNOWN] * 2


UNMARKED = {"marked_records": 0, "marked_sum": 0}
ONE_BY_ONE = {**UNMARKED, "by_record": True, "has_sums": False}
KEPT = {HOUR: Amounts(columns=UNMARKED), HOUR + HOUR_MS: Amounts(first=110, columns=UNMARKED)}


def one_by_one(*records: int, first_hour: int = 0) -> dict[int, Amounts]:
    """Rows of hours whose records were counted one by one."""
    return {
        HOUR + number * HOUR_MS: Amounts(records=count, content=0, columns=ONE_BY_ONE)
        for number, count in enumerate(records, start=first_hour)
    }


@pytest.mark.parametrize("changed", ["producer", "group", "broker"])
def test_an_hour_that_is_equal_with_its_neighbour_is_judged_again_with_it(changed: str) -> None:
    audit = Audit(EXPECTED)
    in_time, later = HOUR + 2 * HOUR_MS + GRACE_MS, HOUR + 5 * HOUR_MS
    reports = [
        report(Tier.BROKER, cluster, partition, KEPT, end=120, created_ms=in_time)
        for cluster, partition in (("east", EAST), ("hub", HUB))
    ]
    tier = Tier.GROUP if changed == "group" else Tier.PRODUCER
    name, end = ("g", 120) if changed == "group" else ("", None)
    counter = {"name": name, "instance": "m1", "end": end, "counted_from": 100 if name else 0}
    reports.append(report(tier, "east", EAST, one_by_one(8, 12), revision=2, created_ms=in_time, **counter))  # type: ignore[arg-type]
    assert audit.judged(reports) == [Status.EXACT] * 2
    if changed == "broker":
        grown = {HOUR + HOUR_MS: Amounts(first=110, records=13, columns=UNMARKED)}
        found = audit.judged([report(Tier.BROKER, "east", EAST, grown, end=123, created_ms=later)])
    else:
        grown = one_by_one(11, first_hour=1)
        found = audit.judged([report(tier, "east", EAST, grown, revision=900, created_ms=later, **counter)])  # type: ignore[arg-type]
    assert Status.EXACT not in found


def test_an_hour_that_is_equal_with_several_neighbours_is_judged_again_with_the_last_of_them() -> None:
    """What is between them is not settled."""
    audit = Audit(replace(EXPECTED, replica_cluster=None, mirrored=[], routes=[]))
    kept = {HOUR: Amounts(columns=UNMARKED), HOUR + HOUR_MS: Amounts(first=110)}
    read = {"name": "g", "instance": "m1", "revision": 2, "end": 140}
    reports = [
        report(Tier.BROKER, "east", EAST, kept, created_ms=HOUR + 2 * HOUR_MS),
        report(Tier.GROUP, "east", EAST, one_by_one(10, 10, first_hour=2), created_ms=HOUR, **read),  # type: ignore[arg-type]
    ]
    assert audit.judged(reports)[:2] == [Status.EXACT, Status.UNKNOWN]
    grown = {LAST: Amounts(records=8, first=130)}
    found = audit.judged([report(Tier.BROKER, "east", EAST, grown, created_ms=HOUR + 4 * HOUR_MS)])
    assert found[0] is not Status.EXACT


def test_an_hour_that_is_equal_with_all_older_ones_is_judged_again_with_each_of_them() -> None:
    audit = Audit(EXPECTED)
    produced = {HOUR + number * HOUR_MS: Amounts(first=100 + 10 * number, content=1_000) for number in range(3)}
    columns = {"until_ms": HOUR + 2 * HOUR_MS}
    for cluster, partition in (("east", EAST), ("hub", HUB)):
        rows = {
            OLDER: Amounts(records=20, content=2_000, columns=columns),
            HOUR + 2 * HOUR_MS: Amounts(first=120, content=1_000),
        }
        audit.judged([report(Tier.BROKER, cluster, partition, rows, end=200, created_ms=HOUR + 3 * HOUR_MS)])
    found = audit.judged(
        [report(Tier.PRODUCER, "east", EAST, produced, instance="p1", revision=1, created_ms=HOUR + 3 * HOUR_MS)]
    )
    assert found[1:] == [Status.EXACT] * 3
    more = {HOUR + HOUR_MS: Amounts(first=110, records=16, content=7_777)}
    found = audit.judged(
        [report(Tier.PRODUCER, "east", EAST, more, instance="p1", revision=2, created_ms=HOUR + 4 * HOUR_MS)]
    )
    assert found[1] is Status.UNKNOWN


def test_loads_without_names_that_are_several_ones_now_have_all_hours_judged_again() -> None:
    audit = Audit(EXPECTED)
    first, others = {HOUR: FULL}, {LAST: Amounts(first=130)}
    loads = [report(Tier.LOAD, "hub", HUB, first, name="", end=110, created_ms=HOUR + 2 * HOUR_MS)]
    loads.append(report(Tier.LOAD, "hub", HUB, others, name="/lake", end=140, created_ms=LATER_MS - HOUR_MS))
    audit.judged([each for number in range(HOURS) for each in way(number)] + loads)
    other = TopicPartition("other", 0)
    audit.judged([report(Tier.LOAD, "hub", other, {HOUR: FULL}, name="/raw", created_ms=LATER_MS)])


def test_hours_with_remarks_are_judged_again_if_no_mirror_is_known_any_more() -> None:
    views = MirroredTopic(cluster="east", topic="views", replica_topic="views")
    foreign = {"marked_records": 0, "marked_sum": 0}
    audit = Audit(replace(EXPECTED, mirrored=[views], routes=[]))
    audit.judged(
        [
            report(
                Tier.BROKER, "east", EAST, {HOUR: Amounts(columns=foreign)}, end=110, created_ms=LATER_MS - 2 * HOUR_MS
            )
        ]
    )
    more = {HOUR: Amounts(records=12, content=2_000, columns=foreign)}
    late = report(Tier.BROKER, "east", EAST, more, end=112, created_ms=LATER_MS - HOUR_MS)
    assert audit.judged([late]) == [Status.EXACT]
    audit.expected = replace(audit.expected, mirrored=[])
    assert audit.judged([]) == [Status.UNKNOWN]
