"""Item x13: a difference of counts is followed by range sums to the offsets, the batch and the record, and named."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.audit.narrowing.narrower import Narrower
from pipeline.cli.audit.log_access import BrokerLogs
from tests.support.audited.cells import FIRST
from tests.support.audited.forgeries import FORGERIES
from tests.support.audited.way import PARTITIONS, RECORDS, Way
from tests.support.brokers import serving_cluster
from tests.support.mirrors import Site, make, put

NARROWED = {
    "record lost": {("missing", RECORDS, 2 * RECORDS - 1, RECORDS)},
    "record doubled": {("doubled", 6 * RECORDS, 7 * RECORDS - 1, RECORDS)},
    "byte changed": {("changed", 2 * RECORDS - 1, 2 * RECORDS - 1, 0)},
    "one lost and one doubled": {
        ("missing", RECORDS, 2 * RECORDS - 1, RECORDS),
        ("doubled", RECORDS, 2 * RECORDS - 1, RECORDS),
    },
    "two records swapped between partitions": {("misplaced", RECORDS, 2 * RECORDS - 1, 0)},
    "batches reordered": {("reordered", 0, RECORDS - 1, 0), ("reordered", RECORDS, 2 * RECORDS - 1, 0)},
}
"""Kind, offsets and records of the findings in partition 0, by fault."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with serving_cluster(tmp_path / "east") as east, serving_cluster(tmp_path / "hub") as hub:
        yield Site(east, east, hub)


@pytest.mark.parametrize("fault", FORGERIES)
async def test_what_counts_find_is_followed_to_the_record(site: Site, fault: str, tmp_path: Path) -> None:
    """The counts are those of logs; brokers that hold the same logs are asked where they differ."""
    way = Way(tmp_path)
    way.forge["replica"] = FORGERIES[fault]
    way.run()
    await make(site.east, partitions=2, mirror_source="elsewhere")
    await make(site.hub, partitions=2, mirror_source="east")
    for partition in PARTITIONS:
        for cluster, log in ((site.east, way.live), (site.hub, way.hub)):
            for batch in log.read(partition):
                await put(cluster, bytes(batch), partition)
    findings = way.hours()[FIRST].findings
    finding = next(one for one in findings if one.source == PARTITIONS[0])
    narrower = Narrower(BrokerLogs({"east": site.east, "hub": site.hub}, "hub", None), "hub")
    narrowed = await narrower.narrow(finding, [one for one in findings if one is not finding])
    assert {
        (str(one.kind), one.offsets.first, one.offsets.last, one.records) for one in narrowed if one.offsets
    } == NARROWED[fault], [one.text for one in narrowed]
