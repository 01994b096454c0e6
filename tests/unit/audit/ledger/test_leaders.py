"""Leaders of partitions, as reports tell of them: the one of the highest epoch leads, whatever clocks say."""

from collections.abc import Sequence
from itertools import permutations

import pytest

from pipeline.audit.events.report import CountReport
from pipeline.audit.events.tiers import Tier
from pipeline.audit.ledger.ledger import Ledger, SeriesKey
from pipeline.audit.ledger.position_table import NO_PROCESS
from tests.support.audited_way import EAST, HOUR, report


def says(process: str, created_ms: int, *, epoch: int, leads: bool = True) -> CountReport:
    return report(
        Tier.BROKER,
        "east",
        EAST,
        {},
        process=process,
        created_ms=HOUR + created_ms,
        epoch=epoch,
        is_leader=leads,
        end=9,
    )


def leader(reports: Sequence[CountReport]) -> str | None:
    ledger = Ledger()
    for one in reports:
        ledger.apply(one)
    (progress,) = ledger.series[SeriesKey(Tier.BROKER, "east")].positions.progress
    return None if progress["leader"] == NO_PROCESS else ledger.processes.names[progress["leader"]]


OLD, LEFT, NEW = says("3", 5, epoch=1), says("3", 11, epoch=1, leads=False), says("1", 10, epoch=2)


@pytest.mark.parametrize("reports", [[OLD, LEFT, NEW], [OLD, NEW, LEFT], [NEW, OLD, LEFT]])
def test_a_leader_that_learns_late_of_the_next_one_does_not_hide_it(reports: Sequence[CountReport]) -> None:
    assert leader(reports) == "1"


@pytest.mark.parametrize("number", range(6))
def test_a_leader_whose_clock_is_behind_leads_in_the_higher_epoch(number: int) -> None:
    reports = [says("3", 600_000, epoch=1), says("3", 605_000, epoch=1), says("1", 10, epoch=2)]
    assert leader(list(permutations(reports))[number]) == "1"


def test_a_process_that_has_not_learnt_that_another_one_leads_does_not_speak_for_the_partition() -> None:
    assert leader([OLD, NEW, says("3", 20, epoch=1)]) == "1"


def test_a_leader_that_leads_no_more_is_none_until_another_one_speaks() -> None:
    assert leader([OLD, LEFT]) is None
    assert leader([OLD, LEFT, says("3", 8, epoch=1)]) is None
    assert leader([OLD, LEFT, NEW, says("1", 30, epoch=2, leads=False)]) is None
