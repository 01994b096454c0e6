"""Names of a segment's files, as in Kafka: an offset that none of its records is before, and the kind of file. Pure."""

from collections.abc import Iterable
from pathlib import Path

from pipeline.model import MAX_INT64

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
GAP_SUFFIX = ".gap"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
BESIDE_LOG = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, GAP_SUFFIX, TRANSACTION_INDEX_SUFFIX)

_DIGITS = 20


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """Kafka's name of a segment's file: 20 digits."""
    return directory / f"{base_offset:0{_DIGITS}d}{suffix}"


def segment_offset(name: str, suffix: str) -> int | None:
    """The offset in a file name of this kind, None if the name is of another kind."""
    stem = name[:_DIGITS]
    if len(name) != _DIGITS + len(suffix) or not (name.endswith(suffix) and stem.isascii() and stem.isdecimal()):
        return None
    offset = int(stem)
    return offset if offset <= MAX_INT64 else None


def segment_offsets(names: Iterable[str], suffix: str) -> list[int]:
    """The offsets of all names of this kind, rising."""
    found = (segment_offset(name, suffix) for name in names)
    return sorted(offset for offset in found if offset is not None)
