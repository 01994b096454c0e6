"""Settings of a log: immutable values, so a changed setting is a new `LogConfig` given to the log.

Names and defaults are those of Kafka's topic settings, with underscores (`segment_bytes` is `segment.bytes`).
"""

from dataclasses import dataclass

DAY_MS = 24 * 60 * 60 * 1000
MAX_SEGMENT_BYTES = MAX_RELATIVE_OFFSET = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one partition's log."""

    segment_bytes: int = 1 << 30
    """Size at which a segment is closed. At most 2^31 - 1, the reach of an index."""
    segment_ms: int = 7 * DAY_MS
    """Time that the records of one segment may span before it is closed."""
    index_interval_bytes: int = 4096
    """Minimum bytes of log between two index entries."""
    flush_ms: int | None = None
    """Time after which an appended record is flushed. None: when its segment is closed."""
    deletes: bool = True
    """True if segments are deleted by age and size (`cleanup.policy` contains `delete`)."""
    retention_ms: int | None = 7 * DAY_MS
    """Age of its newest record at which a segment is deleted. None for never."""
    retention_bytes: int | None = None
    """Size of the log that remains when its oldest segments are deleted. None to delete none by size."""
    delete_delay_ms: int = 60_000
    """Time between renaming deleted files and removing them."""
    producer_expiration_ms: int = DAY_MS
    """Time after its last batch at which an idempotent producer is forgotten."""

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(f"segment_bytes must be within 1 and {MAX_SEGMENT_BYTES}, not {self.segment_bytes}")
