"""The gap ledger: offsets of source partitions that their replicas lack. Pure: a fold over a journal.

The journal is a topic of the destination; this module defines what its records mean.

Invariants:
A. A gap is in the ledger before the first batch after the gap is appended to the replica.
B. A gap is in the ledger once, however often it is written: its key counts, and the first record of a key.
C. A gap that begins at the end of a replica is the permission to continue after the gap. So a mirror that is killed
   after it recorded a gap continues at the right offset, and nothing else has to be kept. The end of a topic that was
   created again is the permission to copy the new topic, into a replica partition of its own.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from pipeline.errors import PipelineError
from pipeline.mirror.journals.record_document import MAX_TIME_MS, RecordDocument
from pipeline.mirror.journals.table import Assignment, SourcePartition
from pipeline.model import MAX_INT64, TopicPartition

GAPS_TOPIC = "_mirror_gaps"
RECORD_VERSION = 1
MAX_TEXT = 1024
MAX_PARTITION = 2**31 - 1
UNKNOWN_LAST = MAX_INT64 - 1
"""Last offset of a gap whose end is not known; null in records and documents."""


class GapRecordError(PipelineError):
    """A record of the journal is not a gap."""


class GapReason(StrEnum):
    """Cause of a gap."""

    START = "start"
    """The source had deleted the records before the replica was begun."""
    RETENTION = "retention"
    """The source deleted the records before they were copied."""
    TRUNCATED = "truncated"
    """The source lost records that the replica has, and wrote others at their offsets."""
    RECREATED = "recreated"
    """The source's topic was deleted and created again. The old topic may have had records behind the replica's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets `first` to `last`, inclusive, of a source partition that its replica lacks."""

    source: str
    partition: TopicPartition
    replica: TopicPartition
    first: int
    last: int
    reason: GapReason
    time_ms: int
    cluster_id: str | None = None
    detail: str = ""
    topic_id: UUID | None = None
    """Id of the deleted topic; None unless the topic was recreated."""

    @property
    def missing_at_most(self) -> int | None:
        """Number of offsets in the gap; None if unknown. Compaction and transactions leave offsets without records."""
        return None if self.last == UNKNOWN_LAST else self.last - self.first + 1

    @property
    def key(self) -> tuple[object, ...]:
        """Identity in the ledger (invariant B). The end of a truncated range belongs to the identity.

        A source can lose its end twice at one offset, at two lengths of the replica, and a topic is replaced once. All
        other gaps begin at the end of the replica, which passes each offset once.
        """
        if self.reason is GapReason.RECREATED:
            return self.source, self.partition, self.topic_id
        if self.reason is GapReason.TRUNCATED:
            return self.source, self.partition, self.replica, self.first, self.last
        return self.source, self.partition, self.replica, self.first

    def encode(self) -> tuple[bytes, bytes]:
        """Return key and value of the journal record."""
        key = f"{self.source}/{self.partition.topic}/{self.partition.partition}".encode()
        return key, json.dumps({"version": RECORD_VERSION, **self.to_json()}, separators=(",", ":")).encode()

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the record."""
        return {
            "source": self.source,
            "cluster_id": self.cluster_id,
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "replica_topic": self.replica.topic,
            "replica_partition": self.replica.partition,
            "first": self.first,
            "last": None if self.last == UNKNOWN_LAST else self.last,
            "time_ms": self.time_ms,
            "reason": self.reason.value,
            "detail": self.detail,
        } | ({} if self.topic_id is None else {"topic_id": str(self.topic_id)})


def gap_of(
    assignment: Assignment,
    first: int,
    last: int,
    reason: GapReason,
    *,
    now_ms: int,
    cluster_id: str | None = None,
    detail: str = "",
) -> Gap:
    """Return the gap of a replica."""
    return Gap(
        source=assignment.source.cluster,
        partition=assignment.source.partition,
        replica=assignment.replica,
        first=first,
        last=last,
        reason=reason,
        time_ms=now_ms,
        cluster_id=cluster_id,
        detail=detail[:MAX_TEXT],
    )


def decode_gap(value: bytes | None) -> Gap:
    """Return the gap in a journal record's value. Unknown fields are ignored. Raises GapRecordError."""
    document = RecordDocument(value, GapRecordError)
    document.version(newest=RECORD_VERSION)
    try:
        reason = GapReason(document.text("reason", MAX_TEXT))
    except ValueError as error:
        raise GapRecordError(f"`reason` is not one of {', '.join(GapReason)}") from error
    first, last, topic_id = document.number("first", UNKNOWN_LAST), UNKNOWN_LAST, None
    if reason is GapReason.RECREATED:
        topic_id = document.id("topic_id")
    else:
        last = document.number("last", UNKNOWN_LAST - 1)
    if last < first:
        raise GapRecordError(f"`last`, {last}, is less than `first`, {first}")
    return Gap(
        source=document.text("source", MAX_TEXT),
        partition=TopicPartition(document.text("topic", MAX_TEXT), document.number("partition", MAX_PARTITION)),
        replica=TopicPartition(
            document.text("replica_topic", MAX_TEXT), document.number("replica_partition", MAX_PARTITION)
        ),
        first=first,
        last=last,
        reason=reason,
        time_ms=document.number("time_ms", MAX_TIME_MS),
        cluster_id=document.optional_text("cluster_id", MAX_TEXT),
        detail=document.optional_text("detail", MAX_TEXT, min_length=0) or "",
        topic_id=topic_id,
    )


def recreation_of(assignment: Assignment, replica_end: int, *, now_ms: int, cluster_id: str | None, detail: str) -> Gap:
    """Return the gap of a replica that ends at `replica_end`, and whose source topic was deleted and created again."""
    gap = gap_of(
        assignment, replica_end, UNKNOWN_LAST, GapReason.RECREATED, now_ms=now_ms, cluster_id=cluster_id, detail=detail
    )
    return replace(gap, topic_id=assignment.source.topic_id)


@dataclass(slots=True)
class GapTotal:
    """Number of gaps, and of the offsets in them: at most that many records are missing."""

    gaps: int = 0
    offsets: int | None = 0
    """None if the end of a gap is not known."""


class GapLedger:
    """The ledger, as far as the journal was read."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, GapReason], GapTotal] = {}
        """Totals by source and reason."""
        self._gaps: dict[tuple[object, ...], Gap] = {}
        self._recreated: set[tuple[str, TopicPartition, UUID | None]] = set()
        """Source partitions of deleted topics, by the topics' ids."""
        self._skips: dict[tuple[str, TopicPartition, int], int] = {}
        """Offset after each gap, by replica and the offset at which the gap begins."""
        self._truncated: dict[tuple[str, TopicPartition, int], int] = {}
        """Offset after each truncated range, by the offset at which the range begins; the longest of equal ones."""
        self._truncated_from: dict[tuple[str, TopicPartition, int], int] = {}
        """First offset of each truncated range, by the offset after the range; the lowest of ranges of one end."""

    def apply(self, gap: Gap) -> None:
        """Apply the next journal record."""
        if self._gaps.setdefault(gap.key, gap) is gap:
            total = self.totals.setdefault((gap.source, gap.reason), GapTotal())
            total.gaps += 1
            missing = gap.missing_at_most
            total.offsets = None if total.offsets is None or missing is None else total.offsets + missing
            begin, behind = (gap.source, gap.replica, gap.first), gap.last + 1
            if gap.reason is GapReason.RECREATED:
                self._recreated.add((gap.source, gap.partition, gap.topic_id))
            elif gap.reason is GapReason.TRUNCATED:
                self._truncated[begin] = max(behind, self._truncated.get(begin, 0))
                end = (gap.source, gap.replica, behind)
                self._truncated_from[end] = min(gap.first, self._truncated_from.get(end, gap.first))
            else:
                self._skips[begin] = behind

    def __iter__(self) -> Iterator[Gap]:
        """Iterate over all gaps, in the order of the journal."""
        return iter(self._gaps.values())

    def __reversed__(self) -> Iterator[Gap]:
        """Iterate over all gaps, the newest first."""
        return reversed(self._gaps.values())

    def __len__(self) -> int:
        """Return the number of gaps."""
        return len(self._gaps)

    def deleted_offsets(self) -> dict[tuple[str, TopicPartition], int]:
        """Return how many offsets were deleted before they were copied, each once, by source and replica partition."""
        ranges: dict[tuple[str, TopicPartition], list[tuple[int, int]]] = {}
        for gap in self:
            if gap.reason in (GapReason.START, GapReason.RETENTION):
                ranges.setdefault((gap.source, gap.replica), []).append((gap.first, gap.last))
        return {partition: _union(found) for partition, found in ranges.items()}

    def __contains__(self, gap: Gap) -> bool:
        """Return True if the ledger has a gap of this key."""
        return gap.key in self._gaps

    def is_replaceable(self, source: SourcePartition) -> bool:
        """Return True if the ledger has the end of this topic: the topic that was created again may be copied."""
        return (source.cluster, source.partition, source.topic_id) in self._recreated

    def continues_at(self, source: str, replica: TopicPartition, replica_end: int) -> int:
        """Return the offset after the gaps at the replica's end; the end itself if no gap begins there.

        A truncated range that begins there counts only after another one: the first of them lies below the end.
        """
        while True:
            place = (source, replica, replica_end)
            behind = self._skips.get(place)
            if behind is None and place in self._truncated_from:
                behind = self._truncated.get(place)
            if behind is None:
                return replica_end
            replica_end = behind

    def truncated_from(self, source: str, replica: TopicPartition, replica_end: int) -> int | None:
        """Return where the truncated range begins that ends at the replica's end; None if the ledger has none."""
        return self._truncated_from.get((source, replica, replica_end))


def _union(ranges: list[tuple[int, int]]) -> int:
    """Return how many numbers are in at least one of these ranges, whose ends are inclusive."""
    count, counted_to = 0, -1
    for first, last in sorted(ranges):
        count += max(0, last - max(first - 1, counted_to))
        counted_to = max(counted_to, last)
    return count
