"""A destination that gets batches in the codec which their flows ask for (`compression.type`).

Invariants:

- Batches are recompressed within the append that they belong to. So the order of a partition stays, at most as many
  bytes are recompressed as are being appended, and an append that fails is made again from the fetched batches.
- The event loop opens nothing: each append has a thread of its own, of THREADS at most.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.diagnostics import get_logger
from pipeline.mirror.config import CompressionType
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.destination import Appended, Destination, ReplicaPlace
from pipeline.mirror.copying.divergence import LastBatches
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.model import TopicPartition
from pipeline.records.batch import BatchHeader
from pipeline.records.compression import Codec
from pipeline.records.recompression import RecompressedBatches, recompressed

THREADS = os.cpu_count() or 1

Due = Sequence[tuple[PartitionCopy, FetchedBatches]]

logger = get_logger(__name__)


class RecompressingDestination:
    """Another destination, which gets recompressed batches."""

    def __init__(
        self,
        destination: Destination,
        compression_of: Callable[[str, str], CompressionType],
        metrics: MirrorMetrics,
    ) -> None:
        """`compression_of` returns the present `compression.type` of a source and topic."""
        self.isolation = destination.isolation
        self._destination = destination
        self._compression_of = compression_of
        self._metrics = metrics
        self._limiter = trio.CapacityLimiter(THREADS)
        self._warned: set[TopicPartition] = set()
        """Replicas with batches that could not be opened: logged once."""

    async def open(self) -> None:
        """Open the destination."""
        await self._destination.open()

    async def run(self) -> None:
        """Run the destination until cancelled."""
        await self._destination.run()

    async def locate(self, copy: PartitionCopy) -> ReplicaPlace:
        """Return where the replica stands."""
        return await self._destination.locate(copy)

    async def append(self, due: Due) -> Mapping[TopicPartition, Appended]:
        """Recompress batches whose flows ask for it, and append all. Copies that ended meanwhile get no result."""
        asking = {
            copy.source: batches.data
            for copy, batches in due
            if self._compression_of(copy.assignment.source.cluster, copy.source.topic) is CompressionType.ZSTD
        }
        if not asking:
            return await self._destination.append(due)
        made = await trio.to_thread.run_sync(_recompress, asking, limiter=self._limiter, abandon_on_cancel=True)
        left = []
        for copy, batches in due:
            if copy.position != batches.position:
                continue
            found = made.get(copy.source)
            if found is None:
                left.append((copy, batches))
            else:
                self._note(copy, found)
                left.append((copy, replace(batches, data=found.data)))
        return await self._destination.append(left)

    async def last_header(self, copy: PartitionCopy, end: int, /) -> BatchHeader | None:
        """Return the header of the replica's batch, which differs from the source's if the batch was recompressed."""
        return await self._destination.last_header(copy, end)

    async def last_batches(self, source: Cluster, copy: PartitionCopy, end: int, /) -> LastBatches:
        """Return the batches of both logs that cover the last offset before `end`."""
        return await self._destination.last_batches(source, copy, end)

    def _note(self, copy: PartitionCopy, found: RecompressedBatches) -> None:
        source = copy.assignment.source.cluster
        self._metrics.count_recompressed(source, found.before_bytes, found.after_bytes, found.refused)
        replica = copy.assignment.replica
        if found.refusal is not None and replica not in self._warned:
            self._warned.add(replica)
            names = {"partition": str(copy.source), "replica": str(replica)}
            logger.warning("batch_not_recompressed", source=source, **names, error=found.refusal)


def _recompress(data: Mapping[TopicPartition, memoryview]) -> dict[TopicPartition, RecompressedBatches]:
    return {partition: recompressed(batches, Codec.ZSTD) for partition, batches in data.items()}
