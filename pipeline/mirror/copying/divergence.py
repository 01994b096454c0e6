"""Comparison of a replica with its source: how far back both logs are the same (KIP-320)."""

from dataclasses import dataclass
from typing import NamedTuple

import trio

from pipeline.client.admin.leader_epochs import ends_of_epochs
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.batch_headers import not_available
from pipeline.client.consumer.consumer import open_consumer
from pipeline.client.consumer.errors import PartitionOffsetOutOfRangeError
from pipeline.errors import CorruptBatchError, DeadlineExceededError, PipelineError
from pipeline.mirror.journals.epochs import EpochEntries, end_of_entry, newest_up_to
from pipeline.model import TopicPartition
from pipeline.records.batch import DELETE_HORIZON, BatchHeader, read_header
from pipeline.records.batch_sums import frame_of
from pipeline.records.contents import hash_of_contents

POLL_S = 0.2
MAX_COMPARED = 20
"""Replicas whose last batches are fetched at a time to compare them with those of one source or broker of it: each
takes two connections."""


class FallenEpochsError(PipelineError):
    """The source knows no leader epoch as high as those in the replica, so epochs cannot tell what both share."""


async def shared_end(
    source: Cluster, partition: TopicPartition, entries: EpochEntries, end: int, *, timeout_s: float
) -> int | None:
    """Return the offset up to which a replica that ends at `end` has what its source has.

    `entries` are the source's epochs in the replica. The source is asked for the end of the newest epoch, then of older
    ones, until it has the epoch. None if it knows none of them. Raises FallenEpochsError, KafkaError, NetworkError,
    DeadlineExceededError.
    """
    index = len(entries) - 1 if entries else None
    shared = end
    while index is not None:
        epoch = entries[index][0]
        found = (await ends_of_epochs(source, {partition: epoch}, timeout_s=timeout_s))[partition]
        if found.end_offset < 0:
            if index < len(entries) - 1:
                return None  # the leader changed between two answers
            raise FallenEpochsError(f"the source knows no leader epoch as high as {epoch}")
        shared = min(shared, found.end_offset)
        if found.leader_epoch == epoch or shared == end:
            return min(shared, end_of_entry(entries, index, end))
        older = newest_up_to(entries, found.leader_epoch)
        if older is None or older >= index:
            return None
        shared = min(shared, end_of_entry(entries, older, end))
        index = older
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatches:
    """The batches of replica and source that cover the replica's last offset; None where no batch does."""

    replica: BatchHeader | None
    source: BatchHeader | None
    have_equal_contents: bool = False
    """True if the batches are in different codecs, both were opened, and nothing else differs."""

    @property
    def are_equal(self) -> bool:
        """True if both logs hold the same batch."""
        if self.replica is None or self.source is None:
            return False
        return self.have_equal_contents or is_same(self.replica, self.source)

    @property
    def differ(self) -> bool:
        """True if the logs hold different batches.

        Compaction removes records from a batch, or gives it a delete horizon, and proves nothing.
        """
        if self.replica is None or self.source is None or self.are_equal:
            return False
        if (self.replica.attributes | self.source.attributes) & DELETE_HORIZON:
            return False
        is_compacted = self.replica.record_count != self.source.record_count and (
            self.replica.base_offset == self.source.base_offset and self.replica.last_offset == self.source.last_offset
        )
        return not is_compacted


def is_same(one: BatchHeader, other: BatchHeader) -> bool:
    """Return True if the headers are of the same batch. The checksum covers neither base offset nor leader epoch."""
    return (one.base_offset, one.last_offset, one.crc) == (other.base_offset, other.last_offset, other.crc)


async def last_batches(
    source: Cluster,
    partition: TopicPartition,
    destination: Cluster,
    replica: TopicPartition,
    end: int,
    *,
    timeout_s: float,
) -> LastBatches:
    """Fetch the batches that cover the last offset of a replica that ends at `end`.

    Raises PartitionFetchError, KafkaError, NetworkError and DeadlineExceededError.
    """
    of_replica = await _batch_at(destination, replica, end - 1, timeout_s)
    of_source = await _batch_at(source, partition, end - 1, timeout_s)
    return LastBatches(
        replica=None if of_replica is None else of_replica.header,
        source=None if of_source is None else of_source.header,
        have_equal_contents=(
            of_replica is not None
            and of_source is not None
            and of_replica.header.attributes != of_source.header.attributes
            and frame_of(of_replica.header) == frame_of(of_source.header)
            and await trio.to_thread.run_sync(_have_equal_contents, of_replica, of_source)
        ),
    )


class _Batch(NamedTuple):
    header: BatchHeader
    data: memoryview


def _have_equal_contents(one: _Batch, other: _Batch) -> bool:
    """Open both batches. What cannot be opened was not recompressed, so that its copy would have the same codec.

    Raises MemoryExhaustedError.
    """
    try:
        hashes = {hash_of_contents(each.data, each.header) for each in (one, other)}
    except CorruptBatchError:
        return False
    return len(hashes) == 1


async def _batch_at(cluster: Cluster, partition: TopicPartition, offset: int, timeout_s: float) -> _Batch | None:
    config = ConsumerConfig(max_bytes=1024, max_partition_bytes=1024, max_wait_ms=int(POLL_S * 1000))
    await cluster.topic(partition.topic, timeout_s=timeout_s)
    with trio.move_on_after(timeout_s):
        async with open_consumer(cluster, config) as consumer:
            consumer.add(partition, offset)
            while True:
                try:
                    polled = await consumer.poll_batches(POLL_S)
                except PartitionOffsetOutOfRangeError:
                    return None
                if polled:
                    header = read_header(polled[0].data)
                    batch = _Batch(header, polled[0].data[: header.size_bytes])
                    return batch if header.base_offset <= offset else None
                high_watermark = consumer.high_watermark(partition)
                if high_watermark is not None and high_watermark <= offset:
                    raise not_available(partition, offset, high_watermark)
                if high_watermark is not None:  # answered, and there is nothing
                    return None
    raise DeadlineExceededError(f"{partition}: the batch at offset {offset} was not fetched within {timeout_s:.0f} s")
