"""A destination of our brokers, whose replicas have the batches of their sources at the same offsets."""

from collections.abc import Mapping, Sequence

import trio

from pipeline.client.admin.gathered_offsets import GatheredOffsets
from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import IsolationLevel
from pipeline.client.consumer.batch_headers import BatchHeaders
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.client.producer.raw_produce import RawProduced, can_fence_copiers, can_keep_offsets, raw_produce
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.destination import Appended, ReplicaPlace
from pipeline.mirror.copying.divergence import LastBatches, last_batches
from pipeline.mirror.current_config import CurrentConfig
from pipeline.model import BrokerId, TopicPartition
from pipeline.protocol.messages.list_offsets import LATEST
from pipeline.protocol.messages.produce import NO_COPIER_EPOCH
from pipeline.records.batch import BatchHeader, read_header

logger = get_logger(__name__)


class ReplicaError(PipelineError):
    """A replica cannot be the copy of its source."""


class UncommittedTailError(PipelineError):
    """A partition continues as soon as all that its replica has is committed, or gone."""


class KeptOffsets:
    """Replicas at equal offsets."""

    isolation = IsolationLevel.READ_UNCOMMITTED

    def __init__(self, destination: Cluster, config: CurrentConfig) -> None:
        self._destination = destination
        self._offsets = GatheredOffsets(destination)
        self._config = config
        self._headers = BatchHeaders(destination)
        self._is_warned = False
        """True if it was logged that brokers do not refuse older copiers."""

    async def open(self) -> None:
        """Read nothing: the replicas themselves tell where they end."""

    async def run(self) -> None:
        """Record nothing until cancelled."""
        await trio.sleep_forever()

    async def locate(self, copy: PartitionCopy) -> ReplicaPlace:
        """Return the replica's log end offset. Older copiers of its group cannot move it any more.

        Raises ReplicaError if its broker cannot append at given offsets, and UncommittedTailError while it has batches
        that are not committed: they may be committed later, and the source may have lost them by then.
        """
        replica = copy.assignment.replica
        end = await self._end_of(replica)
        leader = self._destination.view.leader_of(replica)
        if leader is not None and not await can_keep_offsets(self._destination, leader):
            raise ReplicaError(f"broker {leader} of the destination cannot append batches at given offsets")
        if leader is not None and copy.copier_epoch != NO_COPIER_EPOCH:
            log_end = await self._claim(copy, leader)
            if log_end is not None:
                end = await self._end_of(replica)
                if end < log_end:
                    raise UncommittedTailError(f"waits until offsets {end} to {log_end - 1} of {replica} are committed")
        return ReplicaPlace(source_offset=end, replica_end=end)

    async def _end_of(self, replica: TopicPartition) -> int:
        return await self._offsets.offset_of(replica, LATEST, timeout_s=self._config.timeout_s)

    async def _claim(self, copy: PartitionCopy, leader: BrokerId) -> int | None:
        """Have the leader refuse older copiers, and return where its log ends; None if it is too old for that.

        Raises PipelineError.
        """
        if not await can_fence_copiers(self._destination, leader):
            if not self._is_warned:
                reason = f"broker {leader} of the hub knows no copier epochs: upgrade"
                logger.warning("copiers_not_fenced", reason=reason)
                self._is_warned = True
            return None
        replica = copy.assignment.replica
        claimed = await raw_produce(
            self._destination,
            {replica: b""},
            keep_offsets=True,
            timeout_s=self._config.timeout_s,
            sources={replica: copy.token},
            copier_epochs={replica: copy.copier_epoch},
        )
        error = claimed[replica].error
        if error is not None:
            raise error
        return claimed[replica].log_end_offset

    async def append(self, due: Sequence[tuple[PartitionCopy, FetchedBatches]]) -> Mapping[TopicPartition, Appended]:
        """Append all batches of each replica in one request for each leader, at their own offsets."""
        results = await raw_produce(
            self._destination,
            {copy.assignment.replica: batches.data for copy, batches in due},
            keep_offsets=True,
            timeout_s=self._config.timeout_s,
            ends={copy.assignment.replica: copy.replica_end for copy, _ in due},
            sources={copy.assignment.replica: copy.token for copy, _ in due},
            copier_epochs={copy.assignment.replica: copy.copier_epoch for copy, _ in due},
        )
        return {copy.source: _appended(copy, batches, results[copy.assignment.replica]) for copy, batches in due}

    async def last_header(self, copy: PartitionCopy, end: int, /) -> BatchHeader | None:
        """Return the header of the batch that covers the last offset before `end`."""
        return await self._headers.header_at(copy.assignment.replica, end - 1, timeout_s=self._config.timeout_s)

    async def last_batches(self, source: Cluster, copy: PartitionCopy, end: int, /) -> LastBatches:
        """Return the batches of both logs that cover the last offset before `end`."""
        replica = copy.assignment.replica
        return await last_batches(
            source, copy.source, self._destination, replica, end, timeout_s=self._config.timeout_s
        )


def _appended(copy: PartitionCopy, batches: FetchedBatches, result: RawProduced) -> Appended:
    if result.error is None:
        return Appended(replica_end=batches.next_offset)
    if not result.is_overlap:
        return Appended(error=result.error)
    if result.log_end_offset == copy.replica_end:
        return Appended(error=result.error, straddling_end=read_header(batches.data).next_offset)
    # Appended before (a lost answer, another mirror), or lost by the replica.
    return Appended(error=result.error, is_misplaced=True)
