"""Ranges whose records are deleted between the plan and the read."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from pipeline.client.admin.offsets import delete_records
from pipeline.client.admin.topics import NewTopic, create_topics
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.producer import open_producer
from pipeline.hadoop.commit.manifest import OffsetRange
from pipeline.hadoop.ranges.plan import DataLossError
from pipeline.hadoop.ranges.range_reader import RangeReader
from pipeline.hadoop.ranges.rows import arrow_schema, row_schema
from pipeline.model import TopicPartition
from tests.support.brokers import clock, serving_cluster

CLICKS = TopicPartition("clicks", 0)
DEADLINE_S = 60


async def read(cluster: Cluster, end: int, *, fails: bool) -> list[Any]:
    """Offsets of the rows up to `end`."""
    schema = arrow_schema(row_schema(include_batches=False))
    reader = RangeReader(
        client=cluster.config,
        schema=schema,
        include_batches=False,
        fail_on_data_loss=fails,
        max_opened_bytes=1 << 20,
    )
    rows: list[Any] = []
    with trio.fail_after(DEADLINE_S):
        found = reader.read(CLICKS.topic, OffsetRange(partition=0, start=0, end=end))
        rows = await trio.to_thread.run_sync(list, found, abandon_on_cancel=True)
    return [offset for part in rows for offset in part.column("offset").to_pylist()]


@pytest.mark.parametrize(("deleted", "left"), [(3, [3, 4, 5]), (6, []), (8, [])])
async def test_what_was_deleted_is_loss_and_the_rest_is_read(tmp_path: Path, deleted: int, left: list[int]) -> None:
    async with serving_cluster(tmp_path) as cluster:
        await create_topics(cluster, [NewTopic(name=CLICKS.topic, partitions=1)])
        async with open_producer(cluster, ProducerConfig(), clock=clock, rng=Random(1)) as producer:
            for number in range(8):
                await producer.send(CLICKS.topic, b"%d" % number)
        await delete_records(cluster, {CLICKS: deleted}, timeout_s=DEADLINE_S)
        with pytest.raises(DataLossError, match=rf"\[0, {min(deleted, 6)}\): gone while it was read"):
            await read(cluster, 6, fails=True)
        assert await read(cluster, 6, fails=False) == left
