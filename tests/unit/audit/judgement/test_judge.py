"""Verdicts on one hour: what each kind of difference is called, and where it arises."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.audit.events.tiers import Tier
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Route, Status
from pipeline.records.tally import HOUR_MS
from tests.support.audited_way import EAST, GRACE_MS, HOUR, HUB, NOW_MS, Amounts, WholeWay, judged, only_hour, signs

SETTLED_MS = NOW_MS - 2 * GRACE_MS
LATE_MS = NOW_MS + 4 * HOUR_MS
LESS = Amounts(records=8, content=1_000)
MORE = Amounts(records=12, content=2_000)
OTHER = Amounts(content=999)


def settled(**stages: Any) -> WholeWay:
    """Return a way whose reports are older than the grace; brokers give life signs later."""
    options: dict[str, Any] = {"created_ms": SETTLED_MS, "end": 200}
    return WholeWay(
        **stages,
        producer_options={"created_ms": SETTLED_MS},
        live_options=options,
        replica_options=options,
        load_options=options,
    )


def test_equal_counts_on_the_whole_way_are_exact() -> None:
    hour = only_hour(WholeWay().reports())
    assert (hour.status, hour.findings, hour.missing_witnesses) == (Status.EXACT, (), ())
    assert list(map(str, hour.stages)) == ["produced", "live", "replica", "loaded"]
    assert {counts.records for counts in hour.stages.values()} == {10}
    assert hour.rests_on


@pytest.mark.parametrize(
    ("way", "status", "kind", "at", "records"),
    [
        (settled(live=LESS, replica=LESS, loaded=LESS), Status.MISSING, DiscrepancyKind.MISSING, "live", 2),
        (settled(replica=LESS, loaded=LESS), Status.MISSING, DiscrepancyKind.MISSING, "replica", 2),
        (settled(loaded=LESS), Status.MISSING, DiscrepancyKind.MISSING, "loaded", 2),
        (settled(loaded=MORE), Status.EXTRA, DiscrepancyKind.UNEXPLAINED, "loaded", 2),
        (settled(replica=MORE, loaded=MORE), Status.EXTRA, DiscrepancyKind.UNEXPLAINED, "replica", 2),
        (settled(live=MORE, replica=MORE, loaded=MORE), Status.EXTRA, DiscrepancyKind.UNEXPLAINED, "live", 2),
        (settled(live=OTHER, replica=OTHER, loaded=OTHER), Status.CHANGED, DiscrepancyKind.CHANGED, "live", 0),
        (settled(replica=OTHER, loaded=OTHER), Status.CHANGED, DiscrepancyKind.CHANGED, "replica", 0),
        (settled(loaded=OTHER), Status.CHANGED, DiscrepancyKind.CHANGED, "loaded", 0),
    ],
)
def test_a_difference_is_named_where_it_arises(
    way: WholeWay, status: Status, kind: DiscrepancyKind, at: str, records: int
) -> None:
    hour = only_hour([*way.reports(), *signs()])
    (finding,) = hour.findings
    assert (hour.status, finding.status, finding.kind) == (status, status, kind)
    assert (str(finding.at), finding.records) == (at, records)
    assert "east clicks-0" in finding.text


def test_the_same_batches_at_other_offsets_are_reordered() -> None:
    moved = Amounts(columns={"place_sum": 7})
    hour = only_hour([*settled(replica=moved, loaded=moved).reports(), *signs()])
    assert [(found.status, found.kind) for found in hour.findings] == [(Status.CHANGED, DiscrepancyKind.REORDERED)]
    assert "at other offsets" in hour.findings[0].text


def test_records_that_a_replica_has_not_reached_are_pending() -> None:
    way = WholeWay(replica=LESS, replica_options={"end": 108}, load_options={"end": 108}, loaded=LESS)
    hour = only_hour(way.reports())
    assert [(str(found.at), found.status) for found in hour.findings] == [("replica", Status.PENDING)]
    assert hour.status is Status.PENDING


def test_an_hour_that_is_being_written_is_pending() -> None:
    hour = only_hour(WholeWay().reports(), now_ms=NOW_MS - 90 * 60_000)
    assert hour.status is Status.PENDING
    assert [witness.reason for witness in hour.missing_witnesses] == ["the hour is not over"]


def test_records_of_a_topic_that_was_deleted_are_unknown_and_those_of_its_successor_exact() -> None:
    old = WholeWay(
        loaded=None, producer_options={"is_ended": True}, live_options={"topic_id": "old", "created_ms": SETTLED_MS - 1}
    )
    new = WholeWay(
        hour_ms=HOUR + 3 * HOUR_MS,
        producer_options={"instance": "p2", "is_ended": True},
        live_options={"topic_id": "new", "created_ms": LATE_MS},
    )
    late = [replace(one, created_ms=LATE_MS) for one in new.reports() if one.counter.tier is not Tier.LOAD]
    routes = [Route(cluster="east", source=EAST, replica=HUB, topic_id="new")]
    judgement = judged(
        [*old.reports(), *late, *signs(LATE_MS)],
        now_ms=LATE_MS,
        routes=routes,
        read_to_ms={"east": LATE_MS, "hub": LATE_MS},
    )
    first, second = judgement.hours()
    assert first.status is Status.UNKNOWN
    assert [counts.records for counts in first.stages.values()][:2] == [10, 10]
    assert "topic clicks that was deleted in east" in [witness.name for witness in first.missing_witnesses]
    assert second.status is Status.EXACT
