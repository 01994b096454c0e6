"""Journals of mirrors as an outsider reads them in the logs of the hub: table, gap ledger and source epochs.

The records are read by code of their own, so that a mirror that misreads them is noticed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pipeline.broker.replication.partition import Partition
from pipeline.mirror.journals.epochs import EPOCHS_TOPIC
from pipeline.mirror.journals.gaps import GAPS_TOPIC
from pipeline.mirror.journals.table import TABLE_TOPIC
from pipeline.model import Offset, TopicPartition
from pipeline.records.record import iterate_records
from pipeline.testing.simulation.cluster import SimulatedCluster, bytes_of_log
from pipeline.testing.simulation.mirrors.logs import Explained

JOURNALS = (TABLE_TOPIC, GAPS_TOPIC, EPOCHS_TOPIC)
SourceName = tuple[str, TopicPartition]
"""A source's name, and one of its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGap:
    """A record of the ledger."""

    first: int
    last: int
    reason: str
    replica: TopicPartition


@dataclass(eq=False)
class HubJournals:
    """Reads the journals, and demands that no entry of the table ever changes."""

    hub: SimulatedCluster
    problems: list[str] = field(default_factory=list)
    assigned: dict[SourceName, TopicPartition] = field(default_factory=dict)
    """The table, as far as it was committed when it was last read."""
    _gaps: dict[SourceName, dict[RecordedGap, None]] = field(default_factory=dict)
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
                gap = RecordedGap(
                    first=document["first"],
                    last=document["last"],
                    reason=document["reason"],
                    replica=TopicPartition(document["replica_topic"], document["replica_partition"]),
                )
                partition = TopicPartition(document["topic"], document["partition"])
                self._gaps.setdefault((document["source"], partition), {})[gap] = None

    def gaps(self, source: SourceName) -> list[RecordedGap]:
        """Return the gaps of a source partition that any replica of the ledger ever had, as far as it was read."""
        return list(self._gaps.get(source, ()))

    def explained(self, source: SourceName) -> Explained:
        """Return the offsets that the ledger explains."""
        return Explained((gap.first, gap.last) for gap in self.gaps(source))

    def epochs(self, source: SourceName) -> set[int]:
        """Return the leader epochs that are recorded for a source partition."""
        name, (topic, partition) = source
        key = f"{name}/{topic}/{partition}"
        return {
            epoch
            for documents in self._of_all_replicas(EPOCHS_TOPIC)
            for found, document in documents
            if found == key
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
    table: dict[SourceName, TopicPartition] = {}
    sizes: dict[str, int] = {}
    for _, document in documents:
        source = document["cluster"], TopicPartition(document["topic"], document["partition"])
        if source not in table:
            topic = document["replica_topic"]
            table[source] = TopicPartition(topic, sizes.get(topic, 0))
            sizes[topic] = sizes.get(topic, 0) + 1
    return table
