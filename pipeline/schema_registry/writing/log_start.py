"""Notices that the oldest records of a log were deleted: by retention, or by a command.

Compaction leaves the log start offset at 0. A later one means that records are gone whether or not they were replaced,
and with them perhaps schemas and settings. The records that are left do not tell.
"""

from typing import Final

import trio

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.schema_registry.writing.journal import SchemaJournal

LOOK_INTERVAL_S: Final = 10.0

logger = get_logger(__name__)


class LogStart:
    """The log start offset, as it was first seen and as it is now."""

    def __init__(self, journal: SchemaJournal) -> None:
        self._journal = journal
        self._first: int | None = None
        self._offset = 0

    async def run(self) -> None:
        """Look until cancelled. Begin once the log was replayed."""
        while True:
            try:
                offset = await self._journal.start_offset()
            except PipelineError:
                pass  # others report it
            else:
                self._first = offset if self._first is None else self._first
                if offset > self._offset:
                    self._offset = offset
                    logger.error("registry_records_deleted", start_offset=offset, reason=self.warning())
            await trio.sleep(LOOK_INTERVAL_S)

    def warning(self) -> str | None:
        """Return a sentence for `/healthz` if records were deleted."""
        if not self._offset:
            return None
        reason = f"the records of the schemas' topic before offset {self._offset} were deleted, though it is compacted"
        if self._offset == self._first:
            remedy = "Schemas and settings may be missing: compare them with a backup or a copy, and restore it"
        else:
            remedy = "This registry has them in memory: run `pipeline schema export` before it is restarted"
        return f"{reason}. {remedy}; docs/registry/writers.md says how"
