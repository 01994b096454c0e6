"""What a reader reads back of its reports: all of it, or nothing if some of the audit topic is gone."""

from pathlib import Path
from random import Random

from pipeline.audit.counting.header_counter import HeaderCounter, ReportedCounts
from pipeline.audit.counting.publisher import publish_reports
from pipeline.audit.counting.read_back import EVENTS, FoundReports, read_back
from pipeline.audit.counting.windows import HOURS_KEPT
from pipeline.client.admin.offsets import delete_records
from pipeline.client.cluster.cluster import Cluster
from pipeline.records.tally import HOUR_MS
from tests.support.brokers import clock, serving_cluster
from tests.unit.audit.counting.test_header_counter import PARTITION, TOPIC_ID, WINDOW_MS, header


async def known_of(cluster: Cluster) -> ReportedCounts | None:
    found = FoundReports("east", WINDOW_MS)
    await read_back(cluster, found, timeout_s=5)
    return found.take_counts(PARTITION, str(TOPIC_ID))


def records_in(known: ReportedCounts) -> int:
    return int(known.rows["records"][known.rows["span_ms"] == HOUR_MS].sum())


async def test_a_reader_whose_earlier_reports_are_gone_counts_again(tmp_path: Path) -> None:
    async with serving_cluster(tmp_path) as cluster:
        counter = HeaderCounter("east", "reader", WINDOW_MS)
        counter.begin(PARTITION, TOPIC_ID, 0)
        for hour in range(HOURS_KEPT + 1):
            counter.count(PARTITION, [header(2 * hour, time_ms=hour * HOUR_MS)], 2 * hour + 2, 0)
        await publish_reports(cluster, counter.take_reports(), clock=clock, rng=Random(1))
        late = header(2 * HOURS_KEPT + 2, time_ms=0)
        counter.count(PARTITION, [late], late.next_offset, 0)
        await publish_reports(cluster, counter.take_reports(), clock=clock, rng=Random(2))
        known = await known_of(cluster)
        assert known is not None and records_in(known) == known.end_offset
        HeaderCounter("east", "another", WINDOW_MS).begin(PARTITION, TOPIC_ID, 0, known)
        await delete_records(cluster, {EVENTS: 1}, timeout_s=5)
        known = await known_of(cluster)
        HeaderCounter("east", "another", WINDOW_MS).begin(PARTITION, TOPIC_ID, 0, known)
        assert known is None
