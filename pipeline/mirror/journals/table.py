"""The partition table: which replica partition is the copy of which source partition. Pure: a fold over a journal.

Topics of several live clusters become one aggregate topic: their partitions are laid side by side. The journal is a
topic of the destination; this module defines what its records mean.

Invariants:
A. Replaying the same journal gives the same table in every mirror and audit. So a record counts or is skipped by its
   bytes and the records before it alone.
B. An entry never changes and is never removed: the first record that names a source partition counts, later ones have
   no effect. So two mirrors that propose at the same moment agree as soon as both have read on. A record that names the
   topic id which it replaces is the one exception: it adds a new entry for the topic that was created again, if that id
   is still the one of the source partition's newest entry.
C. Within a replica topic partitions are numbered by first appearance, without gaps: growth appends. A record that takes
   over is the one exception: the replica topic was created again, too, and the new entry has the partition of the old.
D. A name of a source belongs to the first cluster id that a record gives for the name.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from pipeline.errors import PipelineError
from pipeline.mirror.journals.record_document import RecordDocument
from pipeline.mirror.selection import is_of_its_cluster
from pipeline.model import TopicPartition
from pipeline.provenance import MAX_NAME_LENGTH, MAX_PARTITIONS

TABLE_TOPIC = "_mirror_partitions"
RECORD_VERSION = 1
REPLACING_VERSION = 2
"""Version of records that replace a topic id, so that programs that do not know them count them as skipped."""
TAKING_OVER_VERSION = 3
"""Version of records that replace a topic id and take over the replica partition, for the same reason."""
MAX_ENTRIES = 1_000_000
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class PartitionTableError(PipelineError):
    """A record of the journal is not an assignment, or the journal is not the one that was read before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartition:
    """A partition of a live cluster; `topic_id` distinguishes recreated topics of one name.

    `cluster` is the name of the source in the settings. `cluster_id` is None if the cluster has no id, or if a mirror
    that knew no ids wrote the record.
    """

    cluster: str
    partition: TopicPartition
    topic_id: UUID
    cluster_id: str | None = None


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
    replaces: UUID | None = None
    """Id of the source's topic of this name that was deleted; None for a source partition without an entry."""
    takes_over: bool = False
    """True if the new entry has the replica partition of the one that it replaces, as the replica was created again."""

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
        if source.cluster_id is not None:
            document["cluster_id"] = source.cluster_id
        if self.replaces is not None:
            version = TAKING_OVER_VERSION if self.takes_over else REPLACING_VERSION
            document |= {"version": version, "replaces": str(self.replaces)}
        return key, json.dumps(document, separators=(",", ":")).encode()


def decode_proposal(value: bytes | None) -> Proposal:
    """Return the proposal in a journal record's value. Unknown fields are ignored. Raises PartitionTableError."""
    document = RecordDocument(value, PartitionTableError)
    version = document.version(newest=TAKING_OVER_VERSION)
    return Proposal(
        source=SourcePartition(
            cluster=_name(document, "cluster"),
            partition=TopicPartition(_topic(document, "topic"), document.number("partition", MAX_PARTITIONS - 1)),
            topic_id=document.id("topic_id"),
            cluster_id=document.optional_text("cluster_id", MAX_NAME_LENGTH),
        ),
        replica_topic=_topic(document, "replica_topic"),
        replaces=document.id("replaces") if version >= REPLACING_VERSION else None,
        takes_over=version == TAKING_OVER_VERSION,
    )


class PartitionTable:
    """The partition table, as far as the journal was read."""

    def __init__(self) -> None:
        self._entries: list[Assignment] = []
        self._by_source: dict[str, dict[TopicPartition, Assignment]] = defaultdict(dict)
        """Newest entry of each source partition, by source."""
        self._replaced: set[tuple[str, TopicPartition, UUID]] = set()
        """Source partitions with their topics' ids whose entries are not the newest ones."""
        self._taken_over: set[tuple[str, TopicPartition, UUID]] = set()
        """Those of them whose replica partitions other entries have."""
        self._sizes: dict[str, int] = defaultdict(int)
        self._cluster_ids: dict[str, str] = {}
        self._sizes_by_source: dict[str, int] = defaultdict(int)
        """Number of entries of each source, those of replaced topics included."""
        self._feeding: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
        """Source and topic of the entries of each replica topic."""
        self._replicas: dict[tuple[str, str], str] = {}
        """Replica topic of the first entry of each source and topic."""

    def apply(self, proposal: Proposal) -> None:
        """Apply the next journal record. Raises PartitionTableError for a record beyond the table's bounds."""
        source = proposal.source
        if self._is_new(proposal):
            self.require_room(proposal.replica_topic)
            before = self._by_source[source.cluster].get(source.partition)
            if before is not None:
                self._replaced.add((source.cluster, source.partition, before.source.topic_id))
            if before is not None and proposal.takes_over:
                self._taken_over.add((source.cluster, source.partition, before.source.topic_id))
                replica = before.replica
            else:
                replica = TopicPartition(proposal.replica_topic, self._sizes.get(proposal.replica_topic, 0))
                self._sizes[proposal.replica_topic] = replica.partition + 1
            entry = Assignment(source=source, replica=replica)
            self._entries.append(entry)
            self._by_source[source.cluster][source.partition] = entry
            self._sizes_by_source[source.cluster] += 1
            topic = (source.cluster, source.partition.topic)
            self._feeding[proposal.replica_topic][topic] = None
            self._replicas.setdefault(topic, proposal.replica_topic)
        if source.cluster_id is not None:
            self._cluster_ids.setdefault(source.cluster, source.cluster_id)

    def _is_new(self, proposal: Proposal) -> bool:
        """Return True if the proposal adds an entry (invariant B)."""
        source = proposal.source
        newest = self.assignment(source.cluster, source.partition)
        if proposal.replaces is None or newest is None:
            return proposal.replaces is None and newest is None
        is_other = source.topic_id != newest.source.topic_id == proposal.replaces
        has_replica = not proposal.takes_over or newest.replica.topic == proposal.replica_topic
        return is_other and has_replica and not self.is_replaced(source)

    def require_room(self, replica_topic: str) -> None:
        """Raise PartitionTableError if the table cannot have another entry of this replica topic."""
        if self._sizes.get(replica_topic, 0) >= MAX_PARTITIONS or len(self._entries) >= MAX_ENTRIES:
            raise PartitionTableError(f"asks for one partition of {replica_topic} too many")

    def assignment(self, cluster: str, partition: TopicPartition) -> Assignment | None:
        """Return the newest entry of a source partition; None if it has none."""
        return self._by_source.get(cluster, {}).get(partition)

    def assignments(self) -> list[Assignment]:
        """Return all entries in the order of the journal, those of replaced topics included."""
        return list(self._entries)

    def newest_assignments(self) -> list[Assignment]:
        """Return the newest entry of each source partition."""
        return [entry for entries in self._by_source.values() for entry in entries.values()]

    def newest_assignments_of(self, cluster: str) -> list[Assignment]:
        """Return the newest entry of each partition of a source."""
        return list(self._by_source.get(cluster, {}).values())

    @property
    def size(self) -> int:
        """Number of entries."""
        return len(self._entries)

    def size_of(self, cluster: str) -> int:
        """Return the number of entries of a source."""
        return self._sizes_by_source.get(cluster, 0)

    def partition_count(self, replica_topic: str) -> int:
        """Return the number of partitions that the entries of a replica topic have."""
        return self._sizes.get(replica_topic, 0)

    def sources_of(self, replica_topic: str) -> list[str]:
        """Return the names of the sources that have entries of the replica topic, in the order of the journal."""
        return list(dict.fromkeys(source for source, _ in self._feeding.get(replica_topic, ())))

    def topics_of(self, replica_topic: str) -> list[tuple[str, str]]:
        """Return source and topic of the entries of the replica topic, in the order of the journal."""
        return list(self._feeding.get(replica_topic, ()))

    def replica_of(self, cluster: str, topic: str) -> str | None:
        """Return the replica topic of a source topic's first entry; None if the topic has no entries."""
        return self._replicas.get((cluster, topic))

    def cluster_id(self, cluster: str) -> str | None:
        """Return the cluster id that belongs to a name of a source; None if no record gives one."""
        return self._cluster_ids.get(cluster)

    def names_of(self, cluster_id: str) -> list[str]:
        """Return the names of sources to which this cluster id belongs, in the order of the journal."""
        return [name for name, known in self._cluster_ids.items() if known == cluster_id]

    def has_source(self, cluster: str) -> bool:
        """Return True if there is an entry of a source of this name."""
        return cluster in self._by_source

    def is_replaced(self, source: SourcePartition) -> bool:
        """Return True if this topic was replaced. An answer that still has the topic is an old one."""
        return (source.cluster, source.partition, source.topic_id) in self._replaced

    def is_taken_over(self, source: SourcePartition) -> bool:
        """Return True if this topic was replaced, and another entry has its replica partition: its copy is gone."""
        return (source.cluster, source.partition, source.topic_id) in self._taken_over

    def missing(self, wanted: Iterable[Proposal]) -> list[Proposal]:
        """Return the proposals to append, in their order: those that would add an entry.

        If no record gives the cluster id of a source, the first proposal that gives it is appended as well.
        """
        found: list[Proposal] = []
        with_id = set(self._cluster_ids)
        for proposal in wanted:
            source = proposal.source
            is_first_id = source.cluster_id is not None and source.cluster not in with_id
            if is_first_id or self._is_new(proposal):
                found.append(proposal)
                with_id |= {source.cluster} if is_first_id else set()
        return found


def refusal_of_topic(name: str) -> str | None:
    """Return the reason why no topic of this name can be a replica or have one; None if there is none."""
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name)} characters, at most {MAX_NAME_LENGTH} are allowed"
    if not _LEGAL_NAME.fullmatch(name) or name in {".", ".."}:
        return "is no legal name of a topic"
    return "is a name of topics that are never mirrored" if is_of_its_cluster(name) else None


def _name(document: RecordDocument, field: str) -> str:
    value = document.text(field, MAX_NAME_LENGTH)
    if not _LEGAL_NAME.fullmatch(value):
        raise PartitionTableError(f"`{field}` has characters other than letters, digits, dots, underscores and hyphens")
    return value


def _topic(document: RecordDocument, field: str) -> str:
    value = document.text(field, MAX_NAME_LENGTH)
    refusal = refusal_of_topic(value)
    if refusal is not None:
        raise PartitionTableError(f"`{field}` {refusal}")
    return value
