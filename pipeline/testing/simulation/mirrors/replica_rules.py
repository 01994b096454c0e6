"""Appends at the sources and at the hub as they happen, and what must hold of each append to a replica.

Invariants, whenever a leader of the hub appends a batch to a replica:

  1. The source partition that the table has for the replica had this batch, at these offsets.
  2. The batch begins where the replica ends, or the gap ledger names all offsets in between.
  3. The source's leader epoch of the batch is recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from pipeline.broker.replication.partition import Partition
from pipeline.mirror.journals.gaps import GAPS_TOPIC
from pipeline.model import Offset, TopicPartition
from pipeline.observation import ObservedPartition
from pipeline.records.batch import BatchHeader
from pipeline.testing.simulation.cluster import bytes_of_log
from pipeline.testing.simulation.mirrors.journals import HubJournals, SourceName
from pipeline.testing.simulation.mirrors.logs import BatchIdentity, batches_in
from pipeline.testing.simulation.mirrors.mirror_group_rules import MirrorGroupRules
from pipeline.testing.simulation.observer import Life
from pipeline.testing.simulation.process import PROCESS

MAX_PROBLEMS = 5


@dataclass(eq=False)
class SourceWatch:
    """All batches that any replica of a source ever had, with their leader epochs."""

    by_contents: bool
    """True if mirrors recompress, so that batches are known by their contents."""
    had: dict[tuple[TopicPartition, UUID | None], dict[BatchIdentity, set[int]]] = field(default_factory=dict)
    """A producer sends a batch again that the source lost: the same batch then is in two epochs."""
    on_opened: Callable[[ObservedPartition], None] | None = None
    """Called with each log that is opened, as it may have lost its end."""

    def opened(self, life: Life, partition: ObservedPartition) -> None:
        """Remember the batches: a broker may have died between a write and its report. Then report the log."""
        headers = list(partition.log.headers(partition.log.log_start_offset))
        if headers:
            self.appended(life, partition, headers)
        if self.on_opened is not None:
            self.on_opened(partition)

    def appended(self, _life: Life, partition: ObservedPartition, headers: Sequence[BatchHeader]) -> None:
        """Remember the batches."""
        known = self.had.setdefault((partition.topic_partition, partition.log.topic_id), {})
        batches = identities_of(partition, headers, by_contents=self.by_contents)
        for header, batch in zip(headers, batches, strict=True):
            known.setdefault(batch, set()).add(header.partition_leader_epoch)

    def truncated(self, life: Life, partition: ObservedPartition) -> None:
        """Nothing: the log had the batches."""

    def batches_of(self, source: SourceName) -> dict[BatchIdentity, set[int]]:
        """Return the batches that a source partition ever had."""
        return self.had.get((source.partition, source.topic_id), {})


@dataclass(eq=False)
class ReplicaWatch:
    """Judges each append to a replica."""

    sources: Mapping[str, SourceWatch]
    journals: HubJournals
    group: MirrorGroupRules
    by_contents: bool
    """True if batches are compared by contents."""
    problems: list[str] = field(default_factory=list)
    on_appended: Callable[[TopicPartition, int], None] | None = None
    """Called with each new end of a replica's leader."""
    _ends: dict[tuple[Life, TopicPartition], int] = field(default_factory=dict)

    def opened(self, life: Life, partition: ObservedPartition) -> None:
        """Remember where the log ends."""
        self._ends[life, partition.topic_partition] = partition.log.log_end_offset

    truncated = opened

    def appended(self, life: Life, partition: ObservedPartition, headers: Sequence[BatchHeader]) -> None:
        """Judge, if it leads. The ledger is read with each record: a broker may die before anybody looks."""
        name = partition.topic_partition
        if name.topic == GAPS_TOPIC:
            self.journals.read_gaps()
        end = self._ends[life, name]
        self._ends[life, name] = partition.log.log_end_offset
        process = PROCESS.get()
        is_replica = partition.is_leader and not name.topic.startswith("_")
        if is_replica and process is not None and process.is_alive and len(self.problems) < MAX_PROBLEMS:
            self._judge(name, end, identities_of(partition, headers, by_contents=self.by_contents))
            assert isinstance(partition, Partition)
            self.group.appended(partition)
        if is_replica and self.on_appended is not None:
            self.on_appended(name, partition.log.log_end_offset)

    def _judge(self, name: TopicPartition, end: int, batches: Sequence[BatchIdentity]) -> None:
        source = self.journals.source_of(name)
        if source is None:
            self.problems.append(f"{name}: a batch is appended, and the table does not know the replica")
            return
        had = self.sources[source.source].batches_of(source)
        for batch in batches:
            if batch not in had:
                self.problems.append(f"{name}: {batch} is appended, which {source} never had")
            elif not had[batch] & self.journals.epochs(source):
                epochs = sorted(had[batch])
                self.problems.append(f"{name}: {batch} is appended, and its leader epoch {epochs} is not recorded")
            if batch.base_offset > end and not self.journals.explained(name).covers(end, batch.base_offset - 1):
                self.problems.append(f"{name}: {batch} is appended at {end}, and the ledger names no such gap")
            end = batch.last_offset + 1


def identities_of(
    partition: ObservedPartition, headers: Sequence[BatchHeader], *, by_contents: bool
) -> list[BatchIdentity]:
    """Return the batches of a log with these headers."""
    if not by_contents:
        return [BatchIdentity.of(header) for header in headers]
    assert isinstance(partition, Partition)
    start = Offset(max(headers[0].base_offset, partition.log.log_start_offset))
    return batches_in(bytes_of_log(partition, Offset(headers[-1].next_offset), start), by_contents=True)
