"""What a load reports to the audit about earlier commits."""

from pathlib import Path

import trio

from pipeline.audit.ledger import Ledger
from pipeline.audit.message import AUDIT_TOPIC, Tier, decode_audit_event
from pipeline.cli.load.report import report_counts
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig, OffsetReset
from pipeline.client.consumer.consumer import open_consumer
from pipeline.hadoop.commit.checkpoints import table_of
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.hadoop.load.job import NOTHING_NEW
from pipeline.hadoop.load.many import TopicResult
from pipeline.hadoop.load.release import release
from pipeline.model import TopicPartition
from tests.support.brokers import serving_cluster
from tests.unit.hadoop.load.test_release import clock, set_up
from tests.unit.hadoop.load.test_task import NOON_MS, lookup


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


async def test_a_run_with_nothing_new_reports_a_release(tmp_path: Path) -> None:
    set_up(tmp_path, "parquet")
    nothing_new = [TopicResult(topic="t", seconds=0, result=NOTHING_NEW)]
    async with serving_cluster(tmp_path / "brokers") as cluster:
        settings = {"root": str(tmp_path), "value.format": "binary", "topic": "t"}
        brokers = ",".join(map(str, cluster.config.bootstrap))
        loads = LoadsConfig.from_settings(settings | {"bootstrap.servers": brokers}, {})
        for events, aside in ((1, 8), (2, 2)):
            await report_counts(loads, nothing_new, "hub")
            ledger = await read_ledger(cluster, events)
            found = ledger.counts("hub", Tier.LOAD, TopicPartition("t", 4), 600_000)
            assert found is not None
            report = found.at(NOON_MS)
            assert report.quarantined == aside
            counts = table_of(str(tmp_path), "t").counts
            assert report.counts.records == sum(each.records for each in counts.values()) == 8 - aside
            assert report.counts == counts.get((4, NOON_MS), report.counts)
            if events == 1:
                assert release(str(tmp_path), "t", lookup, clock=clock).released == 6
