"""Item x14: an hour is complete once all known producers have closed it and all counts agree, and never before."""

from pathlib import Path

from pipeline.audit.judgement.verdicts import Status
from pipeline.records.tally import HOUR_MS
from tests.support.audited.cells import FIRST, SECOND, assert_exact, assert_not_exact
from tests.support.audited.forgeries import lose_one
from tests.support.audited.way import GRACE_MS, Way


def complete_ms(way: Way) -> int:
    found = way.watermark().complete_ms
    return -1 if found is None else found


def work(way: Way, hour_ms: int) -> None:
    """Have all stages handle an hour."""
    way.produce(hour_ms)
    way.copy()
    way.load()
    way.consume()
    way.report()


def test_the_watermark_follows_the_hours(tmp_path: Path) -> None:
    way = Way(tmp_path)
    work(way, FIRST)
    assert complete_ms(way) < FIRST + HOUR_MS
    assert_not_exact(way, FIRST)
    way.pass_time(HOUR_MS + GRACE_MS)
    work(way, SECOND)
    assert_exact(way, FIRST)
    assert FIRST + HOUR_MS <= complete_ms(way) < SECOND + HOUR_MS
    way.close()
    assert_exact(way)
    assert complete_ms(way) >= SECOND + HOUR_MS


def test_a_producer_that_has_not_closed_an_hour_holds_the_watermark_back(tmp_path: Path) -> None:
    way = Way(tmp_path)
    work(way, FIRST)
    silent = way.producers[-1]
    silent.kill()
    way.start_producer()
    way.pass_time(HOUR_MS + GRACE_MS)
    work(way, SECOND)
    way.close()
    assert complete_ms(way) < FIRST + HOUR_MS
    assert silent.instance in way.watermark().waits_for
    assert way.hours()[FIRST].status in (Status.EXACT, Status.UNKNOWN)


def test_a_difference_holds_the_watermark_back_for_good(tmp_path: Path) -> None:
    way = Way(tmp_path)
    way.forge["replica"] = lose_one
    way.run()
    way.pass_time(10 * HOUR_MS)
    way.settle()
    assert complete_ms(way) < FIRST + HOUR_MS
    assert "replica" in way.watermark().waits_for
