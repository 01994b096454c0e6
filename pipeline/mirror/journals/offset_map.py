"""The offset map: how far each appended replica is a copy of its source, and what its producer sends next. Pure.

A destination of another kind of broker gives its own offsets, so the log end offset of a replica says nothing about the
source. The map is a compacted topic of the destination, one record for each replica partition; this module defines what
its records mean.

Each replica has one producer id for ever, in one epoch. A sequence number then stands for one record of the source: the
broker appends a batch only directly behind the batch with the sequence numbers before.

Invariants:
A. A batch is planned in the map before it is sent, with its sequence number, its number of records, and the offset of
   the source behind it. So whoever finds the batch in the replica knows where the source continues.
B. Below `replica_offset` the replica has all records of the source below `source_offset` that were to be copied, and
   batches of the producer with sequence numbers before `sequence` alone. From `replica_offset` on, all batches of the
   producer are planned ones.
C. Entries of one replica are folded: progress never goes back, and plans that may still be under way are kept. So a
   record that a stopped mirror writes late takes nothing away.
D. The first entry of a replica decides on its producer. So two mirrors that begin it at once use the same one.
"""

import json
from dataclasses import dataclass, replace
from uuid import UUID

from pipeline.errors import PipelineError
from pipeline.mirror.journals.table import SourcePartition
from pipeline.model import MAX_INT64, TopicPartition
from pipeline.records.batch import MAX_SEQUENCE

OFFSET_MAP_TOPIC = "_mirror_offset_map"
RECORD_VERSION = 1
MAX_RECORD_BYTES = 256 * 1024
MAX_PLANNED = 2_000
"""Bound of the plans in a record: those of one append, and those of a mirror before that may still be under way."""
MAX_EPOCH = 2**15 - 1
MAX_PARTITION = 2**31 - 1
MAX_TOPIC_LENGTH = 249


class OffsetMapRecordError(PipelineError):
    """A record of the journal is not an entry of the offset map."""


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that may be in the replica, or get there: `next_offset` is the offset of the source behind it."""

    sequence: int
    records: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMapEntry:
    """State of a replica. `topic_id` and `replica_topic_id` distinguish recreated topics of one name."""

    source: str
    partition: TopicPartition
    topic_id: UUID
    replica: TopicPartition
    replica_topic_id: UUID
    producer_id: int
    producer_epoch: int
    source_offset: int = 0
    replica_offset: int = 0
    sequence: int = 0
    planned: tuple[PlannedBatch, ...] = ()

    @property
    def key(self) -> tuple[str, TopicPartition]:
        """Source partition."""
        return self.source, self.partition

    def is_of(self, source: SourcePartition, replica: TopicPartition, replica_topic_id: UUID) -> bool:
        """True if the entry is about this copy of the source partition."""
        return (self.topic_id, self.replica, self.replica_topic_id) == (source.topic_id, replica, replica_topic_id)

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value of the journal record."""
        key = f"{self.source}/{self.partition.topic}/{self.partition.partition}".encode()
        document = {
            "version": RECORD_VERSION,
            "topic_id": str(self.topic_id),
            "replica_topic": self.replica.topic,
            "replica_partition": self.replica.partition,
            "replica_topic_id": str(self.replica_topic_id),
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "source_offset": self.source_offset,
            "replica_offset": self.replica_offset,
            "sequence": self.sequence,
            "planned": [[batch.sequence, batch.records, batch.next_offset] for batch in self.planned],
        }
        return key, json.dumps(document, separators=(",", ":")).encode()


def decode_entry(key: bytes | None, value: bytes | None) -> OffsetMapEntry:
    """Return the entry in a journal record. Unknown fields are ignored. Raises OffsetMapRecordError."""
    if key is None or value is None or len(key) > MAX_RECORD_BYTES or len(value) > MAX_RECORD_BYTES:
        raise OffsetMapRecordError("key or value is missing or too large")
    try:
        source, topic, number = key.decode().split("/")
        document = json.loads(value)
        if document["version"] != RECORD_VERSION:
            raise OffsetMapRecordError(f"version {document['version']!r} is not {RECORD_VERSION}")
        planned = document["planned"]
        if len(planned) > MAX_PLANNED:
            raise OffsetMapRecordError(f"has {len(planned)} planned batches, at most {MAX_PLANNED} are allowed")
        return OffsetMapEntry(
            source=source,
            partition=TopicPartition(topic, _number(int(number), 0, MAX_PARTITION)),
            topic_id=UUID(document["topic_id"]),
            replica=TopicPartition(
                _topic(document["replica_topic"]), _number(document["replica_partition"], 0, MAX_PARTITION)
            ),
            replica_topic_id=UUID(document["replica_topic_id"]),
            producer_id=_number(document["producer_id"], 0, MAX_INT64),
            producer_epoch=_number(document["producer_epoch"], 0, MAX_EPOCH),
            source_offset=_number(document["source_offset"], 0, MAX_INT64),
            replica_offset=_number(document["replica_offset"], 0, MAX_INT64),
            sequence=_number(document["sequence"], 0, MAX_SEQUENCE),
            planned=tuple(
                PlannedBatch(
                    _number(sequence, 0, MAX_SEQUENCE), _number(records, 1, MAX_SEQUENCE), _number(behind, 1, MAX_INT64)
                )
                for sequence, records, behind in planned
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OffsetMapRecordError("is no entry of the offset map") from error


def sequence_after(sequence: int, records: int) -> int:
    """Return the sequence number of the batch behind one with so many records; 0 follows 2^31-1."""
    return (sequence + records) & MAX_SEQUENCE


def is_before(sequence: int, other: int) -> bool:
    """Return True if a sequence number comes before another one, less than 2^30 records away."""
    return sequence != other and (other - sequence) & MAX_SEQUENCE < 2**30


def open_plans(entry: OffsetMapEntry) -> tuple[PlannedBatch, ...]:
    """Return the plans that are not known to be in the replica or refused by it."""
    return tuple(batch for batch in entry.planned if not is_before(batch.sequence, entry.sequence))


def fold(known: OffsetMapEntry | None, entry: OffsetMapEntry) -> OffsetMapEntry:
    """Return the state after one more record of a replica (invariants C and D)."""
    if known is None or _copy_of(known) != _copy_of(entry):
        return entry
    if (known.producer_id, known.producer_epoch) != (entry.producer_id, entry.producer_epoch):
        return known
    newer, older = (known, entry) if _progress(entry) < _progress(known) else (entry, known)
    planned: dict[tuple[int, int], PlannedBatch] = {}
    for batch in (*newer.planned, *older.planned):
        planned.setdefault((batch.sequence, batch.records), batch)
    folded = replace(newer, planned=tuple(planned.values()))
    return replace(folded, planned=open_plans(folded)[:MAX_PLANNED])


def _copy_of(entry: OffsetMapEntry) -> tuple[object, ...]:
    return entry.topic_id, entry.replica, entry.replica_topic_id


def _progress(entry: OffsetMapEntry) -> tuple[int, int]:
    return entry.source_offset, entry.replica_offset


def _topic(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TOPIC_LENGTH:
        raise OffsetMapRecordError("`replica_topic` is no name of a topic")
    return value


def _number(value: object, lowest: int, highest: int) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise OffsetMapRecordError(f"{value!r} is not a number from {lowest} to {highest}")
    return value
