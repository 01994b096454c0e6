"""Cells of the detection matrix: a tier, a fault, and the check that the fault is found there and named."""

from collections.abc import Callable
from typing import NamedTuple

from pipeline.audit.judgement.verdicts import DiscrepancyKind, Status
from tests.support.audited.forgeries import FORGERIES
from tests.support.audited.way import HOURS, Way

TIERS = ("produced", "live", "mirrored", "replica", "loaded", "stored", "consumed")
FAULTS = (
    *FORGERIES,
    "late by an hour",
    "clock wrong by a day",
    "producer killed",
    "broker killed",
    "mirror killed",
    "leader moved",
    "rebalance",
    "topic recreated",
    "retention overtook the mirror",
    "segment file edited",
)
FIRST, SECOND = HOURS


SEEN_AT = {
    "live": "live",
    "mirrored": "replica",
    "replica": "replica",
    "loaded": "loaded",
    "consumed": "consumed:billing",
}


class Found(NamedTuple):
    """What is found in one hour."""

    at: str
    status: Status
    kind: DiscrepancyKind | None
    records: int
    partition: int


def findings(way: Way, hour_ms: int) -> set[Found]:
    return {
        Found(str(one.at), one.status, one.kind, one.records, one.source.partition)
        for one in way.hours()[hour_ms].findings
    }


def statuses(way: Way) -> dict[int, Status]:
    return {hour_ms: hour.status for hour_ms, hour in way.hours().items()}


def assert_exact(way: Way, *hours: int) -> None:
    """Every hour is exact, and its verdict says what it rests on."""
    found = way.hours()
    for hour_ms in hours or HOURS:
        assert found[hour_ms].status is Status.EXACT, [one.text for one in found[hour_ms].findings] + [
            str(one) for one in found[hour_ms].missing_witnesses
        ]
        assert not found[hour_ms].findings
        assert found[hour_ms].rests_on


def assert_not_exact(way: Way, hour_ms: int) -> None:
    hour = way.hours().get(hour_ms)
    assert hour is None or hour.status is not Status.EXACT


Check = Callable[[Way, str], None]
CELLS: dict[tuple[str, str], Check] = {}


def cell(fault: str, *tiers: str) -> Callable[[Check], Check]:
    """Enter a check of a fault for these tiers."""

    def enter(check: Check) -> Check:
        for tier in tiers:
            assert (tier, fault) not in CELLS
            CELLS[tier, fault] = check
        return check

    return enter
