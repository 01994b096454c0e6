"""Loads of a source that lost records: deleted ones are named and recorded, replaced ones are noticed."""

import io
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import trio

from pipeline.client.admin.offsets import ALL_RECORDS, delete_records
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.producer.raw_produce import raw_produce
from pipeline.hadoop.commit.checkpoints import table_of
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.load import LoadConfig, run_load
from pipeline.hadoop.ranges.plan import DataLossError
from pipeline.model import TopicPartition
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.integration.test_truncated_logs import NEW, OLD, lead_and_grow, two_brokers
from tests.support.brokers import clock, serving_cluster
from tests.support.restorable import restorable

T0 = TopicPartition("t", 0)
DEADLINE_S = 300


async def produce(cluster: Cluster, *values: bytes) -> None:
    """Append a batch for each value."""
    for value in values:
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        assert builder.append(None, value, (), clock())
        batches = {T0: bytes(builder.build())}
        error = (await raw_produce(cluster, batches, keep_offsets=False, timeout_s=DEADLINE_S))[T0].error
        if error is not None:
            raise error


async def load(spark: Any, cluster: Cluster, root: Path, **more: Any) -> Any:
    bootstrap = ",".join(str(broker.address) for broker in cluster.view.brokers.values())
    settings = {"bootstrap.servers": bootstrap, "topic": "t", "root": root.as_uri(), "value.format": "binary"}
    config = LoadConfig.from_settings(settings | more)
    with trio.fail_after(DEADLINE_S):
        return await trio.to_thread.run_sync(partial(run_load, spark, config, clock=clock))


def loaded(root: Path) -> list[bytes]:
    """The values in the table, in the order of their offsets."""
    rows = []
    for file in table_of(root.as_uri(), "t").data_files():
        rows += pq.read_table(io.BytesIO(Path(root, "t", file.path).read_bytes())).to_pylist()
    return [row["value"] for row in sorted(rows, key=lambda row: row["_offset"])]


async def test_a_log_that_an_unclean_election_truncated_is_noticed(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    async with two_brokers(tmp_path / "brokers") as (brokers, second):
        assert (await load(spark, brokers.cluster, root)).records == len(OLD)
        await brokers.stop(3 - second)
        await lead_and_grow(brokers, second)
        with pytest.raises(DataLossError, match="truncated, or restored") as caught:
            await load(spark, brokers.cluster, root)
        assert "accept.truncation=0@4" in str(caught.value)
        with pytest.raises(DataLossError):
            await load(spark, brokers.cluster, root, **{"accept.truncation": "0@3"})
        result = await load(spark, brokers.cluster, root, **{"accept.truncation": "0@4"})
        assert result.manifest.skipped == (OffsetRange(partition=0, start=3, end=4),)
        assert result.manifest.lost == {0: 1}
        assert loaded(root) == OLD + NEW[3:]
        await produce(brokers.cluster, b"more")
        assert (await load(spark, brokers.cluster, root)).records == 1


async def test_a_restored_older_copy_that_grew_beyond_again_is_noticed(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    async with restorable(tmp_path / "site") as site:
        async with site.running() as cluster:
            await create_topics(cluster, [NewTopic(name="t", partitions=1, replication_factor=1)])
            await produce(cluster, *OLD[:2])
        site.back_up()
        async with site.running() as cluster:
            await produce(cluster, *OLD[2:])
            assert (await load(spark, cluster, root)).records == len(OLD)
        site.restore()
        async with site.running() as cluster:
            await produce(cluster, *NEW)
            with pytest.raises(DataLossError, match="truncated, or restored"):
                await load(spark, cluster, root)
        assert loaded(root) == OLD


async def test_x19_deleted_records_are_named_and_recorded_even_if_none_are_left(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    async with serving_cluster(tmp_path / "broker") as cluster:
        await create_topics(cluster, [NewTopic(name="t", partitions=1, replication_factor=1)])
        await produce(cluster, *OLD)
        await load(spark, cluster, root)
        await produce(cluster, *NEW)
        await delete_records(cluster, {T0: ALL_RECORDS}, timeout_s=DEADLINE_S)
        with pytest.raises(DataLossError, match="deleted before they were loaded"):
            await load(spark, cluster, root)
        accepting = {"fail.on.data.loss": False}
        result = await load(spark, cluster, root, **accepting)
        assert (result.committed, result.records) == (True, 0)
        assert result.manifest.skipped == (OffsetRange(partition=0, start=4, end=13),)
        assert not (await load(spark, cluster, root, **accepting)).committed
        await produce(cluster, *NEW[:2])
        await delete_records(cluster, {T0: 14}, timeout_s=DEADLINE_S)
        result = await load(spark, cluster, root, **accepting)
        assert (result.records, dict(result.manifest.lost), dict(result.manifest.offsets)) == (1, {0: 10}, {0: 15})
        assert loaded(root) == [*OLD, NEW[1]]
