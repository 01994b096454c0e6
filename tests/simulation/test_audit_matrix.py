"""Detection matrix: for each tier and each fault, whether the audit finds it and names it, or calls the hour exact.

A fault of a tier strikes the way into it: the copy from the tier before, or the process that makes or counts the copy.
All counters, the ledger and the judge are the product's, and batches lie in real logs and files.
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from pipeline.records.tally import HOUR_MS
from tests.support.audited import data_cells, process_cells  # noqa: F401 - they enter their cells
from tests.support.audited.cells import CELLS, FAULTS, SECOND, TIERS, assert_exact
from tests.support.audited.forgeries import FORGERIES
from tests.support.audited.way import Way

# Cells without meaning

FIRST_COUNT = "nothing is counted before producers count: what goes wrong then is in no tier, and in no promise"
NO_LOG = "the tier has no segment files"
MEANINGLESS: Mapping[tuple[str, str], str] = {
    **{("produced", fault): FIRST_COUNT for fault in FORGERIES if fault != "record lost"},
    **{(tier, "segment file edited"): NO_LOG for tier in ("produced", "mirrored", "loaded", "consumed")},
    ("stored", "retention overtook the mirror"): "retention of a table removes hours by commits, which say so",
}


def test_each_cell_is_checked_or_without_meaning() -> None:
    assert {*CELLS} | {*MEANINGLESS} == {*product(TIERS, FAULTS)}
    assert not {*CELLS} & {*MEANINGLESS}


@pytest.mark.parametrize(("tier", "fault"), [pytest.param(*each, id=f"{each[0]}: {each[1]}") for each in CELLS])
def test_a_fault_is_found_and_named(tier: str, fault: str, tmp_path: Path) -> None:
    CELLS[tier, fault](Way(tmp_path), tier)


def test_without_a_fault_every_hour_is_exact(tmp_path: Path) -> None:
    way = Way(tmp_path)
    way.run()
    assert_exact(way)
    mark = way.watermark()
    assert mark.complete_ms is not None
    assert mark.complete_ms >= SECOND + HOUR_MS
