"""A consumer that reads columns: batches are fetched closed, opened as arrays, and handed over as Arrow.

    python examples/consume_columns.py HOST:PORT TOPIC

Prints, for each partition, how many records it holds up to its present end, their bytes, and how many distinct keys.
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc
import trio

from pipeline.client.admin.offsets import EARLIEST, LATEST, list_offsets
from pipeline.client.admin.topics import describe_topics
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig, ConsumerConfig
from pipeline.client.consumer.consumer import open_consumer
from pipeline.model import TopicPartition
from pipeline.records.columns import ARROW_SCHEMA, open_batches
from pipeline.settings import parse_addresses


async def read(bootstrap: str, topic: str) -> dict[int, pa.Table]:
    """Every partition of the topic as a table with offset, timestamp, key, value and headers."""
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_consumer(cluster, ConsumerConfig()) as consumer,
    ):
        found = (await describe_topics(cluster, [topic]))[topic]
        partitions = [TopicPartition(topic, number) for number in sorted(found.partitions)]
        starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=30)
        ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=30)
        consumer.assign({p: starts[p].offset for p in partitions})
        columns: dict[int, list[pa.RecordBatch]] = {p.partition: [] for p in partitions}
        while any(consumer.position(p) < ends[p].offset for p in partitions):
            for fetched in await consumer.poll_batches():
                partition = fetched.topic_partition
                opened = open_batches(fetched.data).between(fetched.position, ends[partition].offset)
                columns[partition.partition].append(opened.to_arrow())
    return {number: pa.Table.from_batches(batches, schema=ARROW_SCHEMA) for number, batches in columns.items()}


if __name__ == "__main__":
    for number, table in trio.run(read, sys.argv[1], sys.argv[2]).items():
        size = pc.sum(pc.binary_length(table["value"])).as_py() or 0
        keys = pc.count_distinct(table["key"]).as_py()
        print(f"partition {number}: {table.num_rows} records, {size} bytes, {keys} keys")
