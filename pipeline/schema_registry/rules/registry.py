"""Rules of the registry: each command is decided against the state, and gives an answer and events. Pure.

Nothing here changes the state. The service writes the events to the log, applies them as it reads them back, and only
then answers. Events of one plan are written in order; after each prefix of them the state is valid, and the command can
be repeated.

Deletions and settings have modules of their own. Source: Confluent's Schema Registry API reference.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.errors import Code, RegistryError, subject_not_found, version_not_found
from pipeline.schema_registry.rules.candidates import LATEST_VERSION, Candidate, SchemaComparison
from pipeline.schema_registry.rules.references import dependencies_of, dependencies_of_version
from pipeline.schema_registry.state.contexts import (
    ANY_CONTEXT,
    DEFAULT_CONTEXT,
    GLOBAL_CONTEXT,
    context_of,
    join_subject,
    split_subject,
)
from pipeline.schema_registry.state.events import ContextSet, SchemaWritten, WrittenEvent
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.stored import StoredSchema, Version, stored_schema
from pipeline.schema_registry.state.subject_settings import RegistryMode

MAX_SUBJECT_LENGTH = 249 + len("-value")
MAX_ID = (1 << 31) - 1
MAX_VERSION = (1 << 31) - 1
LATEST = "latest"
_RESERVED_NAMES = frozenset({"__GLOBAL", "__EMPTY"})

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class WritePlan(Generic[AnswerT]):
    """The answer to give once the events are in the log. Without events it holds already."""

    answer: AnswerT
    events: tuple[WrittenEvent, ...] = ()


Judged = Mapping[SchemaComparison, Sequence[str]]
"""Comparisons that were made, with the reasons against the schema in sentences; none if it may follow."""


def register(
    state: RegistryState, subject: str, candidate: Candidate, judged: Judged
) -> WritePlan[Version | SchemaComparison]:
    """Register a schema as a version of a subject; the answer is the version. A registered schema gets no new version.

    A schema of another subject of the context, also a soft-deleted one, keeps its id. The answer is a comparison that
    is to be made first, if it is not among `judged`. Raises RegistryError: 409 with the reasons if the level does not
    allow the schema after the versions before it, 42205 if the mode does not allow it, 42201 if it is not an import and
    needs a soft-deleted version.
    """
    check_subject(subject)
    versions = state.versions(subject)
    present = _registered(versions, candidate)
    if present is not None:
        return WritePlan(present)
    _check_mode(state, subject, candidate)
    needed = dependencies_of(state, subject, candidate.references, deleted=candidate.id is not None)
    if needed != candidate.dependencies:
        raise RegistryError(Code.INVALID_SCHEMA, "Invalid schema: its references have changed meanwhile; try again")
    if candidate.id is not None:
        return _plan_version(state, subject, _imported(state, subject, candidate, candidate.id))
    number = _next_number(state, subject)
    if candidate.version not in {None, LATEST_VERSION, number}:
        reason = f"Version is not one more than previous version: the next version of '{subject}' is {number}"
        raise RegistryError(Code.INVALID_SCHEMA, reason)
    comparison = _comparison(state, subject, versions)
    reasons = judged.get(comparison) if comparison.versions else []
    if reasons is None:
        return WritePlan(comparison)
    if reasons:
        message = f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
        raise RegistryError(Code.INCOMPATIBLE_SCHEMA, message + "; ".join(reasons))
    context = context_of(subject)
    known_id = state.id_of(candidate.identity, context)
    schema_id = state.next_id(context) if known_id is None else known_id
    if schema_id > MAX_ID:
        raise RegistryError(Code.STORE_FAILED, f"All ids of the context '{context}' up to {MAX_ID} are used")
    return _plan_version(state, subject, _new_version(state, subject, number, schema_id, candidate))


def _registered(versions: Sequence[Version], candidate: Candidate) -> Version | None:
    """Return the version that the client means, if it exists."""
    if candidate.version == LATEST_VERSION:
        versions = versions[-1:]
    elif candidate.version is not None:
        versions = [version for version in versions if version.number == candidate.version]
        if candidate.id is None:
            return None
    if candidate.id is not None:
        versions = [version for version in versions if version.schema.id == candidate.id]
    return _find(versions, candidate)


def _check_mode(state: RegistryState, subject: str, candidate: Candidate) -> None:
    check_writable(state, subject)
    mode = state.settings.mode(subject)
    if candidate.id is not None and mode is not RegistryMode.IMPORT:
        raise _not_permitted(subject, "is not in import mode: the registry gives the ids itself, leave 'id' out")
    if candidate.id is None and mode is not RegistryMode.READWRITE:
        raise _not_permitted(subject, "is not in read-write mode: an import needs 'id'")


def check_writable(state: RegistryState, subject: str | None) -> None:
    """Raise RegistryError 42205 if nothing may be written to the subject."""
    if state.settings.mode(subject).read_only:
        raise _not_permitted(subject or "", "is in read-only mode")


def _not_permitted(subject: str, reason: str) -> RegistryError:
    return RegistryError(Code.NOT_PERMITTED, f"Subject {subject} in context {context_of(subject)} {reason}")


def _imported(state: RegistryState, subject: str, candidate: Candidate, schema_id: int) -> SchemaWritten:
    context = context_of(subject)
    holder = state.schema(schema_id, context)
    if holder is not None and holder.identity != candidate.identity:
        reason = f"Overwrite new schema with id {schema_id} in context {context} is not permitted."
        raise RegistryError(Code.NOT_PERMITTED, reason)
    wanted = candidate.version
    number = wanted if wanted is not None and wanted > 0 else _next_number(state, subject)
    held = state.version(subject, number)
    if held is not None and held.schema.id != schema_id:
        reason = f"Overwrite version {number} of subject {subject}, which has id {held.schema.id}, is not permitted."
        raise RegistryError(Code.NOT_PERMITTED, reason)
    return _new_version(state, subject, number, schema_id, candidate)


def _next_number(state: RegistryState, subject: str) -> int:
    versions = state.versions(subject, deleted=True)
    number = versions[-1].number + 1 if versions else 1
    if number > MAX_VERSION:
        reason = f"Subject '{subject}' has version {MAX_VERSION}, the last one that there is"
        raise RegistryError(Code.INVALID_VERSION, reason)
    return number


def _new_version(
    state: RegistryState, subject: str, number: int, schema_id: int, candidate: Candidate
) -> SchemaWritten:
    """Return the record of a version. The text of a known id stays as it is."""
    stored = state.schema(schema_id, context_of(subject))
    return SchemaWritten(
        subject=subject,
        version=number,
        id=schema_id,
        text=candidate.text if stored is None else stored.text,
        references=candidate.references if stored is None else stored.references,
        more="" if stored is None else stored.more,
    )


def _plan_version(state: RegistryState, subject: str, event: SchemaWritten) -> WritePlan[Version | SchemaComparison]:
    """Write the version; then remove earlier soft-deleted versions of the same id that no schema refers to."""
    context = context_of(subject)
    new_context = () if state.is_recorded(context) else (ContextSet(context=context),)
    outdated = tuple(
        removed
        for version in state.versions(subject, deleted=True)
        if version.deleted
        and version.schema.id == event.id
        and version.number < event.version
        and not state.referrers(subject, version.number, deleted=True)
        for removed in state.removal(subject, version.number)
    )
    schema: StoredSchema = state.schema(event.id, context) or stored_schema(event)
    answer = Version(subject=subject, number=event.version, schema=schema, deleted=False)
    return WritePlan(answer, (*new_context, event, *outdated))


def look_up(state: RegistryState, subject: str, candidate: Candidate, *, deleted: bool = False) -> Version:
    """Return the version of the subject that has this schema, the latest of several.

    A subject without a context is looked for in all contexts, the default one first. Raises RegistryError: 40401,
    40403.
    """
    for name in _meant(state, subject):
        present = _find(state.versions(name, deleted=deleted), candidate)
        if present is not None:
            return present
    if not state.versions(subject, deleted=deleted):
        raise subject_not_found(subject)
    raise RegistryError(Code.SCHEMA_NOT_FOUND, "Schema not found")


def parse_version(text: str) -> int | None:
    """Parse a version in a path; None is the latest (`latest`, `-1`). Raises RegistryError 42202."""
    text = text.strip()
    if text.lower() in {LATEST, "-1"}:
        return None
    if text.isascii() and text.isdigit() and len(text) < 11 and 0 < int(text) <= MAX_VERSION:
        return int(text)
    reason = f"The specified version '{text}' is not a valid version id. Allowed values are between [1, 2^31-1]"
    raise RegistryError(Code.INVALID_VERSION, f'{reason} and the string "{LATEST}"')


def get_version(state: RegistryState, subject: str, number: int | None, *, deleted: bool = False) -> Version:
    """Return a version of a subject. None is the latest one that is not deleted.

    A subject without a context is looked for in all contexts, the default one first. Raises RegistryError: 40401,
    40402.
    """
    for name in _meant(state, subject):
        versions = state.versions(name, deleted=deleted and number is not None)
        found = versions[-1:] if number is None else [version for version in versions if version.number == number]
        if found:
            return found[0]
    if not state.versions(subject, deleted=deleted):
        raise subject_not_found(subject)
    raise version_not_found(LATEST if number is None else number)


def bearer_of_id(state: RegistryState, schema_id: int, context: str, subject: str) -> Version:
    """Return a version that bears an id of a context: the latest one of this subject, else the first of all."""
    own = state.versions(join_subject(context, split_subject(subject)[1]), deleted=True)
    found = next((version for version in reversed(own) if version.schema.id == schema_id), None)
    found = found or state.version(*min(state.bearers(schema_id, context)))
    assert found is not None
    return found


def latest_with(state: RegistryState, subject: str, properties: Mapping[str, str], *, deleted: bool = False) -> Version:
    """Return the latest version whose metadata, which another registry wrote, have these properties.

    Raises RegistryError: 40401, 40403.
    """
    versions = state.versions(subject, deleted=deleted)
    for version in reversed(versions):
        metadata = json.loads(version.schema.more or "{}").get("metadata")
        own = metadata.get("properties") if isinstance(metadata, dict) else None
        if properties.items() <= (own if isinstance(own, dict) else {}).items():
            return version
    if not versions:
        raise subject_not_found(subject)
    raise RegistryError(Code.SCHEMA_NOT_FOUND, "Schema not found")


def _meant(state: RegistryState, subject: str) -> Iterator[str]:
    """Yield the subjects that a name may stand for."""
    yield subject
    context, name = split_subject(subject)
    if context == DEFAULT_CONTEXT:
        yield from (join_subject(other, name) for other in state.contexts() if other != DEFAULT_CONTEXT)


def comparison_of(state: RegistryState, subject: str, *, against: str | None) -> SchemaComparison:
    """Return what a schema is to be compared with, to tell whether the subject's level allows it.

    `against` is a version (or `latest`); None stands for the versions that the level names. A subject without versions
    allows any schema. Raises RegistryError: 40401, 40402.
    """
    versions = state.versions(subject)
    if against is not None:
        number = parse_version(against)
        if number is not None:
            if not versions:
                raise subject_not_found(subject)
            versions = [version for version in versions if version.number == number]
            if not versions:
                raise version_not_found(number)
        versions = versions[-1:]
    return _comparison(state, subject, versions)


def check_subject(subject: str, *, settings: bool = False) -> None:
    """Raise RegistryError 42208 for a name that no subject may have. With `settings` it may also be a context."""
    context, name = split_subject(subject)
    too_long = max(len(name), len(context)) > MAX_SUBJECT_LENGTH
    if too_long or not (name.strip() or settings) or any(not _is_allowed(letter) for letter in subject):
        reason = f"The subject must have 1 to {MAX_SUBJECT_LENGTH} characters, none of them a control character"
        raise RegistryError(Code.INVALID_SUBJECT, f"{reason} or half of a surrogate pair")
    if name in {".", ".."}:
        raise RegistryError(Code.INVALID_SUBJECT, f"The subject '{name}' would have no address: browsers leave it out")
    reserved = subject.startswith(ANY_CONTEXT) or name in _RESERVED_NAMES
    if reserved or (context == GLOBAL_CONTEXT and not settings):
        raise RegistryError(Code.INVALID_SUBJECT, f"The subject '{subject}' is reserved")


def _is_allowed(letter: str) -> bool:
    return letter >= " " and not "\ud800" <= letter <= "\udfff"


def _find(versions: Sequence[Version], candidate: Candidate) -> Version | None:
    equal = (version for version in reversed(versions) if version.schema.identity == candidate.identity)
    found = next(equal, None)
    if found is not None or not candidate.equal_ids:
        return found
    return next((version for version in reversed(versions) if version.schema.id in candidate.equal_ids), None)


def _comparison(state: RegistryState, subject: str, versions: Sequence[Version]) -> SchemaComparison:
    level = state.settings.level(subject)
    if level is CompatibilityLevel.NONE:
        return SchemaComparison(level, ())
    compared = versions if level.transitive else versions[-1:]
    needed = {version.schema.references: version for version in compared}
    found = {references: dependencies_of_version(state, version) for references, version in needed.items()}
    return SchemaComparison(level, tuple((version, found[version.schema.references]) for version in compared))
