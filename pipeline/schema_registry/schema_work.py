"""Work on schemas, in a thread of its own: parsing what clients send, and comparing it with stored versions.

Texts of strangers may take a second and some megabytes, so that one is worked on at a time and the event loop goes on
meanwhile. Parsed versions are kept, as the next schema of their subject is compared with them again.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import trio

from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.candidates import (
    Candidate,
    Dependencies,
    SchemaComparison,
    SchemaRequest,
    parse_candidate,
    parse_stored,
    reasons_against,
)
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.events import Event, SchemaWritten, decode_event
from pipeline.schema_registry.journal import JournalRecord
from pipeline.schema_registry.stored import StoredSchema

KEPT_CHARACTERS: Final = 4_000_000
"""Of texts whose trees are kept; a tree takes some ten times the memory of its text."""
SMALL_BYTES: Final = 16_384
"""Of records whose reading takes no longer than handing them to a thread and back, about."""

ResultT = TypeVar("ResultT")


class SchemaWork:
    """The thread, and the trees it keeps. Calls wait for their turn."""

    def __init__(self) -> None:
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._trees = _Trees()

    async def read_body(self, body: bytes) -> dict[str, Any]:
        """Read a body as a JSON object. Raises RegistryError 422."""
        return await self._run(lambda: _read_object(body))

    async def candidate(
        self, request: SchemaRequest, dependencies: Dependencies, *, check_defaults: bool, normalize: bool
    ) -> Candidate:
        """Parse the schema of a request. Raises RegistryError 42201 if it is invalid."""
        return await self._run(
            lambda: parse_candidate(request, dependencies, check_defaults=check_defaults, normalize=normalize)
        )

    async def judge(self, candidate: Candidate, comparison: SchemaComparison) -> list[str]:
        """Return the reasons against a schema, one sentence each."""
        return await self._run(lambda: reasons_against(candidate, comparison, self._trees.tree_of))

    async def events(self, records: Sequence[JournalRecord]) -> list[Event]:
        """Return the events of records, with the identities of their schemas. Few small ones take no thread."""
        if sum(len(record.value or b"") for record in records) <= SMALL_BYTES:
            return [_decode(record) for record in records]
        return await self._run(lambda: [_decode(record) for record in records])

    async def _run(self, work: Callable[[], ResultT]) -> ResultT:
        return await trio.to_thread.run_sync(work, limiter=self._one_at_a_time)


class _Trees:
    """Parsed texts by identity and what they refer to, the latest used ones. For one thread at a time."""

    def __init__(self) -> None:
        self._trees: OrderedDict[tuple[bytes, Dependencies], tuple[int, AvroSchema | None]] = OrderedDict()
        self._characters = 0

    def tree_of(self, schema: StoredSchema, dependencies: Dependencies | None) -> AvroSchema | None:
        """Return None for a text that is unreadable, or not Avro, or whose dependencies are lost."""
        if dependencies is None:
            return None
        key = schema.identity, dependencies
        if key not in self._trees:
            self._trees[key] = len(schema.text), parse_stored(schema, dependencies)
            self._characters += len(schema.text)
        self._trees.move_to_end(key)
        _, tree = self._trees[key]
        while self._characters > KEPT_CHARACTERS:
            _, (characters, _) = self._trees.popitem(last=False)
            self._characters -= characters
        return tree


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RegistryError(Code.UNPROCESSABLE, f"The body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise RegistryError(Code.UNPROCESSABLE, "The body is not a JSON object")
    return content


def _decode(record: JournalRecord) -> Event:
    event = decode_event(record.key, record.value)
    if isinstance(event, SchemaWritten):
        _ = event.identity  # computed here, in the thread, and kept
    return event
