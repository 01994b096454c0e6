"""Comparison of the records of two copies of a partition, within ranges in which their batches differ. Pure.

Invariants:
A. Records are compared by contents (timestamp, key, value, headers) and by offset. A record that both copies have at
   one offset is no difference.
B. A content that the replica has more often than the source is DOUBLED, one that it has less often is MISSING, one that
   the source never has is foreign. A missing and a foreign record at one offset are one CHANGED record. A content that
   both have equally often, but at other offsets, is REORDERED.
C. How often a copy has a content outside of the ranges is told by the caller (`elsewhere`).
D. Records that are held are bounded in memory, however well their batches were compressed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from pipeline.audit.judgement.verdicts import DiscrepancyKind, OffsetSpan
from pipeline.errors import PipelineError
from pipeline.records.batch import BatchHeader
from pipeline.records.record import Record, records_of_batch

MAX_OPENED_BYTES = 64 << 20
"""Bound of one batch, uncompressed."""
MAX_HELD_BYTES = 512 << 20
"""Bound of the records that are held at a time, each with RECORD_BYTES."""
RECORD_BYTES = 400
"""Memory of a record beside its key, value and headers."""
NEVER_HAD = "the source never had them"


class RecordContent(NamedTuple):
    """All of a record but its offset."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedContent:
    """A record at its offset."""

    offset: int
    content: RecordContent


class Whereabouts(NamedTuple):
    """Offsets of a partition. `partition` is empty for the compared one."""

    partition: str
    first: int
    last: int

    def __str__(self) -> str:
        """Return the place as part of a sentence."""
        offsets = f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"
        return f"{offsets} of {self.partition}" if self.partition else offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDifference:
    """A record that differs, or several of a kind that follow each other. `detail` says how, as part of a sentence.

    `origin`: where the source has the records that the replica has here. `whereto`: where the replica has the records
    that the source has here. `lost` and `foreign` are contents that the replica lacks, and that the source never had.
    """

    kind: DiscrepancyKind
    offsets: OffsetSpan
    records: int
    detail: str = ""
    origin: Whereabouts | None = None
    whereto: Whereabouts | None = None
    lost: tuple[RecordContent, ...] = ()
    foreign: tuple[RecordContent, ...] = ()


Batch = tuple[memoryview, BatchHeader]
"""Bytes of a whole batch, and its header."""


class TooManyRecordsError(PipelineError):
    """The records of some batches take more memory than they may."""


def placed_contents(
    batches: Iterable[Batch], span: OffsetSpan | None = None, *, max_bytes: int = MAX_HELD_BYTES
) -> list[PlacedContent]:
    """Return the records of batches, only those within `span` if it is given.

    Raises CorruptBatchError, and TooManyRecordsError if they take more than `max_bytes` (invariant D).
    """
    found, left = [], max_bytes
    for record in iterate_contents(batches, span):
        left -= held_bytes(record)
        if left < 0:
            raise TooManyRecordsError("its records take too much memory: narrow a smaller range")
        found.append(record)
    return found


def iterate_contents(batches: Iterable[Batch], span: OffsetSpan | None = None) -> Iterator[PlacedContent]:
    """Yield the records of batches, of which one is open at a time. Raises CorruptBatchError."""
    for data, header in batches:
        if header.is_control:
            continue
        for record in records_of_batch(data, 0, header, max_bytes=MAX_OPENED_BYTES):
            if span is None or span.first <= record.offset <= span.last:
                yield PlacedContent(offset=record.offset, content=_content(record))


def held_bytes(record: PlacedContent) -> int:
    """Return about how much memory a record takes."""
    content = record.content
    return RECORD_BYTES * (1 + len(content.headers)) + len(content.key or b"") + len(content.value or b"")


def _content(record: Record) -> RecordContent:
    return RecordContent(record.timestamp_ms, record.key, record.value, tuple(record.headers))


@dataclass(slots=True)
class Elsewhere:
    """Number of records of each content outside of the compared ranges, and the first offset of each."""

    counts: Counter[RecordContent] = field(default_factory=Counter)
    places: dict[RecordContent, int] = field(default_factory=dict)

    def note(self, records: Iterable[PlacedContent], wanted: "frozenset[RecordContent] | set[RecordContent]") -> None:
        """Count those of the records whose contents are wanted."""
        for record in records:
            if record.content in wanted:
                self.counts[record.content] += 1
                self.places.setdefault(record.content, record.offset)


def unlike_contents(source: Sequence[PlacedContent], replica: Sequence[PlacedContent]) -> frozenset[RecordContent]:
    """Return the contents to look for elsewhere: those of records that are not equal at one offset."""
    theirs = {record.offset: record.content for record in replica}
    ours = {record.offset: record.content for record in source}
    return frozenset(
        [record.content for record in source if theirs.get(record.offset) != record.content]
        + [record.content for record in replica if ours.get(record.offset) != record.content]
    )


def compare_records(
    source: Sequence[PlacedContent],
    replica: Sequence[PlacedContent],
    source_elsewhere: Elsewhere | None = None,
    replica_elsewhere: Elsewhere | None = None,
    *,
    never_had: str = NEVER_HAD,
) -> list[RecordDifference]:
    """Return the differences, in the order of their offsets (invariants A to C).

    `never_had` is said of records of which the source has no equal one.
    """
    source_elsewhere, replica_elsewhere = source_elsewhere or Elsewhere(), replica_elsewhere or Elsewhere()
    ours = {record.offset: record.content for record in source}
    theirs = {record.offset: record.content for record in replica}
    at_source = Counter(ours.values()) + source_elsewhere.counts
    at_replica = Counter(theirs.values()) + replica_elsewhere.counts
    surplus = at_replica - at_source
    lacking = at_source - at_replica
    first_place = _first_places(source, source_elsewhere)
    lost: dict[int, RecordContent] = {}
    foreign: dict[int, RecordContent] = {}
    found: list[RecordDifference] = []
    moved_from: dict[RecordContent, list[int]] = {}
    for offset, content in sorted(ours.items()):
        if theirs.get(offset) == content:
            continue
        if lacking[content] > 0:
            lacking[content] -= 1
            lost[offset] = content
        else:
            moved_from.setdefault(content, []).append(offset)
    for offset, content in sorted(theirs.items(), reverse=True):  # the first of equal records is the original
        if ours.get(offset) == content:
            continue
        if at_source[content] == 0:
            foreign[offset] = content
        elif surplus[content] > 0:
            surplus[content] -= 1
            found.append(replace(_one(DiscrepancyKind.DOUBLED, offset), origin=_at(first_place.get(content))))
        else:
            places = moved_from.get(content)
            origin = places.pop() if places else source_elsewhere.places.get(content)
            found.append(replace(_one(DiscrepancyKind.REORDERED, offset), origin=_at(origin)))
    for offset, content in lost.items():
        if offset in foreign:
            other = foreign.pop(offset)
            detail = f"{_fields_that_differ(content, other)} differs"
            found.append(
                replace(_one(DiscrepancyKind.CHANGED, offset), detail=detail, lost=(content,), foreign=(other,))
            )
        else:
            found.append(replace(_one(DiscrepancyKind.MISSING, offset), lost=(content,)))
    found += [
        replace(_one(DiscrepancyKind.UNEXPLAINED, offset), detail=never_had, foreign=(content,))
        for offset, content in foreign.items()
    ]
    return sorted(found, key=lambda each: (each.offsets.first, each.kind))


def _first_places(source: Sequence[PlacedContent], elsewhere: Elsewhere) -> dict[RecordContent, int]:
    places = dict(elsewhere.places)
    for record in source:
        places[record.content] = min(record.offset, places.get(record.content, record.offset))
    return places


def _one(kind: DiscrepancyKind, offset: int) -> RecordDifference:
    return RecordDifference(kind=kind, offsets=OffsetSpan(first=offset, last=offset), records=1)


def _at(offset: int | None) -> Whereabouts | None:
    return None if offset is None else Whereabouts("", offset, offset)


def _fields_that_differ(left: RecordContent, right: RecordContent) -> str:
    names = zip(("timestamp", "key", "value", "headers"), left, right, strict=True)
    return ", ".join(name for name, one, other in names if one != other)


def header_fields_that_differ(left: BatchHeader, right: BatchHeader) -> list[str]:
    """Return the names of the fields of two batches at one place that differ, without checksum and leader epoch."""
    ignored = ("crc", "partition_leader_epoch")
    return [name for name in BatchHeader._fields if name not in ignored and getattr(left, name) != getattr(right, name)]


def placed_elsewhere(
    found: Sequence[RecordDifference], others: Mapping[str, Sequence[RecordDifference]]
) -> list[RecordDifference]:
    """Return the differences with those as MISPLACED whose records are in, or come from, another partition.

    `others`: the differences of other partitions of the topic, by name.
    """
    gone_to = {content: (name, each) for name, each, content in _contents(others, "foreign")}
    come_from = {content: (name, each) for name, each, content in _contents(others, "lost")}
    return [_placed(each, gone_to, come_from) for each in found]


def _contents(
    others: Mapping[str, Sequence[RecordDifference]], side: str
) -> Iterable[tuple[str, RecordDifference, RecordContent]]:
    return (
        (name, each, content)
        for name, differences in others.items()
        for each in differences
        for content in getattr(each, side)
    )


def _placed(
    each: RecordDifference,
    gone_to: Mapping[RecordContent, tuple[str, RecordDifference]],
    come_from: Mapping[RecordContent, tuple[str, RecordDifference]],
) -> RecordDifference:
    whereto = next((_there(*gone_to[content]) for content in each.lost if content in gone_to), None)
    origin = next((_there(*come_from[content]) for content in each.foreign if content in come_from), None)
    if whereto is None and origin is None:
        return each
    return replace(each, kind=DiscrepancyKind.MISPLACED, detail="", origin=origin, whereto=whereto)


def _there(partition: str, each: RecordDifference) -> Whereabouts:
    return Whereabouts(partition, each.offsets.first, each.offsets.last)


def join_differences(found: Sequence[RecordDifference]) -> list[RecordDifference]:
    """Join differences of one kind and detail whose offsets, and places elsewhere, follow each other."""
    runs: list[list[RecordDifference]] = []
    for each in sorted(found, key=lambda each: (each.kind, each.offsets.first)):
        if runs and _follows(runs[-1][-1], each):
            runs[-1].append(each)
        else:
            runs.append([each])
    return sorted(map(_joined, runs), key=lambda each: (each.offsets.first, each.kind))


def _joined(run: Sequence[RecordDifference]) -> RecordDifference:
    first, last = run[0], run[-1]
    return replace(
        first,
        offsets=OffsetSpan(first=first.offsets.first, last=last.offsets.last),
        records=sum(each.records for each in run),
        origin=_joined_places(first.origin, last.origin),
        whereto=_joined_places(first.whereto, last.whereto),
        lost=tuple(chain.from_iterable(each.lost for each in run)),
        foreign=tuple(chain.from_iterable(each.foreign for each in run)),
    )


def _follows(last: RecordDifference, each: RecordDifference) -> bool:
    is_alike = (last.kind, last.detail) == (each.kind, each.detail)
    is_next = last.offsets.last + 1 == each.offsets.first
    return is_alike and is_next and _are_next(last.origin, each.origin) and _are_next(last.whereto, each.whereto)


def _are_next(left: Whereabouts | None, right: Whereabouts | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.partition == right.partition and left.last + 1 == right.first


def _joined_places(left: Whereabouts | None, right: Whereabouts | None) -> Whereabouts | None:
    return left if left is None or right is None else left._replace(last=right.last)
