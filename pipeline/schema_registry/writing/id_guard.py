"""Remembers the highest ids that were given out in a log of its own, beside the log of the schemas.

The log of the schemas may be emptied, deleted, or replaced by an older backup. Its writer would then give ids a second
time. So each id is written here before it is answered, and a new writer continues beyond the ids that it finds here.

Invariants:

A. The ids of the guard are the highest of all its records, so that the order of several writers matters not.
B. Its last record has them all, since compaction keeps that one alone: a writer that was paused and appends lower ids
   late appends the higher ones behind them.
C. Ids that were read stay known if the log loses them. The next write has them again.
"""

import json
from collections.abc import Mapping
from typing import Final

import trio

from pipeline.errors import PipelineError
from pipeline.schema_registry.rules.registry import MAX_ID
from pipeline.schema_registry.state.contexts import DEFAULT_CONTEXT
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.writing.journal import JournalLostError, SchemaJournal

GUARD_SUFFIX: Final = "_guard"
PROMOTION_GAP: Final = 10_000
"""Ids that the first writer of a promoted topic leaves out in each context."""
_KEY: Final = b'"highest ids"'


def encode_ids(ids: Mapping[str, int]) -> tuple[bytes, bytes]:
    """Return key and value of the guard's record."""
    return _KEY, json.dumps(dict(ids), separators=(",", ":"), sort_keys=True).encode()


def decode_ids(value: bytes | None) -> dict[str, int]:
    """Return the ids of a record, by context; none for an unreadable one."""
    try:
        content = json.loads(value or b"{}")
    except (ValueError, RecursionError):
        return {}
    found = content.items() if isinstance(content, dict) else ()
    return {context: highest for context, highest in found if type(highest) is int and 0 < highest <= MAX_ID}


def highest_ids(state: RegistryState) -> dict[str, int]:
    """Return the highest ids that the state knows, by context."""
    known = state.reserved_ids()
    return {DEFAULT_CONTEXT: known.highest_id, **dict(known.of_contexts)}


def unknown_ids(state: RegistryState, given: Mapping[str, int]) -> dict[str, int]:
    """Return the highest ids that were given out, by context, where the state knows only lower ones."""
    return {context: highest for context, highest in given.items() if highest > state.highest_id(context)}


def ids_beyond_a_copy(state: RegistryState) -> dict[str, int]:
    """Return the highest ids that may have been given where the log was copied from, if its end was not copied."""
    known = highest_ids(state).items()
    return {context: min(highest + PROMOTION_GAP, MAX_ID) for context, highest in known if highest}


def why_ids_are_lost(state: RegistryState, given: Mapping[str, int]) -> str | None:
    """Return a sentence if the log has no id at all, though ids were given out; None if all is well.

    A log that has some of the ids is an older one: its writer continues beyond the ids that were given out.
    """
    if not any(given.values()) or any(state.highest_id(context) for context in given):
        return None
    return (
        f"the topic of the schemas is empty, but ids up to {max(given.values())} were given out. Restore the topic "
        "from a backup, or from its copy in another datacenter; docs/registry/writers.md says how"
    )


def _guard_failed(error: PipelineError) -> PipelineError:
    advice = "If it was deleted, restart the registries, which create it again"
    return PipelineError(f"the topic of the highest ids ({GUARD_SUFFIX}) failed: {error}. {advice}")


class IdGuard:
    """The highest ids that are known to have been given out, by context."""

    def __init__(self, journal: SchemaJournal) -> None:
        self._journal = journal
        self._turn = trio.Lock()
        self._next_offset = 0
        self._ids: dict[str, int] = {}
        self._lacks_ids = False
        """True if the log may have lost ids (invariant C)."""

    def has(self, context: str, schema_id: int) -> bool:
        """Return True if an id is known to be in the guard's log, or a higher one of its context."""
        return schema_id <= self._ids.get(context, 0)

    async def given_ids(self) -> Mapping[str, int]:
        """Read to the end of the guard's log, and return its ids. Raises PipelineError if it cannot be reached."""
        try:
            async with self._turn:
                try:
                    await self._read_on()
                except JournalLostError:  # truncated, if it can be read from its beginning
                    self._next_offset = 0
                    self._lacks_ids = True
                    await self._read_on()
        except PipelineError as error:
            raise _guard_failed(error) from error
        return self._ids

    async def _read_on(self) -> None:
        end_offset = await self._journal.end_offset()
        if end_offset < self._next_offset:
            raise JournalLostError(f"the log ends at {end_offset}, but was read up to {self._next_offset}")
        while self._next_offset < end_offset:
            page = await self._journal.read(self._next_offset)
            for record in page.records:
                self._note(decode_ids(record.value))
            self._next_offset = page.next_offset

    async def raise_to(self, ids: Mapping[str, int]) -> None:
        """Remember ids before they are given out. Raises PipelineError if that is not sure."""
        if self._lacks_ids or self._higher(ids):
            await self.keep(ids)

    async def keep(self, ids: Mapping[str, int]) -> None:
        """Write ids also if they are known: the log of the guard may have lost its end. Raises PipelineError."""
        try:
            async with self._turn:
                await self._write(ids)
        except PipelineError as error:
            raise _guard_failed(error) from error

    async def _write(self, ids: Mapping[str, int]) -> None:
        """Append ids until the last record has all that are known (invariant B)."""
        while True:
            written = {**self._ids, **self._higher(ids)}
            (offset,) = await self._journal.append([encode_ids(written)])
            self._note(written)
            if offset == self._next_offset:
                self._next_offset += 1
            else:
                await self._read_on()
            if self._ids == written:
                self._lacks_ids = False
                return

    def _higher(self, ids: Mapping[str, int]) -> dict[str, int]:
        return {context: highest for context, highest in ids.items() if highest > self._ids.get(context, 0)}

    def _note(self, ids: Mapping[str, int]) -> None:
        self._ids.update(self._higher(ids))
