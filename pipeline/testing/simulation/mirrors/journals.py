"""Journals of mirrors as an outsider reads them in the logs of the hub: table, gap ledger and source epochs.

The records are read by code of their own, so that a mirror that misreads them is noticed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from pipeline.broker.replication.partition import Partition
from pipeline.mirror.journals.epochs import EPOCHS_TOPIC
from pipeline.mirror.journals.gaps import GAPS_TOPIC, GapReason
from pipeline.mirror.journals.pauses import PAUSES_TOPIC
from pipeline.mirror.journals.table import TABLE_TOPIC
from pipeline.model import Offset, TopicPartition
from pipeline.records.record import iterate_records
from pipeline.testing.simulation.cluster import SimulatedCluster, bytes_of_log
from pipeline.testing.simulation.mirrors.logs import Explained

JOURNALS = (TABLE_TOPIC, GAPS_TOPIC, EPOCHS_TOPIC, PAUSES_TOPIC)


class SourceName(NamedTuple):
    """A partition of a source. A topic that was created again has another id, and other partitions."""

    source: str
    partition: TopicPartition
    topic_id: UUID | None

    def __str__(self) -> str:
        return f"{self.partition} of {self.source}"


Table = Mapping[SourceName, TopicPartition]
"""Replica partitions by their sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGap:
    """A record of the ledger."""

    source: str
    partition: TopicPartition
    first: int
    last: int | None
    """None if the end is not known: the topic was created again."""
    reason: str
    replica: TopicPartition
    topic_id: UUID | None
    """Id of the deleted topic, if the topic was created again."""


@dataclass(eq=False)
class HubJournals:
    """Reads the journals, and demands that no entry of the table ever changes."""

    hub: SimulatedCluster
    problems: list[str] = field(default_factory=list)
    assigned: dict[SourceName, TopicPartition] = field(default_factory=dict)
    """The table, as far as it was committed when it was last read."""
    _gaps: dict[RecordedGap, None] = field(default_factory=dict)
    _read: dict[tuple[str, str], tuple[Partition, Offset, list[Any]]] = field(default_factory=dict)

    def read_table(self) -> None:
        """Read the committed table on its leader, if that serves."""
        name = TopicPartition(TABLE_TOPIC, 0)
        state = self.hub.states().get(name)
        leader = None if state is None else self.hub.machine(state.leader)
        replica = None if leader is None else self.hub.replicas(name).get(leader.name)
        if leader is None or replica is None or not replica.is_leader:
            return
        found = _fold(self._documents(leader.name, replica, replica.high_watermark))
        for source, known in self.assigned.items():
            if source in found and found[source] != known:
                self.problems.append(f"the table has {source} at {found[source]}, and had it at {known}")
        self.assigned |= found

    def source_at(self, replica: TopicPartition) -> SourceName | None:
        """Return the source partition that the committed table has for a replica partition, None if it has none."""
        return next((source for source, assigned in self.assigned.items() if assigned == replica), None)

    def source_of(self, replica: TopicPartition) -> SourceName | None:
        """Return the source partition that the table has for a replica partition, None if it has none."""
        self.read_table()
        for table in (self.assigned, *map(_fold, self._of_all_replicas(TABLE_TOPIC))):
            for source, assigned in table.items():
                if assigned == replica:
                    return source
        return None

    def read_gaps(self) -> None:
        """Read the ledger on all brokers that serve."""
        for documents in self._of_all_replicas(GAPS_TOPIC):
            for _, document in documents:
                topic_id = document.get("topic_id")
                gap = RecordedGap(
                    source=document["source"],
                    partition=TopicPartition(document["topic"], document["partition"]),
                    first=document["first"],
                    last=document["last"],
                    reason=document["reason"],
                    replica=TopicPartition(document["replica_topic"], document["replica_partition"]),
                    topic_id=None if topic_id is None else UUID(topic_id),
                )
                self._gaps[gap] = None

    def gaps(self) -> list[RecordedGap]:
        """Return all gaps that any replica of the ledger ever had, as far as it was read."""
        return list(self._gaps)

    def explained(self, replica: TopicPartition) -> Explained:
        """Return the offsets of a replica that the ledger explains. The end of a deleted topic explains none."""
        return Explained((gap.first, gap.last) for gap in self._gaps if gap.replica == replica and gap.last is not None)

    def deleted(self, replica: TopicPartition) -> list[tuple[int, int]]:
        """Return the first and last offsets of the ranges that a replica lacks because the source had deleted them.

        Records that a source lost, and wrote others at their offsets, are not among them: there the two differ.
        """
        reasons = (GapReason.START, GapReason.RETENTION)
        return [
            (gap.first, gap.last)
            for gap in self._gaps
            if gap.replica == replica and gap.last is not None and gap.reason in reasons
        ]

    def epochs(self, source: SourceName) -> set[int]:
        """Return the leader epochs that are recorded for a source partition."""
        key = f"{source.source}/{source.partition.topic}/{source.partition.partition}"
        return {
            epoch
            for documents in self._of_all_replicas(EPOCHS_TOPIC)
            for found, document in documents
            if found == key and UUID(document["topic_id"]) == source.topic_id
            for epoch, _ in document["epochs"]
        }

    def _of_all_replicas(self, topic: str) -> Iterator[list[Any]]:
        for machine, replica in self.hub.replicas(TopicPartition(topic, 0)).items():
            yield self._documents(machine, replica, replica.log.log_end_offset)

    def _documents(self, machine: str, replica: Partition, end: Offset) -> list[Any]:
        """Return keys and values of a log up to an offset."""
        key = machine, replica.topic_partition.topic
        known = self._read.get(key)
        if known is None or known[0] is not replica or known[1] != end:
            known = self._read[key] = replica, end, list(_decode(bytes_of_log(replica, end)))
        return known[2]


def _decode(data: bytes) -> Iterator[tuple[str, Any]]:
    for record in iterate_records(memoryview(data)):
        yield bytes(record.key or b"").decode(), json.loads(bytes(record.value or b""))


def _fold(documents: list[Any]) -> dict[SourceName, TopicPartition]:
    """Return the table: the first record of a partition counts, and each that replaces the newest topic."""
    table: dict[SourceName, TopicPartition] = {}
    newest: dict[tuple[str, TopicPartition], UUID] = {}
    sizes: dict[str, int] = {}
    for _, document in documents:
        topic_id, replaced = UUID(document["topic_id"]), document.get("replaces")
        name = document["cluster"], TopicPartition(document["topic"], document["partition"])
        source = SourceName(*name, topic_id)
        expected = None if replaced is None else UUID(replaced)
        if source not in table and newest.get(name) == expected:
            topic = document["replica_topic"]
            table[source] = TopicPartition(topic, sizes.get(topic, 0))
            newest[name] = topic_id
            sizes[topic] = sizes.get(topic, 0) + 1
    return table
