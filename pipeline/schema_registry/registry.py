"""Rules of the registry: each command is decided against the state, and gives an answer and events. Pure.

Nothing here changes the state. The service writes the events to the log, applies them as it reads them back, and only
then answers. Events of one plan are written in order; after each prefix of them the state is valid, and the command can
be repeated.

Source: Confluent's Schema Registry API reference.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema, shown
from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.compatibility import CompatibilityLevel, why_incompatible
from pipeline.schema_registry.errors import Code, RegistryError, subject_not_found, version_not_found
from pipeline.schema_registry.events import (
    AVRO,
    IdsReserved,
    LevelSet,
    SchemaRemoved,
    SchemaWritten,
    SubjectDeleted,
    identity_of,
)
from pipeline.schema_registry.state import RegistryState, StoredSchema, Version, written

MAX_SUBJECT_LENGTH = 249 + len("-value")
LATEST = "latest"

PlannedEvent = SchemaWritten | SchemaRemoved | SubjectDeleted | LevelSet | IdsReserved
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class WritePlan(Generic[AnswerT]):
    """The answer to give once the events are in the log. Without events it holds already."""

    answer: AnswerT
    events: tuple[PlannedEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaComparison:
    """Versions that a new schema has to be compared with before the command can be decided, oldest first."""

    level: CompatibilityLevel
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A valid schema that a client sent."""

    schema: AvroSchema
    identity: bytes


Judged = Mapping[SchemaComparison, Sequence[str]]
"""Comparisons that were made, with the reasons against the schema in sentences; none if it may follow."""


def parse_candidate(content: Mapping[str, Any]) -> Candidate:
    """Parse the schema of a request. Raises RegistryError 42201 if it is invalid or of a kind that is not served."""
    text, schema_type = content.get("schema"), content.get("schemaType") or AVRO
    if not isinstance(text, str):
        raise RegistryError(Code.INVALID_SCHEMA, "The body needs 'schema': the schema's text as a JSON string")
    if schema_type != AVRO:
        raise RegistryError(Code.INVALID_SCHEMA, f"Schemas of type {shown(str(schema_type))} are not served")
    if content.get("references"):
        reason = "Schema references are not served: put the referenced types into the schema"
        raise RegistryError(Code.INVALID_SCHEMA, reason)
    try:
        return Candidate(schema=parse_schema(text), identity=identity_of(text, AVRO))
    except InvalidSchemaError as error:
        raise RegistryError(Code.INVALID_SCHEMA, f"Invalid schema: {error}") from error


def parse_stored(schema: StoredSchema) -> AvroSchema | None:
    """Parse the text of an id; None if it is unreadable, or not Avro."""
    if schema.schema_type != AVRO:
        return None
    try:
        return parse_schema(schema.text, check_defaults=False)
    except InvalidSchemaError:
        return None


def reasons_against(
    candidate: Candidate,
    comparison: SchemaComparison,
    tree_of: Callable[[StoredSchema], AvroSchema | None] = parse_stored,
) -> list[str]:
    """Return the reasons why a schema may not follow the versions, one sentence each; none if it may."""
    trees = [(version.number, tree_of(version.schema)) for version in comparison.versions]
    unknown = [f"version {number} is not an Avro schema that can be compared" for number, tree in trees if tree is None]
    earlier = [(number, tree) for number, tree in trees if tree is not None]
    return [*unknown, *why_incompatible(comparison.level, candidate.schema, earlier)]


def register(
    state: RegistryState, subject: str, candidate: Candidate, judged: Judged
) -> WritePlan[int | SchemaComparison]:
    """Register a schema as a version of a subject; the answer is its id. A registered schema gets no new version.

    A schema of another subject, also a soft-deleted one, keeps its id. The answer is a comparison that is to be made
    first, if it is not among `judged`. Raises RegistryError: 409 with the reasons if the level does not allow the
    schema after the versions before it.
    """
    check_subject(subject)
    versions = state.versions(subject)
    present = _find(versions, candidate)
    if present is not None:
        return WritePlan(present.schema.id)
    comparison = _comparison(state.level(subject), versions)
    reasons = judged.get(comparison) if comparison.versions else []
    if reasons is None:
        return WritePlan(comparison)
    if reasons:
        message = f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: '
        raise RegistryError(Code.INCOMPATIBLE_SCHEMA, message + "; ".join(reasons))
    numbers = [version.number for version in state.versions(subject, deleted=True)]
    known_id = state.id_of(candidate.identity)
    schema_id = state.next_id if known_id is None else known_id
    stored = None if known_id is None else state.schema(known_id)
    event = SchemaWritten(
        subject=subject,
        version=max(numbers, default=0) + 1,
        id=schema_id,
        text=candidate.schema.text if stored is None else stored.text,
    )
    return WritePlan(schema_id, (event,))


def look_up(state: RegistryState, subject: str, candidate: Candidate, *, deleted: bool = False) -> Version:
    """Return the version of the subject that has this schema. Raises RegistryError: 40401, 40403."""
    versions = state.versions(subject, deleted=deleted)
    if not versions:
        raise subject_not_found(subject)
    present = _find(versions, candidate)
    if present is None:
        raise RegistryError(Code.SCHEMA_NOT_FOUND, "Schema not found")
    return present


def parse_version(text: str) -> int | None:
    """Parse a version in a path; None is the latest (`latest`, `-1`). Raises RegistryError 42202."""
    if text in {LATEST, "-1"}:
        return None
    if text.isascii() and text.isdigit() and 0 < int(text[:11]) < 1 << 31:
        return int(text)
    reason = f"The specified version '{text}' is not a valid version id. Allowed values are between [1, 2^31-1]"
    raise RegistryError(Code.INVALID_VERSION, f'{reason} and the string "{LATEST}"')


def get_version(state: RegistryState, subject: str, number: int | None, *, deleted: bool = False) -> Version:
    """Return a version of a subject, None the latest. Raises RegistryError: 40401, 40402."""
    versions = state.versions(subject, deleted=deleted)
    if not versions:
        raise subject_not_found(subject)
    if number is None:
        return versions[-1]
    found = next((version for version in versions if version.number == number), None)
    if found is None:
        raise version_not_found(number)
    return found


def comparison_of(state: RegistryState, subject: str, *, against: str | None) -> SchemaComparison:
    """Return what a schema is to be compared with, to tell whether the subject's level allows it.

    `against` is a version (or `latest`); None stands for the versions that the level names. A subject without versions
    allows any schema. Raises RegistryError: 40401, 40402.
    """
    versions = state.versions(subject)
    if against is not None:
        number = parse_version(against)
        versions = [get_version(state, subject, number)] if versions or number is not None else []
    return _comparison(state.level(subject), versions)


def delete_version(state: RegistryState, subject: str, number: int | None, *, permanent: bool) -> WritePlan[int]:
    """Delete a version softly or, once that is done, permanently; the answer is its number. Raises RegistryError."""
    versions = {version.number: version for version in state.versions(subject, deleted=True)}
    if not versions:
        raise subject_not_found(subject)
    if number is None:
        number = get_version(state, subject, None, deleted=permanent).number
    version = versions.get(number)
    if version is None:
        raise version_not_found(number)
    if not permanent:
        if version.deleted:
            reason = f"Subject '{subject}' Version {number} was soft deleted. Set permanent=true to delete permanently"
            raise RegistryError(Code.VERSION_SOFT_DELETED, reason)
        return WritePlan(number, (written(version, deleted=True),))
    if not version.deleted:
        reason = f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted"
        raise RegistryError(Code.VERSION_NOT_SOFT_DELETED, reason)
    return WritePlan(number, (IdsReserved(highest_id=state.highest_id), SchemaRemoved(subject=subject, version=number)))


def delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> WritePlan[list[int]]:
    """Delete all versions softly or, once that is done, permanently; the answer is their numbers."""
    versions = state.versions(subject, deleted=True)
    if not versions:
        raise subject_not_found(subject)
    live = [version.number for version in versions if not version.deleted]
    if permanent:
        if live:
            reason = f"Subject '{subject}' was not deleted first before being permanently deleted"
            raise RegistryError(Code.SUBJECT_NOT_SOFT_DELETED, reason)
        numbers = [version.number for version in versions]
        removed = [SchemaRemoved(subject=subject, version=number) for number in numbers]
        return WritePlan(numbers, (IdsReserved(highest_id=state.highest_id), *removed))
    if not live:
        reason = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
        raise RegistryError(Code.SUBJECT_SOFT_DELETED, reason)
    deleted = SubjectDeleted(subject=subject, version=live[-1])
    if state.configured_level(subject) is None:
        return WritePlan(live, (deleted,))
    return WritePlan(live, (deleted, LevelSet(subject=subject, level=None)))


def parse_level(text: object) -> CompatibilityLevel:
    """Parse a level's name, in any case. Raises RegistryError 42203."""
    try:
        return CompatibilityLevel(text.upper() if isinstance(text, str) else "")
    except ValueError:
        names = ", ".join(level.value.lower() for level in CompatibilityLevel)
        raise RegistryError(Code.INVALID_LEVEL, f"Invalid compatibility level. Valid values are {names}") from None


def set_level(state: RegistryState, subject: str | None, level: CompatibilityLevel) -> WritePlan[CompatibilityLevel]:
    """Set the level of a subject (which need not exist yet), or the global level (None)."""
    if subject is not None:
        check_subject(subject)
    if state.configured_level(subject) is level:
        return WritePlan(level)
    return WritePlan(level, (LevelSet(subject=subject, level=level),))


def reset_level(state: RegistryState, subject: str | None) -> WritePlan[CompatibilityLevel]:
    """Reset a level; the answer is the level before. Raises RegistryError 40408 if none was set for the subject."""
    level = state.configured_level(subject)
    if level is not None:
        return WritePlan(level, (LevelSet(subject=subject, level=None),))
    if subject is not None:
        raise no_subject_level(subject)
    return WritePlan(state.level())


def no_subject_level(subject: str) -> RegistryError:
    """Return a 404 for the level of a subject that has none of its own."""
    reason = f"Subject '{subject}' does not have subject-level compatibility configured"
    return RegistryError(Code.NO_SUBJECT_CONFIG, reason)


def check_subject(subject: str) -> None:
    """Raise RegistryError 42208 for a name that no subject may have."""
    if not subject.strip() or len(subject) > MAX_SUBJECT_LENGTH or any(ord(letter) < 32 for letter in subject):
        reason = f"The subject must have 1 to {MAX_SUBJECT_LENGTH} characters, none of them a control character"
        raise RegistryError(Code.INVALID_SUBJECT, reason)
    if subject.startswith(":"):
        raise RegistryError(Code.INVALID_SUBJECT, f"Contexts are not served: '{subject}' starts with ':'")


def _find(versions: Sequence[Version], candidate: Candidate) -> Version | None:
    newest_first = reversed(versions)
    return next((version for version in newest_first if version.schema.identity == candidate.identity), None)


def _comparison(level: CompatibilityLevel, versions: Sequence[Version]) -> SchemaComparison:
    if level is CompatibilityLevel.NONE:
        return SchemaComparison(level, ())
    return SchemaComparison(level, tuple(versions if level.transitive else versions[-1:]))
