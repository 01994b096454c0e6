"""A consumer of columns: reads a topic up to its present end as Arrow record batches.

    python examples/consume_columns.py HOST:PORT TOPIC

Prints, for each partition, how many records it holds up to its current end, their bytes, and how many distinct keys.
"""

import sys

import pyarrow as pa
import pyarrow.compute as pc
import trio

from pipeline.client import (
    EARLIEST,
    LATEST,
    ClientConfig,
    ConsumerConfig,
    TopicPartition,
    describe_topics,
    list_offsets,
    open_cluster,
    open_consumer,
    parse_addresses,
)

COLUMNS = ("partition", "offset", "key", "value")


async def read(bootstrap: str, topic: str) -> dict[int, pa.Table]:
    """Return each partition of the topic as a table with offset, key and value."""
    async with (
        open_cluster(ClientConfig(bootstrap=parse_addresses(bootstrap))) as cluster,
        open_consumer(cluster, ConsumerConfig()) as consumer,
    ):
        found = (await describe_topics(cluster, [topic]))[topic]
        partitions = [TopicPartition(topic, number) for number in sorted(found.partitions)]
        starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=30)
        ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=30)
        consumer.assign({p: starts[p].offset for p in partitions})
        read: dict[int, list[pa.RecordBatch]] = {p.partition: [] for p in partitions}
        tables = consumer.columns(COLUMNS)
        while any(consumer.position(p) < ends[p].offset for p in partitions):
            with trio.move_on_after(1):  # nothing more may come: the last records may be markers of transactions
                columns = await anext(tables)
                number = columns.column("partition").to_pylist()[0]
                is_before_end = pc.less(columns.column("offset"), ends[TopicPartition(topic, number)].offset)
                read[number].append(columns.filter(is_before_end))
    return {number: pa.Table.from_batches(batches) for number, batches in read.items() if batches}


if __name__ == "__main__":
    for number, table in trio.run(read, sys.argv[1], sys.argv[2]).items():
        size = pc.sum(pc.binary_length(table["value"])).as_py() or 0
        keys = pc.count_distinct(table["key"]).as_py()
        print(f"partition {number}: {table.num_rows} records, {size} bytes, {keys} keys")
