"""The destination of a mirror as a copier sees it: the places of replicas, and the append of fetched batches.

Each mode of `destination.mode` is one implementation. Positions are offsets of the source; only an implementation knows
which offsets its replicas have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.config import IsolationLevel
from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.errors import PipelineError
from pipeline.mirror.copying.copies import PartitionCopy
from pipeline.mirror.copying.divergence import LastBatches
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import BatchHeader


class ReplicaHaltedError(PipelineError):
    """A replica cannot continue before somebody does what the message says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """Place of a replica: the offset of the source after the records that it has, and its own log end offset."""

    source_offset: int
    replica_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Result of an append to one replica. Without an error the replica has all batches, and ends at `replica_end`."""

    replica_end: int = -1
    error: PipelineError | None = None
    is_misplaced: bool = False
    """True if the replica does not stand where the batches begin, so that it must be located again."""
    straddling_end: int | None = None
    """Offset after a batch that begins before the replica's end, so that the replica cannot take it."""


class Destination(Protocol):
    """The replicas of a mirror."""

    isolation: IsolationLevel
    """Batches that are fetched from the source."""

    async def open(self) -> None:
        """Read what the destination has recorded of replicas. Raises PipelineError."""
        ...

    async def run(self) -> None:
        """Keep what the implementation records of replicas up to date, until cancelled."""
        ...

    async def locate(self, copy: PartitionCopy) -> ReplicaPlace:
        """Return where the replica stands. Raises ReplicaHaltedError; PipelineError if it is not known now."""
        ...

    async def append(self, due: Sequence[tuple[PartitionCopy, FetchedBatches]]) -> Mapping[TopicPartition, Appended]:
        """Append batches that begin at their copies' positions. Return the result of each source partition.

        Never raises for a single partition.
        """
        ...

    async def last_header(self, copy: PartitionCopy, end: int, /) -> BatchHeader | None:
        """Return the header of the replica's batch before the position `end`, as its source should have it.

        None if there is none, or the source's batches are others. Raises KafkaError, NetworkError and
        DeadlineExceededError.
        """
        ...

    async def last_batches(self, source: Cluster, copy: PartitionCopy, end: int, /) -> LastBatches:
        """Return the batches of replica and source with the record before the position `end`.

        Raises PartitionFetchError, KafkaError, NetworkError and DeadlineExceededError.
        """
        ...


def is_fenced(error: Exception) -> bool:
    """Return True if a newer copier has claimed the partition, or this mirror does not belong to the group that has."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.INVALID_PRODUCER_EPOCH
