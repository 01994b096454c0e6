"""Verdicts on one hour: what each kind of difference is called, and where it arises."""

from typing import Any

import pytest

from pipeline.audit.judgement.verdicts import DiscrepancyKind, Status
from tests.support.audited_way import GRACE_MS, NOW_MS, Amounts, WholeWay, only_hour, signs

SETTLED_MS = NOW_MS - 2 * GRACE_MS
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
