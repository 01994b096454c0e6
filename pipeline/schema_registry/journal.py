"""The one door to the log that the registry is kept in: what the registry asks of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.errors import PipelineError

Record = tuple[bytes | None, bytes | None]
"""Key and value; value None is a tombstone."""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A record as it lies in the log."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Records in order, and where to go on; offsets between may be missing."""

    records: Sequence[JournalRecord]
    next_offset: int


class JournalLostError(PipelineError):
    """The log is not the one that was read so far: truncated, deleted or made anew. What was read may hold no more."""


class SchemaJournal(Protocol):
    """An ordered, durable log. Each call raises PipelineError when the log cannot be reached within its bound."""

    async def append(self, records: Sequence[Record]) -> Sequence[int]:
        """Append in order. Returns their offsets once all are acknowledged.

        After an error some or all of them may be in the log, or come to lie there later.
        """
        ...

    async def end_offset(self) -> int:
        """The offset that the next record gets."""
        ...

    async def read(self, offset: int) -> JournalPage:
        """Records from `offset` on; waits a short while for the first, and gives an empty page if none came.

        Raises JournalLostError if there can be no record at `offset`.
        """
        ...
