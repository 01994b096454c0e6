"""Copying from one live cluster: whole batches fetched here, appended there at the same offsets.

Invariants:
A. The position of a partition is the replica's log end offset and nothing else: it is asked of the destination whenever
   it is not certain (start, failure, overlap), and kept nowhere. So a mirror killed at any moment goes on with nothing
   lost and nothing twice.
B. The destination appends a batch only at or after its log end offset (`keep_offsets`), so two mirrors at work on the
   same partition, or a retry of an append whose answer was lost, cannot double anything: one of them finds an overlap.
C. A partition that cannot be copied rests with its reason in the status; the others go on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog
import trio

from pipeline.client.cluster import Cluster
from pipeline.client.config import ConsumerConfig
from pipeline.client.consumer import (
    Consumer,
    PartitionFetchError,
    PartitionOffsetOutOfRangeError,
    open_consumer,
)
from pipeline.client.fetch_plan import FetchedBatches
from pipeline.client.offsets import EARLIEST, LATEST, list_offsets
from pipeline.client.raw_produce import RawProduced, raw_produce
from pipeline.errors import PipelineError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.table import Assignment
from pipeline.model import TopicPartition

POLL_TIMEOUT_S = 1.0

log = structlog.get_logger()


@dataclass(slots=True)
class PartitionCopy:
    """The state of one partition. `position` is None while the replica's end is not certain."""

    assignment: Assignment
    position: int | None = None
    high_watermark: int | None = None
    error: str | None = None
    retry_at: float = 0.0

    @property
    def lag(self) -> int | None:
        """Offsets that the replica is behind; None while that is not known."""
        if self.position is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.position)


class SourceCopier:
    """Copies all partitions assigned to it from one cluster. `run` does the work; `assign` may be called meanwhile."""

    def __init__(
        self, name: str, source: Cluster, destination: Cluster, config: MirrorConfig, metrics: MirrorMetrics
    ) -> None:
        self.name = name
        self.copies: dict[TopicPartition, PartitionCopy] = {}
        self._source = source
        self._destination = destination
        self._config = config
        self._metrics = metrics

    def assign(self, assignments: Iterable[Assignment]) -> None:
        """Copy these too."""
        for assignment in assignments:
            self.copies.setdefault(assignment.source.partition, PartitionCopy(assignment))

    def reject(self, partition: TopicPartition, reason: str) -> None:
        """Do not copy a partition (any more), and say why."""
        self.copies[partition].error = reason
        self.copies[partition].retry_at = float("inf")

    async def run(self) -> None:
        """Copy until cancelled."""
        settings = ConsumerConfig(
            max_bytes=self._config.fetch_max_bytes,
            max_partition_bytes=min(self._config.fetch_max_bytes, 4 * 1024 * 1024),
            max_wait_ms=self._config.fetch_max_wait_ms,
        )
        async with open_consumer(self._source, settings) as consumer:
            while True:
                self._drop_rejected(consumer)
                await self._find_positions(consumer)
                await self._copy_once(consumer)

    def _drop_rejected(self, consumer: Consumer) -> None:
        for partition in consumer.assignment:
            if self.copies[partition].retry_at == float("inf"):
                consumer.remove(partition)

    async def _find_positions(self, consumer: Consumer) -> None:
        """Ask the destination for the ends of replicas that are not certain, and fetch on from there."""
        now = trio.current_time()
        uncertain = {
            copy.assignment.replica: copy
            for copy in self.copies.values()
            if copy.position is None and copy.retry_at <= now
        }
        if not uncertain:
            return
        try:
            replicas = await self._list(self._destination, uncertain, LATEST)
            empty = {uncertain[r].assignment.source.partition for r, offset in replicas.items() if offset == 0}
            # The log of a source may begin later than 0 (retention); an empty replica begins where its source does.
            starts = await self._list(self._source, empty, EARLIEST) if empty else {}
        except PipelineError as error:
            for copy in uncertain.values():
                self._fail(consumer, copy, str(error))
            return
        for replica, copy in uncertain.items():
            partition = copy.assignment.source.partition
            copy.position = max(replicas[replica], starts.get(partition, 0))
            copy.error = None
            consumer.add(partition, copy.position)
            log.info("copying", source=self.name, partition=str(partition), replica=str(replica), offset=copy.position)

    async def _list(
        self, cluster: Cluster, partitions: Iterable[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        timeout_s = self._config.produce_timeout_ms / 1000
        listed = await list_offsets(cluster, dict.fromkeys(partitions, position), timeout_s=timeout_s)
        return {partition: found.offset for partition, found in listed.items()}

    async def _copy_once(self, consumer: Consumer) -> None:
        """Append what was fetched; what fails is looked at anew from the replica's end."""
        try:
            polled = await consumer.poll_batches(POLL_TIMEOUT_S)
        except (PartitionOffsetOutOfRangeError, PartitionFetchError) as error:
            self._fail(consumer, self.copies[error.topic_partition], str(error))
            return
        for fetched in _rounds(polled):
            due = {p: f for p, f in fetched.items() if p in consumer.assignment}
            replicas = {self.copies[p].assignment.replica: f.data for p, f in due.items()}
            results = await raw_produce(
                self._destination,
                replicas,
                keep_offsets=True,
                timeout_s=self._config.produce_timeout_ms / 1000,
            )
            for partition, batches in due.items():
                copy = self.copies[partition]
                self._conclude(consumer, copy, batches, results[copy.assignment.replica])
        for partition in consumer.assignment:
            copy = self.copies[partition]
            copy.high_watermark = consumer.high_watermark(partition)
            self._metrics.set_lag(copy.assignment.source, copy.lag)

    def _conclude(self, consumer: Consumer, copy: PartitionCopy, batches: FetchedBatches, result: RawProduced) -> None:
        if result.error is None:
            assert copy.position is not None
            self._metrics.count_copied(copy.assignment.source, len(batches.data), batches.next_offset - copy.position)
            copy.position = batches.next_offset
        elif result.is_overlap:
            # Appended before (a lost answer, or another mirror at work): no failure, but look where the end is.
            copy.position = None
            consumer.remove(copy.assignment.source.partition)
        else:
            self._fail(consumer, copy, str(result.error))

    def _fail(self, consumer: Consumer, copy: PartitionCopy, reason: str) -> None:
        partition = copy.assignment.source.partition
        consumer.remove(partition)
        copy.position = None
        copy.error = reason
        copy.retry_at = trio.current_time() + self._config.retry_backoff_ms / 1000
        self._metrics.count_failure(copy.assignment.source)
        log.warning("copy_failed", source=self.name, partition=str(partition), error=reason)


def _rounds(polled: Iterable[FetchedBatches]) -> list[dict[TopicPartition, FetchedBatches]]:
    """The fetched pieces in requests: each holds at most one piece of a partition, in order."""
    rounds: list[dict[TopicPartition, FetchedBatches]] = []
    depth: dict[TopicPartition, int] = {}
    for batches in polled:
        place = depth.get(batches.topic_partition, 0)
        depth[batches.topic_partition] = place + 1
        if place == len(rounds):
            rounds.append({})
        rounds[place][batches.topic_partition] = batches
    return rounds
