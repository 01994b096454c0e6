"""Settings of a log. They are values: a changed setting is a new `LogConfig` given to the log.

The names are Kafka's topic settings with underscores (`segment.bytes` is `segment_bytes`), the defaults too.
"""

from dataclasses import dataclass

DAY_MS = 24 * 60 * 60 * 1000
MAX_SEGMENT_BYTES = MAX_RELATIVE_OFFSET = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How one partition is stored."""

    segment_bytes: int = 1 << 30
    """A segment is closed before an append that would make it longer. At most 2^31 - 1, the reach of an index."""
    segment_ms: int = 7 * DAY_MS
    """A segment is closed when its records span more time than this."""
    index_interval_bytes: int = 4096
    """Bytes of log between two index entries, at least."""
    flush_messages: int | None = None
    """Records that may be appended before the disk is told to keep them. None: any number."""
    flush_ms: int | None = None
    """Time a record may wait before the disk is told to keep it. None: until the segment is closed."""
    deletes: bool = True
    """May records be deleted for age and size? (`cleanup.policy` contains `delete`.)"""
    retention_ms: int | None = 7 * DAY_MS
    """A segment whose newest record is older than this is deleted. None: at no age."""
    retention_bytes: int | None = None
    """Oldest segments are deleted while the rest has at least so many bytes. None: at no size."""
    delete_delay_ms: int = 60_000
    """Files of what was deleted are renamed at once and unlinked after this time."""
    producer_expiration_ms: int = DAY_MS
    """An idempotent producer that has been silent for longer is forgotten."""

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(f"segment_bytes must be within 1 and {MAX_SEGMENT_BYTES}, not {self.segment_bytes}")
