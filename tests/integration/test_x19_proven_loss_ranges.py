"""Item x19: what the ledger of gaps names is explained offset by offset; a record more is missing. No false alarm."""

from pathlib import Path

import pytest

from pipeline.audit.judgement.verdicts import OffsetSpan, Status
from tests.support.audited.cells import FIRST, SECOND, assert_exact
from tests.support.audited.way import BATCHES_PER_HOUR, PARTITIONS, RECORDS, Way


def overtaken(way: Way, gap: OffsetSpan | None) -> None:
    """Have retention remove the first batch before the mirror has copied it, and the ledger name a gap."""
    way.produce()
    way.consume()
    way.report()
    way.live.delete_records(PARTITIONS[0], RECORDS)
    if gap is not None:
        way.gaps[PARTITIONS[0]] = [gap]
    way.produce(SECOND)
    way.finish()


def test_a_gap_that_the_ledger_names_is_explained_with_its_offsets(tmp_path: Path) -> None:
    way = Way(tmp_path)
    overtaken(way, OffsetSpan(first=0, last=RECORDS - 1))
    hour = way.hours()[FIRST]
    assert hour.status is Status.EXPLAINED
    (finding,) = (one for one in hour.findings if one.source == PARTITIONS[0])
    assert (finding.records, finding.explanation) == (RECORDS, "the mirror's ledger of gaps")
    assert finding.offsets is not None
    assert finding.offsets.first <= 0
    assert_exact(way, SECOND)


@pytest.mark.parametrize(
    "gap",
    [
        None,
        OffsetSpan(first=0, last=RECORDS - 2),
        OffsetSpan(first=BATCHES_PER_HOUR * RECORDS, last=BATCHES_PER_HOUR * RECORDS + RECORDS - 1),
    ],
    ids=["no gap", "one record more is missing", "the gap is elsewhere"],
)
def test_what_the_ledger_does_not_name_is_missing(gap: OffsetSpan | None, tmp_path: Path) -> None:
    way = Way(tmp_path)
    overtaken(way, gap)
    assert way.hours()[FIRST].status is Status.MISSING
    assert_exact(way, SECOND)


def test_a_gap_of_which_nothing_is_missing_makes_no_difference(tmp_path: Path) -> None:
    way = Way(tmp_path)
    way.gaps[PARTITIONS[0]] = [OffsetSpan(first=10_000, last=10_099)]
    way.run()
    assert_exact(way)
