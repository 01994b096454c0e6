"""Reads what earlier attempts of a task have left in a topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import trio

from pipeline.client.admin.producers import describe_producers
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.errors import DeadlineExceededError
from pipeline.hadoop.ranges.cluster_offsets import topic_state
from pipeline.hadoop.sink.columns import found_columns
from pipeline.hadoop.sink.identity import TaskIdentity
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import MAX_SEQUENCE, BatchHeader, iterate_headers
from pipeline.records.columns import open_in_portions
from pipeline.records.memory import MIN_OPENED_BYTES

IDLE_LIMIT_S = 120.0
REPLICATION_LIMIT_S = 30.0
"""Time that the last batch of an earlier attempt has to reach all replicas, and readers thereby."""


@dataclass(slots=True)
class Earlier:
    """Records of earlier attempts in one partition, in the order of their sequence numbers from 0.

    `is_whole` is False if some of them are gone: deleted, compacted or never replicated.
    """

    chunks: list[pa.RecordBatch] = field(default_factory=list)
    next_sequence: int = 0
    is_whole: bool = True
    left: pa.Table | None = None

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        """Add the next batch of the attempts."""
        is_next = header.base_sequence == self.next_sequence and header.record_count == header.last_offset_delta + 1
        self.is_whole = self.is_whole and is_next
        self.next_sequence = (header.base_sequence + header.last_offset_delta + 1) & MAX_SEQUENCE
        if self.is_whole:
            for columns in open_in_portions(batch, max_batch_bytes=MIN_OPENED_BYTES):
                self.chunks.append(found_columns(columns))

    def has(self, sequence: int) -> bool:
        """Return True if the record of this number was added, or a later one."""
        return (self.next_sequence - 1 - sequence) & MAX_SEQUENCE < 1 << 30

    def take_equal(self, rows: pa.RecordBatch) -> int | None:
        """Take the records that `rows` begins with and return their number. None if the log has other records."""
        if not self.is_whole:
            return None
        if self.left is None:
            self.left = pa.Table.from_batches(self.chunks).combine_chunks()
            self.chunks.clear()
        count = min(int(rows.num_rows), int(self.left.num_rows))
        if not bool(self.left.slice(0, count).equals(pa.Table.from_batches([rows.slice(0, count)]))):
            return None
        self.left = self.left.slice(count)
        return count


async def read_earlier(
    cluster: Cluster, topic: str, since: Mapping[TopicPartition, int], identity: TaskIdentity, *, is_first: bool
) -> dict[TopicPartition, Earlier]:
    """Return the records of `identity` behind `since` (else the log start), by partition.

    Only batches of the identity are opened. With `is_first`, partitions whose producer state does not have
    the identity are not read. Waits for records that readers cannot see yet because not all replicas have them.
    """
    known = await last_sequences(cluster, topic, identity)
    if is_first and known is not None and not known:
        return {}
    state = await topic_state(cluster, topic)
    ends: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    for number, bounds in state.bounds.items():
        partition = TopicPartition(topic, number)
        start = max(since.get(partition, 0), bounds.log_start_offset)
        is_known = known is not None and partition in known
        if is_known or (start < bounds.high_watermark and not (is_first and known is not None)):
            starts[partition], ends[partition] = min(start, bounds.high_watermark), bounds.high_watermark
    found = {partition: Earlier() for partition in starts}
    if starts:
        async with open_consumer(cluster, ConsumerConfig()) as consumer:
            consumer.assign(starts)
            await _read(consumer, ends, identity, known or {}, found)
    return {partition: earlier for partition, earlier in found.items() if earlier.chunks or not earlier.is_whole}


async def last_sequences(cluster: Cluster, topic: str, identity: TaskIdentity) -> dict[TopicPartition, int] | None:
    """Return the last sequence number by partition that leaders' logs have of `identity`. None: brokers cannot tell."""
    partitions = [TopicPartition(topic, number) for number in (await cluster.topic(topic)).partitions]
    timeout_s = cluster.config.default_api_timeout_ms / 1000
    try:
        described = await describe_producers(cluster, partitions, timeout_s=timeout_s)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return None
        raise
    return {
        partition: producers[identity.producer_id].last_sequence
        for partition, producers in described.items()
        if identity.producer_id in producers
        and producers[identity.producer_id].producer_epoch == identity.producer_epoch
    }


async def _read(
    consumer: Consumer,
    ends: Mapping[TopicPartition, int],
    identity: TaskIdentity,
    known: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, Earlier],
) -> None:
    """Read each partition to its end, and on to the last known sequence number."""

    def is_behind(partition: TopicPartition) -> bool:
        return consumer.position(partition) < ends[partition]

    def is_missing(partition: TopicPartition) -> bool:
        return partition in known and not found[partition].has(known[partition])

    left = set(ends)
    moved_at = trio.current_time()
    while left := {partition for partition in left if is_behind(partition) or is_missing(partition)}:
        idle_s = trio.current_time() - moved_at
        if idle_s > REPLICATION_LIMIT_S and not any(map(is_behind, left)):
            for partition in left:
                found[partition].is_whole = False
            return
        if idle_s > IDLE_LIMIT_S:
            raise DeadlineExceededError(f"nothing came from {', '.join(map(str, left))} for {IDLE_LIMIT_S:.0f} s")
        for batches in await consumer.poll_batches():
            moved_at = trio.current_time()
            view = memoryview(batches.data)
            for position, header in iterate_headers(batches.data):
                if (header.producer_id, header.producer_epoch) == (identity.producer_id, identity.producer_epoch):
                    found[batches.topic_partition].add(header, view[position : position + header.size_bytes])
