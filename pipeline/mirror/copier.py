"""Copies one live cluster: fetches whole batches, and appends them to the destination at the same offsets.

Invariants:
A. The position of a partition is the replica's log end offset and nothing else. The mirror asks the destination for it
   whenever it is not certain (start, failure, overlap), and keeps it nowhere. So a mirror killed at any moment goes on
   with nothing lost and nothing doubled.
B. The destination appends a batch only at the batch's own offsets, and only to a log that ends where the mirror last
   saw it end. So two mirrors of one partition, or a retry of an append whose answer was lost, cannot double anything. A
   replica that lost its end, or was recreated, gets no gap: the mirror asks for its new end.
C. Only batches that were fetched at a partition's present position are appended. After a failure, batches fetched
   before it are dropped, so no gap can arise.
D. A partition that cannot be copied rests with its reason in the status, which stays until copying works again; the
   others go on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import structlog
import trio

from pipeline.client.admin.offsets import list_offsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import ConsumerConfig
from pipeline.client.consumer.consumer import Consumer, open_consumer
from pipeline.client.consumer.errors import PartitionFetchError, PartitionOffsetOutOfRangeError
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.raw_produce import RawProduced, can_keep_offsets, raw_produce
from pipeline.errors import PipelineError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.table import Assignment
from pipeline.model import BrokerId, TopicPartition
from pipeline.net.signals import Wakeup
from pipeline.protocol.messages.list_offsets import EARLIEST, LATEST

MAX_LOCATING = 20
POLL_TIMEOUT_S = 1.0

logger = structlog.get_logger()


class ReplicaError(PipelineError):
    """A replica cannot be the copy of its source."""


@dataclass(slots=True)
class PartitionCopy:
    """State of one partition. `position` is None while the replica's log end offset is not certain (invariant A)."""

    assignment: Assignment
    position: int | None = None
    replica_end: int = 0
    """Log end offset of the replica when last seen: `position`, or 0 for an empty replica of a later start."""
    high_watermark: int | None = None
    error: str | None = None
    retry_at: float = 0.0
    is_rejected: bool = False
    """True if the partition must not be copied (reason: `error`). Never reset: a new state replaces this one."""
    is_being_located: bool = False

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return self.assignment.source.partition

    @property
    def lag(self) -> int | None:
        """Offsets up to the source's last known high watermark that the replica lacks; None if either is not known."""
        if self.position is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.position)


class SourceCopier:
    """Copies the assigned partitions of one cluster while `run` runs. `assign` and `reject` may be called meanwhile."""

    def __init__(
        self, name: str, source: Cluster, destination: Cluster, config: MirrorConfig, metrics: MirrorMetrics
    ) -> None:
        self.name = name
        self.copies: dict[TopicPartition, PartitionCopy] = {}
        self._source = source
        self._destination = destination
        self._config = config
        self._metrics = metrics
        self._timeout_s = config.produce_timeout_ms / 1000
        self._locating: dict[BrokerId | None, trio.CapacityLimiter] = {}
        """Limiters by destination leader, so that a leader that is away does not delay partitions of the others."""
        self._uncertain = Wakeup()

    def assign(self, assignment: Assignment) -> None:
        """Copy a partition, also one that was rejected before."""
        partition = assignment.source.partition
        copy = self.copies.get(partition)
        if copy is None or copy.is_rejected:
            # A new state: requests under way for the rejected one must not change it.
            self.copies[partition] = PartitionCopy(assignment)
            self._uncertain.set()

    def reject(self, assignment: Assignment, reason: str) -> None:
        """Stop copying a partition until it is assigned again; the status shows `reason`."""
        copy = self.copies.setdefault(assignment.source.partition, PartitionCopy(assignment))
        if not (copy.is_rejected and copy.error == reason):
            logger.warning("copy_rejected", source=self.name, partition=str(copy.source), error=reason)
        copy.is_rejected, copy.position, copy.high_watermark, copy.error = True, None, None, reason

    async def run(self) -> None:
        """Copy until cancelled."""
        settings = ConsumerConfig(
            max_bytes=self._config.fetch_max_bytes,
            max_partition_bytes=min(self._config.fetch_max_bytes, 4 * 1024 * 1024),
            max_wait_ms=self._config.fetch_max_wait_ms,
        )
        async with open_consumer(self._source, settings) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_located, consumer)
            while True:
                await self._copy_once(consumer)

    async def _keep_located(self, consumer: Consumer) -> None:
        """Locate every partition whose position is not certain, each in a task of its own, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._uncertain.clear()
                waiting = [
                    copy
                    for copy in self.copies.values()
                    if copy.position is None and not (copy.is_rejected or copy.is_being_located)
                ]
                for copy in waiting:
                    if copy.retry_at <= trio.current_time():
                        copy.is_being_located = True
                        nursery.start_soon(self._locate, consumer, copy)
                retries = [copy.retry_at for copy in waiting if not copy.is_being_located]
                with trio.move_on_at(min(retries, default=float("inf"))):
                    await self._uncertain.wait()

    async def _locate(self, consumer: Consumer, copy: PartitionCopy) -> None:
        """Ask for the replica's log end offset and fetch from there."""
        try:
            leader = self._destination.view.leader_of(copy.assignment.replica)
            async with self._locating.setdefault(leader, trio.CapacityLimiter(MAX_LOCATING)):
                end, position = await self._end_of_replica(copy)
        except PipelineError as error:
            self._rest(consumer, copy, str(error))
        else:
            if not copy.is_rejected:
                copy.replica_end, copy.position = end, position
                consumer.add(copy.source, position, copy.assignment.source.topic_id)
                if copy.high_watermark is None:
                    names = {"partition": str(copy.source), "replica": str(copy.assignment.replica)}
                    logger.info("copying", source=self.name, **names, offset=position)
        finally:
            copy.is_being_located = False
            self._uncertain.set()

    async def _end_of_replica(self, copy: PartitionCopy) -> tuple[int, int]:
        """Return the replica's log end offset and the offset to fetch; an empty one begins where its source does."""
        replica = copy.assignment.replica
        end = (await list_offsets(self._destination, {replica: LATEST}, timeout_s=self._timeout_s))[replica].offset
        leader = self._destination.view.leader_of(replica)
        if leader is not None and not await can_keep_offsets(self._destination, leader):
            raise ReplicaError(f"broker {leader} of the destination cannot append batches at given offsets")
        if end > 0:
            return end, end
        first = await list_offsets(self._source, {copy.source: EARLIEST}, timeout_s=self._timeout_s)
        return end, first[copy.source].offset

    async def _copy_once(self, consumer: Consumer) -> None:
        """Append the batches of one poll. A partition that fails rests, and is located again."""
        try:
            polled = await consumer.poll_batches(POLL_TIMEOUT_S)
        except (PartitionOffsetOutOfRangeError, PartitionFetchError) as error:
            self._rest(consumer, self.copies[error.topic_partition], str(error))
            return
        for fetched in requests_of(polled, self._config.fetch_max_bytes):
            found = [(self.copies[partition], batches) for partition, batches in fetched.items()]
            due = [(copy, batches) for copy, batches in found if copy.position == batches.position]  # invariant C
            replicas = {copy.assignment.replica: batches.data for copy, batches in due}
            ends = {copy.assignment.replica: copy.replica_end for copy, _ in due}
            results = await raw_produce(
                self._destination, replicas, keep_offsets=True, timeout_s=self._timeout_s, ends=ends
            )
            for copy, batches in due:
                self._conclude(consumer, copy, batches, results[copy.assignment.replica])
        for partition in consumer.assignment:
            self._look_at(consumer, self.copies[partition])

    def _look_at(self, consumer: Consumer, copy: PartitionCopy) -> None:
        """Take note of the source's high watermark. A partition that has caught up has no error."""
        if copy.is_rejected:
            consumer.remove(copy.source)
            return
        copy.high_watermark = consumer.high_watermark(copy.source)
        self._metrics.set_lag(copy.assignment.source, copy.lag)
        if copy.lag == 0:
            copy.error = None

    def _conclude(self, consumer: Consumer, copy: PartitionCopy, batches: FetchedBatches, result: RawProduced) -> None:
        if copy.is_rejected:
            return
        if result.error is None:
            offsets = batches.next_offset - batches.position
            self._metrics.count_copied(copy.assignment.source, len(batches.data), offsets)
            copy.position = copy.replica_end = batches.next_offset
            copy.error = None
        elif not result.is_overlap:
            self._rest(consumer, copy, str(result.error))
        elif result.log_end_offset == copy.replica_end:
            reason = (
                f"a batch of the source begins before the end of the replica, {copy.replica_end}: they are not copies"
            )
            self._rest(consumer, copy, reason)
        else:
            # Appended before (a lost answer, another mirror), or lost by the replica: ask for its end (invariant B).
            copy.position = None
            consumer.remove(copy.source)
            self._uncertain.set()

    def _rest(self, consumer: Consumer, copy: PartitionCopy, reason: str) -> None:
        """Show the reason in the status, and locate the partition again after the back-off (invariant D)."""
        consumer.remove(copy.source)
        self._metrics.count_failure(copy.assignment.source)
        logger.warning("copy_failed", source=self.name, partition=str(copy.source), error=reason)
        if not copy.is_rejected:
            copy.position, copy.high_watermark, copy.error = None, None, reason
            copy.retry_at = trio.current_time() + self._config.retry_backoff_ms / 1000
            self._uncertain.set()


def requests_of(polled: Iterable[FetchedBatches], max_bytes: int) -> list[dict[TopicPartition, FetchedBatches]]:
    """Put fetched pieces into requests: at most one piece of a partition each, in order, and at most `max_bytes`.

    A larger piece is a request of its own.
    """
    requests: list[dict[TopicPartition, FetchedBatches]] = []
    sizes: list[int] = []
    next_place: dict[TopicPartition, int] = {}
    for batches in polled:
        place, size = next_place.get(batches.topic_partition, 0), len(batches.data)
        while place < len(requests) and sizes[place] + size > max_bytes:
            place += 1
        if place == len(requests):
            requests.append({})
            sizes.append(0)
        requests[place][batches.topic_partition] = batches
        sizes[place] += size
        next_place[batches.topic_partition] = place + 1
    return requests
