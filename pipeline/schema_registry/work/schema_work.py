"""Work on schemas, in threads: parsing what clients send, and comparing it with stored versions.

Texts of strangers may take seconds and some megabytes, so that the event loop goes on meanwhile. Parsed versions are
kept, as the next schema of their subject is compared with them again.

Invariants:

A. What is small begins in the short lane; what takes more steps than this lane gives begins again in the long lane. So
   nobody's small request waits for a large one.
B. Records of the log have a lane of their own without bounds: a write is answered once its record was read back.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import trio

from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.avro.work import MAX_COMPARISON_STEPS, RequestStepsError
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.rules.candidates import (
    Candidate,
    Dependencies,
    Referring,
    SchemaComparison,
    SchemaRequest,
    equal_ids,
    parse_candidate,
    parse_stored,
    reasons_against,
    text_with_dependencies,
)
from pipeline.schema_registry.state.events import Event, SchemaWritten, decode_event
from pipeline.schema_registry.state.stored import StoredSchema
from pipeline.schema_registry.work.work_lane import WorkLane
from pipeline.schema_registry.writing.journal import JournalRecord

KEPT_CHARACTERS: Final = 4_000_000
"""Of texts whose trees are kept; a tree takes some ten times the memory of its text."""
SMALL_BYTES: Final = 16_384
"""Of records whose reading takes about as long as handing them to a thread; of texts in the short lane."""
SHORT_STEPS: Final = 20_000
"""Steps in the short lane: some 30 ms. To parse a record of 300 fields takes a fifth of them."""
LONG_STEPS: Final = MAX_COMPARISON_STEPS
TOO_MUCH: Final = "takes too many steps; make the schema smaller, nest it less, or compare it with fewer versions"

ResultT = TypeVar("ResultT")


class SchemaWork:
    """The lanes, and the trees that they share. Calls wait for their turn. All but `events` raise RegistryError 503."""

    def __init__(self) -> None:
        self.short = WorkLane(SHORT_STEPS)
        self.long = WorkLane(LONG_STEPS)
        self._log = trio.CapacityLimiter(1)
        self._trees = _Trees()

    async def read_body(self, body: bytes) -> dict[str, Any]:
        """Read a body as a JSON object. Raises RegistryError 422."""
        return await self._run(len(body), lambda: _read_object(body))

    async def candidate(
        self, request: SchemaRequest, dependencies: Dependencies, *, check_defaults: bool, normalize: bool
    ) -> Candidate:
        """Parse the schema of a request. Raises RegistryError 42201 if it is invalid."""
        try:
            return await self._run(
                len(request.text),
                lambda: parse_candidate(request, dependencies, check_defaults=check_defaults, normalize=normalize),
                stored=_size(dependencies),
            )
        except RequestStepsError:
            reason = f"Invalid schema: it {TOO_MUCH}"
            raise RegistryError(Code.INVALID_SCHEMA, reason) from None

    async def equal_ids(self, text: str, referring: Referring) -> frozenset[int]:
        """Return the ids of schemas with references that a text without them means. None are found beyond all steps."""
        stored = sum(_size((schema, *needed)) for schema, needed in referring)
        try:
            return await self._run(len(text), lambda: equal_ids(text, referring), stored=stored)
        except RequestStepsError:
            return frozenset()

    async def whole_text(self, schema: StoredSchema, dependencies: Dependencies) -> str:
        """Return a text with the types that it refers to put in, or as it is if that is not possible."""
        stored = _size((schema, *dependencies))
        try:
            text = await self._run(0, lambda: text_with_dependencies(schema, dependencies), stored=stored)
        except RequestStepsError:
            text = None
        return schema.text if text is None else text

    async def judge(self, candidate: Candidate, comparison: SchemaComparison) -> list[str]:
        """Return the reasons against a schema, one sentence each."""
        try:
            return await self._run(
                len(candidate.text),
                lambda: reasons_against(candidate, comparison, self._trees.tree_of),
                stored=sum(len(version.schema.text) for version, _ in comparison.versions),
            )
        except RequestStepsError:
            return [f"comparing the schema with the versions before it {TOO_MUCH}"]

    async def events(self, records: Sequence[JournalRecord]) -> list[Event]:
        """Return the events of records, with the identities of their schemas. Few small ones take no thread."""
        if sum(len(record.value or b"") for record in records) <= SMALL_BYTES:
            return [_decode(record) for record in records]
        return await trio.to_thread.run_sync(lambda: [_decode(record) for record in records], limiter=self._log)

    async def _run(self, size: int, work: Callable[[], ResultT], *, stored: int = 0) -> ResultT:
        """Run work on `size` bytes of the request and `stored` ones. Raises RequestStepsError beyond LONG_STEPS."""
        if size + stored <= SMALL_BYTES:
            try:
                return await self.short.run(size, work)
            except RequestStepsError:
                pass  # invariant A
        return await self.long.run(size, work)


class _Trees:
    """Parsed texts by identity and what they refer to, the latest used ones. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trees: OrderedDict[tuple[bytes, Dependencies], tuple[int, AvroSchema | None]] = OrderedDict()
        self._characters = 0

    def tree_of(self, schema: StoredSchema, dependencies: Dependencies | None) -> AvroSchema | None:
        """Return None for a text that is unreadable, or not Avro, or whose dependencies are lost."""
        if dependencies is None:
            return None
        key = schema.identity, dependencies
        with self._lock:
            known = self._trees.get(key)
            if known is not None:
                self._trees.move_to_end(key)
                return known[1]
        tree = parse_stored(schema, dependencies)  # without the lock: it may take a second, and both lanes parse
        with self._lock:
            if key not in self._trees:
                self._trees[key] = len(schema.text), tree
                self._characters += len(schema.text)
            while self._characters > KEPT_CHARACTERS:
                _, (characters, _) = self._trees.popitem(last=False)
                self._characters -= characters
        return tree


def _size(schemas: Sequence[StoredSchema]) -> int:
    return sum(len(schema.text) for schema in schemas)


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
