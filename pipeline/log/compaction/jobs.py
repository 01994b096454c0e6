"""The messages between a broker and its cleaner process: jobs and reports, each a line of JSON.

A job holds everything that the cleaner must know: it asks for nothing more and has no settings of its own.
"""

import json
from dataclasses import asdict, dataclass

from pipeline.log.compaction.plan import SegmentRange

MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningJob:
    """Log to be cleaned. Sizes in bytes, times in ms since 1970 UTC."""

    directory: str
    segments: tuple[SegmentRange, ...]
    """The closed segments that may be cleaned, from the start of the log on."""
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    max_opened_bytes: int
    """Bound of what one batch holds uncompressed; a batch that holds more fails the job."""
    map_bytes: int
    """Bound of the table of keys."""
    map_load_factor: float
    bytes_per_second: float
    """Bound of what is read and written."""
    kept_offsets: tuple[int, ...]
    """Last offsets of producers: a batch that ends with one is kept, even if empty, for its sequence number."""
    hash_key: tuple[int, int]
    """Two random numbers of 64 bits, so that nobody can prepare keys that have the same hash."""

    def encode(self) -> bytes:
        """Encode the job as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> "CleaningJob":
        """Decode the output of `encode`."""
        fields = json.loads(line)
        fields["segments"] = tuple(SegmentRange(*segment) for segment in fields["segments"])
        fields["kept_offsets"] = tuple(fields["kept_offsets"])
        first, second = fields["hash_key"]
        return cls(**{**fields, "hash_key": (first, second)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningProgress:
    """The job is still running."""

    moved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCleaned:
    """A cleaned segment is on the disk, under the suffix of cleaned ones; it may replace its sources."""

    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """The job is done. Everything before `end_offset` is clean now."""

    end_offset: int
    read_bytes: int
    written_bytes: int
    keys: int
    map_fill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job ended without success. `is_full`: for want of space alone."""

    reason: str
    is_full: bool


Report = CleaningProgress | GroupCleaned | Cleaned | Failed
_KINDS: dict[str, type[Report]] = {kind.__name__: kind for kind in (CleaningProgress, GroupCleaned, Cleaned, Failed)}


def encode_report(report: Report) -> bytes:
    """Encode a report as one line of JSON."""
    return json.dumps({"kind": type(report).__name__, **asdict(report)}).encode() + b"\n"


def decode_report(line: bytes) -> Report:
    """Decode the output of `encode_report`. Raises ValueError."""
    try:
        fields = json.loads(line)
        return _KINDS[fields.pop("kind")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no report of a cleaner: {line[:200]!r}") from error
