"""A consumer of columns: fetches batches closed, opens them as arrays and returns them as Arrow.

    python examples/consume_columns.py HOST:PORT TOPIC

Prints, for each partition, how many records it holds up to its current end, their bytes, and how many distinct keys.
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc
import trio

from pipeline.client import (
    ARROW_SCHEMA,
    EARLIEST,
    LATEST,
    ClientConfig,
    ConsumerConfig,
    TopicPartition,
    describe_topics,
    list_offsets,
    open_batches,
    open_cluster,
    open_consumer,
    parse_addresses,
)


async def read(bootstrap: str, topic: str) -> dict[int, pa.Table]:
    """Return each partition of the topic as a table with offset, timestamp, key, value and headers."""
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
