"""Reads what earlier attempts of a task have left in a topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.errors import DeadlineExceededError
from pipeline.hadoop.ranges.cluster_offsets import topic_state
from pipeline.hadoop.sink.columns import found_columns
from pipeline.hadoop.sink.identity import TaskIdentity
from pipeline.model import TopicPartition
from pipeline.records.batch import iterate_headers
from pipeline.records.columns import open_in_portions
from pipeline.records.memory import MIN_OPENED_BYTES

IDLE_LIMIT_S = 120.0


@dataclass(slots=True)
class Earlier:
    """Records of earlier attempts in one partition, in the order of their sequence numbers from 0."""

    chunks: list[pa.RecordBatch] = field(default_factory=list)
    left: pa.Table | None = None

    def take_equal(self, rows: pa.RecordBatch) -> int | None:
        """Take the records that `rows` begins with and return their number. None if the log has other records."""
        if self.left is None:
            self.left = pa.Table.from_batches(self.chunks).combine_chunks()
            self.chunks.clear()
        count = min(int(rows.num_rows), int(self.left.num_rows))
        if not bool(self.left.slice(0, count).equals(pa.Table.from_batches([rows.slice(0, count)]))):
            return None
        self.left = self.left.slice(count)
        return count


async def read_earlier(
    cluster: Cluster, topic: str, since: Mapping[TopicPartition, int], identity: TaskIdentity
) -> dict[TopicPartition, Earlier]:
    """Return the records of `identity` between `since` (else the log start) and the high watermark, by partition.

    Only batches of the identity are opened.
    """
    state = await topic_state(cluster, topic)
    ends: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    for number, bounds in state.bounds.items():
        partition = TopicPartition(topic, number)
        start = max(since.get(partition, 0), bounds.log_start_offset)
        if start < bounds.high_watermark:
            starts[partition], ends[partition] = start, bounds.high_watermark
    found: dict[TopicPartition, Earlier] = {}
    if not starts:
        return found
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        consumer.assign(starts)
        await _read(consumer, ends, identity, found)
    return found


async def _read(
    consumer: Consumer,
    ends: dict[TopicPartition, int],
    identity: TaskIdentity,
    found: dict[TopicPartition, Earlier],
) -> None:
    idle_since = trio.current_time()
    while ends:
        for batches in await consumer.poll_batches():
            idle_since = trio.current_time()
            partition = batches.topic_partition
            view = memoryview(batches.data)
            for position, header in iterate_headers(batches.data):
                is_own = (header.producer_id, header.producer_epoch) == (
                    identity.producer_id,
                    identity.producer_epoch,
                )
                if is_own:
                    data = view[position : position + header.size_bytes]
                    for columns in open_in_portions(data, max_batch_bytes=MIN_OPENED_BYTES):
                        found.setdefault(partition, Earlier()).chunks.append(found_columns(columns))
            if partition in ends and batches.next_offset >= ends[partition]:
                del ends[partition]
        if trio.current_time() - idle_since > IDLE_LIMIT_S:
            raise DeadlineExceededError(f"nothing came from {', '.join(map(str, ends))} for {IDLE_LIMIT_S:.0f} s")
