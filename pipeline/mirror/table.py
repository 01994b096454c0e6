"""The partition table: which replica partition is the copy of which source partition. Pure: a fold over a journal.

Topics of several live clusters become one aggregate topic: their partitions are laid side by side. The journal is a
topic of the destination; this module defines what its records mean.

Invariants:
A. Replaying the same journal gives the same table in every mirror.
B. An entry never changes and is never removed: the first record that names a source partition counts, later ones have
   no effect. So two mirrors that propose at the same moment agree as soon as both have read on.
C. Within a replica topic partitions are numbered by first appearance, without gaps: growth appends.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from pipeline.errors import PipelineError
from pipeline.model import TopicPartition

TABLE_TOPIC = "_mirror_partitions"
RECORD_VERSION = 1


class PartitionTableError(PipelineError):
    """A record of the journal is not an assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartition:
    """A partition of a live cluster; `topic_id` distinguishes recreated topics of one name."""

    cluster: str
    partition: TopicPartition
    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An entry of the table: a source partition and its replica."""

    source: SourcePartition
    replica: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A journal record: give this source partition the next free partition of `replica_topic`."""

    source: SourcePartition
    replica_topic: str

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value of the journal record."""
        source = self.source
        key = f"{source.cluster}/{source.partition.topic}/{source.partition.partition}".encode()
        document = {
            "version": RECORD_VERSION,
            "cluster": source.cluster,
            "topic": source.partition.topic,
            "partition": source.partition.partition,
            "topic_id": str(source.topic_id),
            "replica_topic": self.replica_topic,
        }
        return key, json.dumps(document, separators=(",", ":")).encode()


def decode_proposal(value: bytes) -> Proposal:
    """Return the proposal in a journal record's value. Raises PartitionTableError."""
    try:
        document = json.loads(value)
        if document["version"] != RECORD_VERSION:
            raise PartitionTableError(f"{TABLE_TOPIC} holds version {document['version']}; this is {RECORD_VERSION}")
        return Proposal(
            source=SourcePartition(
                cluster=str(document["cluster"]),
                partition=TopicPartition(str(document["topic"]), int(document["partition"])),
                topic_id=UUID(document["topic_id"]),
            ),
            replica_topic=str(document["replica_topic"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PartitionTableError(f"{TABLE_TOPIC} holds a record that is not an assignment: {error!r}") from error


class PartitionTable:
    """The partition table, as far as the journal was read."""

    def __init__(self) -> None:
        self._by_source: dict[tuple[str, TopicPartition], Assignment] = {}
        self._sizes: dict[str, int] = defaultdict(int)

    def apply(self, proposal: Proposal) -> None:
        """Apply the next journal record."""
        key = (proposal.source.cluster, proposal.source.partition)
        if key not in self._by_source:
            replica = TopicPartition(proposal.replica_topic, self._sizes[proposal.replica_topic])
            self._sizes[proposal.replica_topic] += 1
            self._by_source[key] = Assignment(source=proposal.source, replica=replica)

    def assignment(self, cluster: str, partition: TopicPartition) -> Assignment | None:
        """Return the entry of a source partition; None if it has none."""
        return self._by_source.get((cluster, partition))

    def assignments(self) -> list[Assignment]:
        """Return all entries, in the order of the journal."""
        return list(self._by_source.values())

    def partition_count(self, replica_topic: str) -> int:
        """Return the number of partitions that the replica topic must have."""
        return self._sizes.get(replica_topic, 0)

    def missing(self, wanted: Iterable[Proposal]) -> list[Proposal]:
        """Return the proposals whose source partition has no entry yet, in their order."""
        return [p for p in wanted if (p.source.cluster, p.source.partition) not in self._by_source]
