"""Search of an appended replica for the last batch of its producer, as after the death of a mirror. Pure.

Invariants: those of `offset_map.py`. Compaction and retention of the destination leave offsets without batches. A place
is certain only if no planned batch can have been at such offsets.
"""

from dataclasses import replace

from pipeline.errors import PipelineError
from pipeline.mirror.journals.offset_map import OffsetMapEntry, PlannedBatch, open_plans, sequence_after
from pipeline.records.batch import BatchHeader


class OffsetMapError(PipelineError):
    """The offset map and a replica contradict each other, or do not tell where the source continues."""


class ReplicaScan:
    """Takes the headers of a replica's batches from `entry.replica_offset` on, in order."""

    def __init__(self, entry: OffsetMapEntry) -> None:
        self._entry = entry
        self._planned = {(batch.sequence, batch.records): batch for batch in entry.planned}
        self._last: PlannedBatch | None = None
        self._next_offset = entry.replica_offset
        self._lacks_offsets = False
        """True if offsets without a batch follow the last batch of the producer."""

    def add(self, header: BatchHeader) -> None:
        """Take the next header. Raises OffsetMapError for a batch of the producer that was never planned."""
        if header.base_offset < self._next_offset:
            return
        self._lacks_offsets |= header.base_offset > self._next_offset
        self._next_offset = header.next_offset
        entry = self._entry
        if header.is_control or (header.producer_id, header.producer_epoch) != (
            entry.producer_id,
            entry.producer_epoch,
        ):
            return
        found = self._planned.get((header.base_sequence, header.last_offset_delta + 1))
        if found is None:
            raise OffsetMapError(
                f"{entry.replica} has a batch of this mirror at offset {header.base_offset} (sequence number "
                f"{header.base_sequence}) that the offset map does not know: the map was lost or is outdated. "
                f"{way_out_of(entry)}"
            )
        self._last, self._lacks_offsets = found, False

    def conclude(self, end: int) -> OffsetMapEntry:
        """Return the entry as of now, for a replica that ends at `end`. Raises OffsetMapError if that is uncertain."""
        entry = replace(self._entry, replica_offset=end)
        if self._last is not None:
            entry = replace(
                entry,
                source_offset=self._last.next_offset,
                sequence=sequence_after(self._last.sequence, self._last.records),
            )
        entry = replace(entry, planned=open_plans(entry))
        if entry.planned and (self._lacks_offsets or self._next_offset < end):
            raise OffsetMapError(
                f"{entry.replica} was compacted or lost old records before the mirror could see whether batches that "
                f"it had sent last are among them. {way_out_of(entry)}"
            )
        return entry


def way_out_of(entry: OffsetMapEntry) -> str:
    """Return what ends a contradiction between map and replica."""
    topic = entry.replica.topic
    return f"Delete the topic {topic} of the destination to have it copied again, or exclude it (topics.exclude)"
