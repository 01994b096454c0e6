"""Item x11: sums over contents are counted at every tier, files included, and find what numbers of records cannot."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.audit.events.encoding import decode_count_report
from pipeline.audit.judgement.verdicts import DiscrepancyKind, Status
from pipeline.records.tally import HOUR_MS
from tests.support.audited.cells import FIRST, SEEN_AT, Found, assert_exact, findings
from tests.support.audited.forgeries import change_one, lose_one_and_double_one
from tests.support.audited.way import PARTITIONS, Way


def test_every_tier_has_the_same_sum_over_the_contents_of_an_hour(tmp_path: Path) -> None:
    way = Way(tmp_path)
    way.run()
    sums: dict[str, set[int]] = {}
    for event in way.events:
        report = decode_count_report(event)
        rows = report.rows[(report.rows["span_ms"] == HOUR_MS) & (report.rows["start_ms"] == FIRST)]
        for row in rows[rows["partition"] == PARTITIONS[0].partition]:
            assert row["has_sums"]
            sums.setdefault(f"{report.counter.tier} {report.counter.cluster}", set()).add(int(row["content_sum"]))
    tiers = {"producer east", "broker east", "mirror east", "broker hub", "load hub", "stored hub", "group east"}
    assert set(sums) == tiers
    (found,) = set.union(*sums.values())
    assert found not in (0, np.iinfo(np.uint64).max)
    assert_exact(way)


@pytest.mark.parametrize("tier", ["live", "replica", "loaded", "consumed"])
@pytest.mark.parametrize("forge", [change_one, lose_one_and_double_one])
def test_other_contents_are_found_though_all_numbers_are_equal(tier: str, forge: object, tmp_path: Path) -> None:
    way = Way(tmp_path)
    way.forge[tier] = forge  # type: ignore[assignment]
    way.run()
    assert findings(way, FIRST) == {Found(SEEN_AT[tier], Status.CHANGED, DiscrepancyKind.CHANGED, 0, 0)}
    counts = list(way.hours()[FIRST].stages.values())
    assert {(each.records, each.bytes, each.batches) for each in counts} == {
        (counts[0].records, counts[0].bytes, counts[0].batches)
    }


def test_a_changed_bit_of_a_file_is_found(tmp_path: Path) -> None:
    way = Way(tmp_path)
    way.run()
    path = way.file(0, FIRST)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    way.settle()
    assert {(one.at, one.status) for one in findings(way, FIRST)} == {("stored", Status.MISSING)}
