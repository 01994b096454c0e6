"""Several writes as one append: each is decided against the state, beside the others of its round. Pure.

Invariants:

A. A round has one write, or registrations of different schemas in different subjects. These may be carried out in any
   order; only ids are shared, and each registration takes ids beyond those of the registrations before it.
B. A round without events changes nothing: its answers and refusals hold if the state was up to date.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.schema_registry.errors import RegistryError
from pipeline.schema_registry.rules.registry import WritePlan
from pipeline.schema_registry.state.contexts import DEFAULT_CONTEXT, context_of
from pipeline.schema_registry.state.events import (
    IdsReserved,
    SchemaRemoved,
    SchemaWritten,
    SubjectDeleted,
    decode_event,
    encode_event,
)
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.stored import written
from pipeline.schema_registry.writing.journal import Record

MAX_ROUND = 64
"""Writes of a round."""

Decide = Callable[[RegistryState], WritePlan[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class WriteRequest:
    """A write that waits."""

    decide: Decide
    schema: Hashable = None
    """Identity of the schema to register; None for any other write, which has a round of its own."""
    restore: Callable[[RegistryState], Sequence[Record]] | None = None
    """Returns records to append as they are, instead of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWrite:
    """Answer and records of a write, or the refusal."""

    request: WriteRequest
    answer: Any = None
    refusal: RegistryError | None = None
    records: tuple[Record, ...] = ()
    ids: tuple[tuple[str, int], ...] = ()
    """Ids that it gives to schemas, each with its context."""


@dataclass(slots=True)
class Round:
    """Writes to append together, and those that have to wait for a later round."""

    writes: list[PlannedWrite] = field(default_factory=list)
    later: list[WriteRequest] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """Return the records of all writes, in order."""
        return [record for write in self.writes for record in write.records]

    def judged(self, counts: Sequence[bool]) -> tuple[list[PlannedWrite], list[PlannedWrite]]:
        """Return the writes that hold, by whether each record of the round counts, and those to decide again.

        An answer without records rests on the state, which others have changed if any record does not count.
        """
        holding: list[PlannedWrite] = []
        refused: list[PlannedWrite] = []
        left = iter(counts)
        for write in self.writes:
            own = [next(left) for _ in write.records]
            (holding if all(own if own else counts) else refused).append(write)
        return holding, refused


class StateAhead(RegistryState):
    """A state in which the registrations of a round have taken their ids. It shares all else with the state."""

    def __init__(self, state: RegistryState) -> None:
        self.__dict__.update(state.__dict__)
        self.taken: dict[str, int] = {}

    def next_id(self, context: str = DEFAULT_CONTEXT) -> int:
        """Return the next id of the state, beyond the ids of the round."""
        return max(super().next_id(context), self.taken.get(context, 0) + 1)


def plan_round(state: RegistryState, waiting: Sequence[WriteRequest]) -> Round:
    """Decide the next writes, oldest first, as many as can be appended together (invariant A)."""
    planned = Round()
    ahead = StateAhead(state)
    schemas: set[Hashable] = set()
    subjects: set[str] = set()
    for number, request in enumerate(waiting):
        is_full = len(planned.writes) == MAX_ROUND
        if is_full or (planned.writes and (request.schema is None or request.schema in schemas)):
            planned.later.append(request)
            continue
        try:
            plan = request.decide(ahead)
        except RegistryError as refusal:
            planned.writes.append(PlannedWrite(request=request, refusal=refusal))
            plan = None
        if plan is not None:
            written = [event for event in plan.events if isinstance(event, SchemaWritten)]
            if not subjects.isdisjoint(event.subject for event in written):
                planned.later.append(request)
                continue
            subjects.update(event.subject for event in written)
            ids = tuple((context_of(event.subject), event.id) for event in written)
            for context, schema_id in ids:
                ahead.taken[context] = max(ahead.taken.get(context, 0), schema_id)
            records: tuple[Record, ...] = tuple(encode_event(event) for event in plan.events)
            if request.restore is not None:
                records = tuple(request.restore(state))
            planned.writes.append(PlannedWrite(request=request, answer=plan.answer, records=records, ids=ids))
        if request.schema is None:
            planned.later.extend(waiting[number + 1 :])
            break
        schemas.add(request.schema)
    return planned


def ids_of(writes: Sequence[PlannedWrite]) -> dict[str, int]:
    """Return the highest ids that these writes give to schemas, by context."""
    highest: dict[str, int] = {}
    for context, schema_id in (given for write in writes for given in write.ids):
        highest[context] = max(highest.get(context, 0), schema_id)
    return highest


def reservation(ids: Mapping[str, int]) -> IdsReserved:
    """Return the event that keeps these ids, by context, from being given out again."""
    others = tuple((context, highest) for context, highest in ids.items() if context != DEFAULT_CONTEXT)
    return IdsReserved(highest_id=ids.get(DEFAULT_CONTEXT, 0), of_contexts=others)


def restored_records(state: RegistryState, key: bytes, value: bytes | None) -> list[Record]:
    """Return what to write so that compaction keeps what counts for a key, whose last record that counts had `value`.

    The deletion of a subject must not be repeated, as younger versions may have the numbers that it names. Instead each
    version is written with its own mark of deletion, and the record of the deletion is removed. A version is written as
    the state has it: it may have been deleted with its subject, or stand under a key that another registry spells.
    """
    removed = decode_event(key, None)
    if isinstance(removed, SchemaRemoved):
        version = state.version(removed.subject, removed.version)
        return [(key, None if version is None else encode_event(written(version, deleted=version.deleted))[1])]
    event = decode_event(key, value)
    if not isinstance(event, SubjectDeleted):
        return [(key, value)]
    versions = state.versions(event.subject, deleted=True)
    return [*(encode_event(written(version, deleted=version.deleted)) for version in versions), (key, None)]
