"""The two sides of a comparison: partitions whose brokers sum ranges, or whose batches are fetched and summed here.

Invariants: those of `records/batch_sums.py`. Both kinds of sides give equal sums for equal batches.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.admin.range_sums import PartitionSums, ask_range_sums, can_sum_contents, can_sum_ranges
from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import PartitionFetchError, PartitionOffsetOutOfRangeError
from pipeline.errors import CorruptBatchError, DeadlineExceededError, PipelineError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST
from pipeline.records.batch import HEADER_SIZE, BatchHeader, iterate_headers
from pipeline.records.batch_sums import NO_BATCHES, BatchSums, RunningSums, SumKind
from pipeline.records.contents import plain_sum_of

TIMEOUT_S = 60.0
CLEANUP_POLICY = "cleanup.policy"


class CannotSumError(PipelineError):
    """The leader of a partition cannot sum ranges, and its batches must not be fetched."""


class RangeGoneError(PipelineError):
    """A range is no longer in the log: retention or a truncation removed its records."""


class Side(Protocol):
    """A partition of one cluster."""

    sums_contents: bool
    """True if the side can sum frames and contents."""

    async def sums(self, from_offset: int, up_to_offset: int, kind: SumKind = SumKind.HEADERS) -> PartitionSums:
        """Return sums over the beginning of a range, as `ask_range_sums` does. Raises RangeGoneError, PipelineError."""

    async def damage_at(self, offset: int) -> str | None:
        """Return why the log cannot be read at this offset; None if it can. Raises as `sums`."""


class SummedSide:
    """A partition whose broker sums."""

    def __init__(
        self, cluster: Cluster, topic_partition: TopicPartition, *, is_deep: bool, sums_contents: bool
    ) -> None:
        self.sums_contents = sums_contents
        self._cluster = cluster
        self._topic_partition = topic_partition
        self._is_deep = is_deep

    async def sums(self, from_offset: int, up_to_offset: int, kind: SumKind = SumKind.HEADERS) -> PartitionSums:
        """Have the broker sum."""
        try:
            return await ask_range_sums(
                self._cluster,
                self._topic_partition,
                from_offset,
                up_to_offset,
                is_deep=self._is_deep,
                kind=kind,
                timeout_s=TIMEOUT_S,
            )
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                reason = f"{self._topic_partition} no longer has offsets {from_offset} to {up_to_offset}"
                raise RangeGoneError(reason) from error
            raise

    async def damage_at(self, offset: int) -> str | None:
        """Have the broker find the offset."""
        return (await self.sums(offset, offset)).damage


class FetchedSide:
    """A partition whose batches are fetched; those of the last fetch are kept. Checksums are always verified."""

    sums_contents = True

    def __init__(self, consumer: Consumer, topic_partition: TopicPartition, clean_offset: int | None) -> None:
        self._consumer = consumer
        self._topic_partition = topic_partition
        self._clean_offset = clean_offset
        self._begin = self._end = 0
        """Offsets whose batches are kept: all batches with last offsets from `begin` on and before `end`."""
        self._batches: list[tuple[memoryview, BatchHeader]] = []

    async def sums(self, from_offset: int, up_to_offset: int, kind: SumKind = SumKind.HEADERS) -> PartitionSums:
        """Fetch, unless the batches are at hand, and sum."""
        if from_offset >= up_to_offset:
            return PartitionSums(sums=NO_BATCHES, next_offset=from_offset, clean_offset=self._clean_offset)
        damage = await self.damage_at(from_offset)
        if damage is not None:
            return PartitionSums(
                sums=NO_BATCHES, next_offset=from_offset, clean_offset=self._clean_offset, damage=damage
            )
        end = min(self._end, up_to_offset)
        batches = [found for found in self._batches if from_offset <= found[1].last_offset < end]
        sums = await trio.to_thread.run_sync(_sum, batches, kind) if kind is SumKind.CONTENTS else _sum(batches, kind)
        return PartitionSums(sums=sums, next_offset=end, clean_offset=self._clean_offset)

    async def damage_at(self, offset: int) -> str | None:
        """Fetch the batches from the one that holds `offset` on, unless they are at hand."""
        if self._begin <= offset < self._end:
            return None
        consumer, partition = self._consumer, self._topic_partition
        is_fetched_ahead = partition in consumer.assignment and consumer.position(partition) == offset
        if not is_fetched_ahead:
            consumer.assign({self._topic_partition: offset})
        try:
            polled = await consumer.poll_batches(TIMEOUT_S)
        except PartitionOffsetOutOfRangeError as error:
            raise RangeGoneError(str(error)) from error
        except PartitionFetchError as error:
            consumer.remove(partition)
            if isinstance(error.cause, CorruptBatchError):
                return str(error.cause)
            raise
        if not polled:
            raise DeadlineExceededError(f"{self._topic_partition} gave no batches within {TIMEOUT_S:.0f} s")
        self._begin, self._end = offset, polled[-1].next_offset
        self._batches = [
            (batches.data[start : start + header.size_bytes], header)
            for batches in polled
            for start, header in iterate_headers(batches.data)
        ]
        return None


def _sum(batches: Iterable[tuple[memoryview, BatchHeader]], kind: SumKind) -> BatchSums:
    """Sum over whole batches. Blocks its thread for CONTENTS. Raises MemoryExhaustedError."""
    running = RunningSums()
    for data, header in batches:
        if kind is SumKind.CONTENTS:
            running.add_contents(data[:HEADER_SIZE], header, plain_sum_of(data, header))
        elif kind is SumKind.FRAMES:
            running.add_frame(header)
        else:
            running.add(data[:HEADER_SIZE], header)
    return running.total()


async def bounds_of(cluster: Cluster, topic_partition: TopicPartition) -> tuple[int, int]:
    """Return log start offset and high watermark. Raises PipelineError."""
    found = []
    for position in (EARLIEST, LATEST):
        listed = await list_offsets(cluster, {topic_partition: position}, timeout_s=TIMEOUT_S)
        found.append(listed[topic_partition].offset)
    return found[0], found[1]


@asynccontextmanager
async def open_side(
    cluster: Cluster, topic_partition: TopicPartition, name: str, *, is_deep: bool, may_fetch: bool
) -> AsyncIterator[Side]:
    """Open the partition of the cluster that users know as `name`. Raises CannotSumError, PipelineError."""
    await cluster.topic(topic_partition.topic)
    if await can_sum_ranges(cluster, topic_partition):
        sums_contents = await can_sum_contents(cluster, topic_partition)
        yield SummedSide(cluster, topic_partition, is_deep=is_deep, sums_contents=sums_contents)
        return
    if not may_fetch:
        raise CannotSumError(
            f"the broker of {name} cannot sum ranges (Apache Kafka, or older than this program): with --fetch its "
            "batches are fetched over the network"
        )
    topic = topic_partition.topic
    settings = await describe_topic_settings(cluster, [topic], [CLEANUP_POLICY], timeout_s=TIMEOUT_S)
    is_compacted = "compact" in settings.get(topic, {}).get(CLEANUP_POLICY, "")
    async with open_consumer(cluster, ConsumerConfig()) as consumer:
        yield FetchedSide(consumer, topic_partition, None if is_compacted else 0)
