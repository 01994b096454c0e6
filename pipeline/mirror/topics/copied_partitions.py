"""Partitions of one source: those that its answer and the flows ask for, and their entries in the table. Pure.

A source may have 10,000 partitions, and is asked every few seconds. So all that follows from equal answers and the same
table is computed once (`known_sources.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.mirror.journals.table import Assignment, PartitionTable, Proposal, SourcePartition
from pipeline.model import TopicPartition
from pipeline.protocol.schema import ZERO_UUID
from pipeline.provenance import Origin


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WantedPartitions:
    """Partitions of the selected topics of a source."""

    proposals: Sequence[Proposal]
    """A proposal for each partition, in the order of the topics, without `refused`."""
    paths: Sequence[tuple[str, ...]]
    """Clusters that the records of each of these have passed, the source last."""
    refused: Sequence[tuple[TopicPartition, str]]
    """Partitions that come in a loop, or by a second path, with the reasons."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopiedPartitions:
    """Wanted partitions of a source that are copied into one replica topic."""

    entries: Sequence[tuple[SourcePartition, Assignment]]
    origins: Mapping[int, Origin]
    """Provenance by replica partition, also of `recreated`."""
    tokens: Mapping[int, str]
    """`Origin.token` of each of these, without `recreated`."""
    recreated: Sequence[tuple[SourcePartition, Assignment]]
    """Those of `entries` whose topics were created again since the entry."""
    needed: int
    """Number of partitions that the replica topic must have for these."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceEntries:
    """Entries of the table for one source."""

    copied: Mapping[str, CopiedPartitions]
    """Wanted partitions with entries, by replica topic."""
    recreated: Sequence[tuple[Proposal, Assignment]]
    """Those of them whose topics were created again since the entry."""
    unwanted: Sequence[Assignment]
    """Newest entries of all other partitions of the source."""


def entries_of(name: str, wanted: WantedPartitions, table: PartitionTable) -> SourceEntries:
    """Return the entries of the source of this name."""
    by_replica: dict[str, list[tuple[Proposal, tuple[str, ...], Assignment]]] = {}
    for proposal, path in zip(wanted.proposals, wanted.paths, strict=True):
        found = table.assignment(name, proposal.source.partition)
        if found is not None:
            by_replica.setdefault(found.replica.topic, []).append((proposal, path, found))
    known = (each for entries in by_replica.values() for each in entries)
    return SourceEntries(
        copied={topic: _copied(name, entries) for topic, entries in by_replica.items()},
        recreated=[(proposal, found) for proposal, _, found in known if is_recreated(proposal.source, found)],
        unwanted=_unwanted(name, wanted.proposals, table),
    )


def _copied(name: str, entries: Sequence[tuple[Proposal, tuple[str, ...], Assignment]]) -> CopiedPartitions:
    origins = {found.replica.partition: origin_of(name, path, found) for _, path, found in entries}
    recreated = [(proposal.source, found) for proposal, _, found in entries if is_recreated(proposal.source, found)]
    ended = {found.replica.partition for _, found in recreated}
    return CopiedPartitions(
        entries=[(proposal.source, found) for proposal, _, found in entries],
        origins=origins,
        tokens={number: origin.token() for number, origin in origins.items() if number not in ended},
        recreated=recreated,
        needed=1 + max(found.replica.partition for _, _, found in entries),
    )


def origin_of(name: str, path: tuple[str, ...], assignment: Assignment) -> Origin:
    """Return the provenance of the records of a source partition. `path` as in `WantedPartitions`."""
    topic, number = assignment.source.partition
    return Origin(source=name, path=path, topic=topic, topic_id=assignment.source.topic_id, partition=number)


def _unwanted(name: str, proposals: Iterable[Proposal], table: PartitionTable) -> list[Assignment]:
    wanted = {proposal.source.partition for proposal in proposals}
    found = table.newest_assignments_of(name)
    return [assignment for assignment in found if assignment.source.partition not in wanted]


def is_recreated(now: SourcePartition, assignment: Assignment) -> bool:
    """Return True if the source's topic was deleted and created again since the table got the assignment."""
    recorded = assignment.source.topic_id
    return ZERO_UUID not in (recorded, now.topic_id) and recorded != now.topic_id
