"""The manifest of one commit: offset ranges, files and counts, as one JSON document. Pure.

A commit loads new records, or rearranges the files of earlier commits (`Operation`). The live files of a topic are a
fold over its manifests: each adds `files` and takes `removed` away.

Invariants (`check_follows` holds A to C and E):

A. Manifests of a topic are numbered from 1 without gaps, and each carries the SHA-256 of the one before it.
B. `offsets` is cumulative: the last manifest alone tells where the next load starts, partition by partition.
C. A range starts at the partition's offset of the manifest before; `skipped` holds the gap if it starts later.
D. Counts are by window of the batch's base timestamp. A batch is counted once, where its base offset was loaded.
   Records in quarantine are not counted, and bytes and checksum of a batch only if one of its records is in a data
   file. The commit that brings records in (`release`) counts what was left out: see `AsideBatch`.
E. Only a load has ranges and changes `offsets`, `lost` and `ends`. These and `schemas` are cumulative, and so is
   `path_format`, by which later runs name the folders of their files. Files of earlier ones stay where they are.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, Self, TypeVar, get_args, get_origin, get_type_hints

from pipeline.errors import PipelineError
from pipeline.hadoop.commit.layout import PATH_FORMATS, PathFormat
from pipeline.records.content_sums import ContentSums
from pipeline.records.tally import NOTHING, Counts

_COUNTED = ("records", "bytes", "batches", "crc_sum")
VERSION = 4
"""Version of manifests that are written. Version 1 knew loads alone, and had none of the fields of `_SINCE_2`.

Version 2 knew no `path_format`: all files were in folders of the format `hourly`. Version 3 had none of `_SINCE_4`.
"""
_SINCE_4: Final = ("sums", "aborted")
_SINCE_2: Final = ("operation", "removed", "schemas", "ends", "lost")
_FILE_SINCE_2: Final = ("record_type", "schema_id", "batches")

_Value = TypeVar("_Value")

WindowKey = tuple[int, int]
"""Partition, and start of the window in ms."""


class ManifestError(PipelineError):
    """A manifest cannot be read, or does not follow the one before. `name` is its path or number."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"manifest {name}: {reason}")
        self.name = name
        self.reason = reason


class Operation(StrEnum):
    """Kinds of commits."""

    LOAD = "load"
    """New records of the topic."""
    COMPACT = "compact"
    """Small files made into larger ones."""
    EXPIRE = "expire"
    """Hours removed by retention."""
    REPLAY = "replay"
    """Files of an hour written again from the topic."""
    RELEASE = "release"
    """Records brought in from the quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class OffsetRange:
    """Offsets `start` to `end` of a partition, the end not included. Not every offset in it need exist."""

    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        """`partition:[start, end)`."""
        return f"partition {self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AsideBatch:
    """Batch with records in a quarantine file. `aside` of its `records` are in this file, others may be elsewhere.

    A batch that begins before the first loaded offset counts nowhere, and is not listed.
    """

    base_offset: int
    window_start_ms: int
    records: int
    bytes: int
    crc: int
    aside: int

    def counts_without(self, aside: int) -> Counts:
        """Return what counts of the batch while `aside` of its records are in the quarantine."""
        loaded = self.records - aside
        return Counts(loaded, self.bytes, 1, self.crc) if loaded else NOTHING


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DataFile:
    """Committed file. `path` is relative to the topic's directory; `hour_ms` is None for a quarantine file.

    `record_type` is the full name of the Avro record for topics with several record types. `schema_id` is the id of
    the schema that the file's values or columns have, None for plain bytes.
    """

    path: str
    partition: int
    hour_ms: int | None
    records: int
    bytes: int
    first_offset: int
    last_offset: int
    crc32c: int
    record_type: str | None = None
    schema_id: int | None = None
    batches: tuple[AsideBatch, ...] = ()
    """Of a quarantine file: the batches of its records."""

    @property
    def quarantined(self) -> bool:
        """True if the file holds records that could not be decoded."""
        return self.hour_ms is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """Schema that the columns of a topic's files are evolved to.

    `record_type` is None for the topic's only type. Subject, version and id are None for a schema of no subject.
    """

    record_type: str | None
    subject: str | None
    version: int | None
    schema_id: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartitionEnd:
    """Last batch that was loaded of a partition: a source that has another one there was truncated or restored.

    `frame_crc` is a CRC-32C of the header's fields that recompression leaves as they are.
    """

    partition: int
    leader_epoch: int
    base_offset: int
    last_offset: int
    records: int
    codec: int
    crc: int
    frame_crc: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AbortedRecords:
    """Records of aborted transactions, which a load left out, of a partition and hour."""

    partition: int
    hour_ms: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Commit of a topic (invariants above)."""

    sequence: int
    run_id: str
    created_ms: int
    topic: str
    topic_id: str | None
    format: str
    window_ms: int
    offsets: Mapping[int, int]
    ranges: tuple[OffsetRange, ...]
    skipped: tuple[OffsetRange, ...] = ()
    files: tuple[DataFile, ...] = ()
    counts: Mapping[WindowKey, Counts] = field(default_factory=dict)
    previous_sha256: str | None = None
    operation: Operation = Operation.LOAD
    removed: tuple[str, ...] = ()
    schemas: tuple[TableSchema, ...] = ()
    ends: tuple[PartitionEnd, ...] = ()
    lost: Mapping[int, int] = field(default_factory=dict)
    """Number of offsets that this commit and those before it skipped, by partition."""
    path_format: PathFormat = "hourly"
    sums: Mapping[WindowKey, ContentSums] = field(default_factory=dict)
    """Sums over the contents of the batches of `counts`. A batch whose header is not known any more is not in them."""
    aborted: tuple[AbortedRecords, ...] = ()
    version: int = field(default=VERSION)

    @property
    def records(self) -> int:
        """Records in the data files."""
        return sum(file.records for file in self.files if not file.quarantined)

    @property
    def quarantined_records(self) -> int:
        """Records in the quarantine files."""
        return sum(file.records for file in self.files if file.quarantined)

    def encode(self) -> bytes:
        """Return JSON with sorted keys, one line per file and count, so that a person can read it."""
        document = asdict(self)
        document["offsets"] = {str(partition): offset for partition, offset in sorted(self.offsets.items())}
        document["lost"] = {str(partition): offsets for partition, offsets in sorted(self.lost.items())}
        document["counts"] = [
            {"partition": partition, "window_start_ms": start, **{name: getattr(counts, name) for name in _COUNTED}}
            for (partition, start), counts in sorted(self.counts.items())
        ]
        document["sums"] = [
            {"partition": partition, "window_start_ms": start, **sums._asdict()}
            for (partition, start), sums in sorted(self.sums.items())
        ]
        if self.version < 4:
            for name in _SINCE_4:
                del document[name]
        if self.version < 3:
            del document["path_format"]
        if self.version < 2:
            for name in _SINCE_2:
                del document[name]
            for file in document["files"]:
                for name in _FILE_SINCE_2:
                    del file[name]
        parts = []
        for key in sorted(document):
            value = document[key]
            if isinstance(value, tuple | list) and value:
                lines = ",\n  ".join(json.dumps(item, sort_keys=True) for item in value)
                parts.append(f"{json.dumps(key)}: [\n  {lines}\n ]")
            else:
                parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
        return ("{" + ",\n ".join(parts) + "}\n").encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> Self:
        """Return the manifest in `data`. Raises ManifestError that names `name`."""
        try:
            document: dict[str, Any] = json.loads(data)
            version = document.get("version")
            if not isinstance(version, int) or not 1 <= version <= VERSION:
                raise ManifestError(name, f"has version {version}; this program reads 1 to {VERSION}")
            document["offsets"] = {int(key): int(value) for key, value in document["offsets"].items()}
            nested: dict[str, Any] = {"ranges": OffsetRange, "skipped": OffsetRange, "files": DataFile}
            if version >= 2:
                nested |= {"schemas": TableSchema, "ends": PartitionEnd}
                document["operation"] = Operation(document["operation"])
                document["removed"] = tuple(document["removed"])
                document["lost"] = {int(key): int(value) for key, value in document["lost"].items()}
                for file in document["files"]:
                    file["batches"] = tuple(_checked(AsideBatch(**batch)) for batch in file["batches"])
            if version >= 3 and document["path_format"] not in PATH_FORMATS:
                raise ManifestError(name, f"has folders of the unknown format {document['path_format']}")
            if version >= 4:
                nested["aborted"] = AbortedRecords
                for sums in document["sums"]:
                    _check_numbers(sums)
                document["sums"] = {
                    (sums.pop("partition"), sums.pop("window_start_ms")): ContentSums(**sums)
                    for sums in document["sums"]
                }
            for key, kind in nested.items():
                document[key] = tuple(_checked(kind(**item)) for item in document[key])
            for count in document["counts"]:
                _check_numbers(count)
            document["counts"] = {
                (count.pop("partition"), count.pop("window_start_ms")): Counts(**count) for count in document["counts"]
            }
            return _checked(cls(**document))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ManifestError(name, f"is damaged: {error}") from error


def _checked(value: _Value) -> _Value:
    """Return the value. Raises TypeError if a number or text of it is of another type, as no program writes it."""
    for name, kinds in _PLAIN_FIELDS[type(value)].items():
        if type(getattr(value, name)) not in kinds:
            raise TypeError(f"{name} is {getattr(value, name)!r}")
    return value


def _check_numbers(count: Mapping[str, Any]) -> None:
    for name, number in count.items():
        if type(number) is not int:
            raise TypeError(f"{name} is {number!r}")


def _plain_fields(kind: type) -> dict[str, tuple[type, ...]]:
    """Return the types of the fields that hold a number, a text, or null."""
    found = {
        name: get_args(hint) if get_origin(hint) is UnionType else (hint,)
        for name, hint in get_type_hints(kind).items()
    }
    return {name: kinds for name, kinds in found.items() if set(kinds) <= {int, str, NoneType}}


_PLAIN_FIELDS: Final[Mapping[type, Mapping[str, tuple[type, ...]]]] = {
    kind: _plain_fields(kind)
    for kind in (OffsetRange, DataFile, TableSchema, PartitionEnd, AsideBatch, AbortedRecords, Manifest)
}


def sha256_of(encoded: bytes) -> str:
    """Return the checksum by which the next manifest refers to an encoded one."""
    return hashlib.sha256(encoded).hexdigest()


def next_offsets(
    previous: Mapping[int, int], ranges: Iterable[OffsetRange], skipped: Iterable[OffsetRange] = ()
) -> dict[int, int]:
    """Return the cumulative offsets after a load of `ranges` that skipped others before them."""
    return dict(previous) | {passed.partition: passed.end for passed in (*skipped, *ranges)}


def next_lost(previous: Mapping[int, int], skipped: Iterable[OffsetRange]) -> dict[int, int]:
    """Return the cumulative numbers of skipped offsets after a load."""
    lost = dict(previous)
    for gap in skipped:
        lost[gap.partition] = lost.get(gap.partition, 0) + gap.end - gap.start
    return lost


def check_follows(manifest: Manifest, previous: Manifest | None, previous_sha256: str | None) -> None:
    """Raise ManifestError unless `manifest` is the lawful successor of `previous` (invariants A to C and E)."""
    name = str(manifest.sequence)
    expected = 1 if previous is None else previous.sequence + 1
    if manifest.sequence != expected:
        raise ManifestError(name, f"expected {expected} here: a manifest is missing")
    if manifest.previous_sha256 != previous_sha256:
        raise ManifestError(name, "does not follow the manifest before it, which has another checksum")
    before = {} if previous is None else previous.offsets
    if manifest.operation is not Operation.LOAD and (manifest.ranges or manifest.skipped):
        raise ManifestError(name, f"is a commit of the kind '{manifest.operation}', and has offset ranges")
    skipped_to = {gap.partition: gap.end for gap in manifest.skipped}
    for loaded in manifest.ranges:
        start = skipped_to.get(loaded.partition, before.get(loaded.partition, loaded.start))
        if loaded.start != start or loaded.end <= loaded.start:
            raise ManifestError(name, f"{loaded} should start at {start} and not be empty")
    if dict(manifest.offsets) != next_offsets(before, manifest.ranges, manifest.skipped):
        raise ManifestError(name, "has other offsets than the manifest before it plus its ranges")
    lost, ends = ({}, ()) if previous is None else (previous.lost, previous.ends)
    if manifest.version >= 2 and dict(manifest.lost) != next_lost(lost, manifest.skipped):
        raise ManifestError(name, "has other numbers of lost offsets than the manifest before it plus its own")
    if manifest.operation is not Operation.LOAD and manifest.ends != ends:
        raise ManifestError(name, f"is a commit of the kind '{manifest.operation}', and has other last batches")


def add_counts(terms: Iterable[Mapping[WindowKey, Counts]]) -> dict[WindowKey, Counts]:
    """Add counts up by partition and window."""
    sums: dict[WindowKey, Counts] = {}
    for counts in terms:
        for key, value in counts.items():
            sums[key] = sums.get(key, NOTHING) + value
    return sums


def set_aside(files: Iterable[DataFile]) -> dict[WindowKey, int]:
    """Return the number of records in live quarantine files, by partition and window of their batches."""
    found: dict[WindowKey, int] = {}
    for file in files:
        for batch in file.batches:
            key = (file.partition, batch.window_start_ms)
            found[key] = found.get(key, 0) + batch.aside
    return found
