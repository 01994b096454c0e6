"""What a load reports to the audit about earlier commits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from pipeline.audit.message import AUDIT_TOPIC, AuditEvent, AuditSource, Tier, decode_audit_event
from pipeline.audit.older_ledger import Ledger
from pipeline.audit.reconcile import Status, reconcile
from pipeline.cli.load.report import report_counts
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer.consumer import open_consumer
from pipeline.hadoop.commit.checkpoints import table_of
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.commit.publication import commit, read_head
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.hadoop.load.job import NOTHING_NEW
from pipeline.hadoop.load.many import TopicResult
from pipeline.hadoop.load.release import release
from pipeline.model import TopicPartition
from pipeline.records.tally import Counts
from tests.support.brokers import serving_cluster
from tests.unit.hadoop.load.test_release import clock, set_up
from tests.unit.hadoop.load.test_task import NOON_MS, lookup

T4 = TopicPartition("t", 4)
NOTHING_CAME = [TopicResult(topic="t", seconds=0, result=NOTHING_NEW)]


def loads_of(root: Path, cluster: Cluster) -> LoadsConfig:
    brokers = ",".join(map(str, cluster.config.bootstrap))
    settings = {"root": str(root), "value.format": "binary", "topic": "t", "bootstrap.servers": brokers}
    return LoadsConfig.from_settings(settings, {})


async def read_ledger(cluster: Cluster, events: int) -> Ledger:
    """Return the reports of so many events of the audit topic."""
    ledger = Ledger()
    async with open_consumer(cluster, ConsumerConfig(auto_offset_reset=OffsetReset.EARLIEST)) as consumer:
        consumer.assign({TopicPartition(AUDIT_TOPIC, 0): 0})
        with trio.fail_after(60):
            for _ in range(events):
                record = await anext(consumer.records())
                assert record.value is not None
                ledger.apply(decode_audit_event(record.value))
    return ledger


async def test_ranges_that_a_load_lost_explain_what_is_missing(tmp_path: Path) -> None:
    set_up(tmp_path, "parquet")
    files, layout = LocalFileSystem(), topic_layout(str(tmp_path), "t")
    head = read_head(files, layout)
    assert head.manifest is not None
    lost = OffsetRange(partition=4, start=8, end=11)
    made = replace(
        head.manifest,
        sequence=2,
        run_id="r2",
        offsets={4: 11},
        ranges=(),
        skipped=(lost,),
        files=(),
        counts={},
        lost={4: 3},
        previous_sha256=head.sha256,
    )
    commit(files, layout, made, head)
    async with serving_cluster(tmp_path / "brokers") as cluster:
        await report_counts(loads_of(tmp_path, cluster), NOTHING_CAME, "hub")
        ledger = await read_ledger(cluster, 1)
    aside = Counts(11, 500, 7, 9)  # eight in the quarantine, three that were deleted
    source = AuditSource(tier=Tier.BROKER, cluster="hub", partition=T4)
    ledger.apply(AuditEvent(source=source, revision=11, created_ms=1, window_ms=600_000, windows={NOON_MS: aside}))
    settings: Any = {"replica_cluster": None, "routes": [], "now_ms": NOON_MS, "grace_ms": 0, "pending_max_ms": None}
    (hour,) = reconcile(ledger, live_clusters=["hub"], **settings)
    assert hour.status is Status.EXPLAINED
    assert str(hour.findings[0]).endswith(
        "3 records that were live are missing, as the load says; 8 records are in the quarantine of the load"
    )


async def test_a_run_with_nothing_new_reports_a_release(tmp_path: Path) -> None:
    set_up(tmp_path, "parquet")
    async with serving_cluster(tmp_path / "brokers") as cluster:
        loads = loads_of(tmp_path, cluster)
        for events, aside in ((1, 8), (2, 2)):
            await report_counts(loads, NOTHING_CAME, "hub")
            ledger = await read_ledger(cluster, events)
            found = ledger.counts("hub", Tier.LOAD, T4, 600_000)
            assert found is not None
            report = found.at(NOON_MS)
            assert report.quarantined == aside
            counts = table_of(str(tmp_path), "t").counts
            assert report.counts.records == sum(each.records for each in counts.values()) == 8 - aside
            assert report.counts == counts.get((4, NOON_MS), report.counts)
            if events == 1:
                assert release(str(tmp_path), "t", lookup, clock=clock).released == 6
