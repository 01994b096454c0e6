"""The only door to the log that holds the schemas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.errors import PipelineError

Record = tuple[bytes | None, bytes | None]
"""Key and value; value None is a tombstone."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A record, its offset in the log, and the stamp of the writer that appended it, if it bears one."""

    offset: int
    key: bytes | None
    value: bytes | None
    stamp: bytes | None = None


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Records in order, and the offset to read next. Offsets may be missing."""

    records: Sequence[JournalRecord]
    next_offset: int


class JournalLostError(PipelineError):
    """The log was truncated, deleted or recreated since it was read, so the registry's state may be wrong."""


class RecordTooLargeError(PipelineError):
    """The log takes no record of this size."""


class SchemaJournal(Protocol):
    """An ordered, durable log. Each call raises PipelineError if the log cannot be reached within its time."""

    async def append(self, records: Sequence[Record], stamp: bytes | None = None) -> Sequence[int]:
        """Append records in order, with the writer's stamp. Returns their offsets once all are acknowledged.

        After an error some or all records may be in the log, or may still be appended later. Raises RecordTooLargeError
        if the log takes no record of the size of one of them.
        """

    async def end_offset(self) -> int:
        """Return the log end offset."""

    async def start_offset(self) -> int:
        """Return the log start offset: all records before it were deleted."""

    async def read(self, offset: int) -> JournalPage:
        """Return records from `offset` on. Waits briefly for the first one; the page is empty if none came.

        Raises JournalLostError if there can be no record at `offset`.
        """

    async def replay(self, end_offset: int, take: Callable[[JournalRecord], None]) -> None:
        """Call `take` with each record before `end_offset`, oldest first. `read` goes on where it was."""
