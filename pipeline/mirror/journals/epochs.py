"""Leader epochs of the source in the records of a replica (KIP-320). Pure: a fold over a journal.

The hub's brokers write their own leader epochs into the batches of a replica, so those of the source are kept beside
it, in a compacted topic of the destination. This module defines what its records mean.

Invariants:
A. An epoch is in the journal before the first batch of the epoch is appended to the replica. So the epoch of the
   replica's last record is that of the last entry whose first offset is below the replica's end.
B. Entries at or beyond the replica's end are void: their batches were never appended, or the replica lost them.
C. Mirrors record entries in any order, and a record replaces none of the entries before. Epochs of a source rise with
   the offsets, so an entry is void if one of a higher epoch begins at its offset or before. Only a record that says
   `replaces` begins anew: epochs of a source whose ZooKeeper was restored fell.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from pipeline.errors import PipelineError
from pipeline.mirror.journals.table import SourcePartition
from pipeline.model import MAX_INT64, TopicPartition

EPOCHS_TOPIC = "_mirror_epochs"
RECORD_VERSION = 1
MAX_ENTRIES = 100
MAX_RECORD_BYTES = 16 * 1024
MAX_EPOCH = 2**31 - 1
MAX_PARTITION = 2**31 - 1

EpochEntries = tuple[tuple[int, int], ...]
"""Leader epochs and their first offsets in the replica, both ascending; the newest last."""


class EpochRecordError(PipelineError):
    """A record of the journal does not hold leader epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEpochs:
    """Leader epochs of a source partition; `topic_id` distinguishes recreated topics of one name."""

    source: str
    partition: TopicPartition
    topic_id: UUID
    entries: EpochEntries
    replaces: bool = False
    """True if the entries of records before do not count."""

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value of the journal record."""
        key = f"{self.source}/{self.partition.topic}/{self.partition.partition}".encode()
        document = {"version": RECORD_VERSION, "topic_id": str(self.topic_id), "epochs": self.entries}
        if self.replaces:
            document["replaces"] = True
        return key, json.dumps(document, separators=(",", ":")).encode()


def source_epochs(source: SourcePartition, entries: EpochEntries) -> SourceEpochs:
    """Return the journal's record of a source partition, with the newest entries."""
    return SourceEpochs(
        source=source.cluster, partition=source.partition, topic_id=source.topic_id, entries=entries[-MAX_ENTRIES:]
    )


def decode_epochs(key: bytes | None, value: bytes | None) -> SourceEpochs:
    """Return the epochs in a journal record. Raises EpochRecordError."""
    if key is None or value is None or len(key) > MAX_RECORD_BYTES or len(value) > MAX_RECORD_BYTES:
        raise EpochRecordError("key or value is missing or too large")
    try:
        source, topic, number = key.decode().split("/")
        document = json.loads(value)
        if document["version"] != RECORD_VERSION:
            raise EpochRecordError(f"version {document['version']!r} is not {RECORD_VERSION}")
        entries = tuple((epoch, first) for epoch, first in document["epochs"])
        topic_id = UUID(document["topic_id"])
        partition = TopicPartition(topic, int(number))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EpochRecordError("does not hold leader epochs") from error
    are_numbers = all(type(number) is int and number >= 0 for entry in entries for number in entry)
    if not (are_numbers and 0 < len(entries) <= MAX_ENTRIES and 0 <= partition.partition <= MAX_PARTITION):
        raise EpochRecordError("does not hold leader epochs")
    if any(epoch > MAX_EPOCH or first > MAX_INT64 for epoch, first in entries):
        raise EpochRecordError("holds an epoch or an offset that cannot be")
    replaces = document.get("replaces") is True
    return SourceEpochs(source=source, partition=partition, topic_id=topic_id, entries=entries, replaces=replaces)


def entries_before(entries: EpochEntries, end: int) -> EpochEntries:
    """Return the entries of a replica that ends at `end` (invariant B)."""
    return tuple(entry for entry in entries if entry[1] < end)


def added_entries(entries: EpochEntries, found: Iterable[tuple[int, int]], position: int) -> EpochEntries:
    """Return the entries to add for batches fetched at `position`, whose epochs begin as `found` says."""
    added: list[tuple[int, int]] = []
    last = entries[-1][0] if entries else None
    for epoch, first in found:
        if epoch not in (last, -1):
            added.append((epoch, max(first, position)))
            last = epoch
    return tuple(added)


def merged_entries(entries: EpochEntries, added: EpochEntries) -> EpochEntries:
    """Return the entries that count when others are added (invariant C), the newest ones."""
    merged: list[tuple[int, int]] = []
    for epoch, first in sorted({*entries, *added}, key=lambda entry: (entry[1], -entry[0])):
        if not merged or epoch > merged[-1][0]:
            merged.append((epoch, first))
    return tuple(merged[-MAX_ENTRIES:])


def end_of_entry(entries: EpochEntries, index: int, end: int) -> int:
    """Return the offset after the records of an entry, in a replica that ends at `end`."""
    return entries[index + 1][1] if index + 1 < len(entries) else end


def newest_up_to(entries: EpochEntries, epoch: int) -> int | None:
    """Return the index of the newest entry whose epoch is not above `epoch`; None if there is none."""
    return max((index for index, (known, _) in enumerate(entries) if known <= epoch), default=None)
