"""Schemas that clients send, parsed and compared with stored ones. Pure; takes time, so that a thread does it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel, why_incompatible
from pipeline.schema_registry.avro.normalization import normalized_text, resolved_text
from pipeline.schema_registry.avro.parsing import InvalidSchemaError, parse_schema, shown
from pipeline.schema_registry.avro.types import AvroSchema
from pipeline.schema_registry.avro.work import TooMuchWorkError, Work
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.state.events import AVRO, SchemaReference, identity_of
from pipeline.schema_registry.state.stored import StoredSchema, Version

MAX_REFERENCES = 200
"""References of one schema; also schemas that it needs, with those that they refer to."""
LATEST_VERSION = -1

Dependencies = tuple[StoredSchema, ...]
"""Schemas whose types a schema may use, each after those that it needs itself."""

Referring = Sequence[tuple[StoredSchema, Dependencies]]
"""Schemas that refer to others, with these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRequest:
    """The body of a request with a schema. Nothing of the schema is checked."""

    text: str
    references: tuple[SchemaReference, ...] = ()
    id: int | None = None
    """Wanted by an import."""
    version: int | None = None
    """Wanted; LATEST_VERSION: compare with the latest version alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A valid schema that a client sent."""

    schema: AvroSchema
    text: str
    """As it is to be stored."""
    identity: bytes
    references: tuple[SchemaReference, ...] = ()
    dependencies: Dependencies = ()
    equal_ids: frozenset[int] = frozenset()
    """Ids of stored schemas that it equals once the types that they refer to are put in."""
    id: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaComparison:
    """Versions that a new schema has to be compared with before the command can be decided, oldest first.

    The dependencies of a version are None if they are lost.
    """

    level: CompatibilityLevel
    versions: tuple[tuple[Version, Dependencies | None], ...]

    def __hash__(self) -> int:
        """Return a hash of little: there may be 50,000 versions."""
        last = [(version.subject, version.number) for version, _ in self.versions[-1:]]
        return hash((self.level, len(self.versions), *last))


def read_request(content: Mapping[str, Any]) -> SchemaRequest:
    """Read the body of a request. Raises RegistryError 42201, also for a kind of schema that is not served."""
    text, schema_type = content.get("schema"), content.get("schemaType") or AVRO
    if schema_type != AVRO:
        served = "only Avro is, as schemaType AVRO or without schemaType"
        raise RegistryError(Code.INVALID_SCHEMA, f"Schemas of type {shown(str(schema_type))} are not served; {served}")
    if not isinstance(text, str):
        raise RegistryError(Code.INVALID_SCHEMA, "The body needs 'schema': the schema's text as a JSON string")
    for name in ("metadata", "ruleSet"):
        if content.get(name):
            raise RegistryError(Code.INVALID_SCHEMA, f"'{name}' is not served: leave it out")
    references = content.get("references") or []
    if not isinstance(references, list) or len(references) > MAX_REFERENCES:
        reason = f"'references' must be an array of at most {MAX_REFERENCES} references"
        raise RegistryError(Code.INVALID_SCHEMA, reason)
    wanted_id, version = _number(content, "id"), _number(content, "version")
    return SchemaRequest(
        text=text,
        references=tuple(_read_reference(one) for one in references),
        id=None if wanted_id is None or wanted_id < 0 else wanted_id,
        version=None if version is None or version == 0 else version,
    )


def _number(content: Mapping[str, Any], name: str) -> int | None:
    number = content.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not -1 << 31 <= number < 1 << 31:
        raise RegistryError(Code.INVALID_SCHEMA, f"'{name}' must be an int32")
    return number


def _read_reference(reference: object) -> SchemaReference:
    match reference:
        case {"name": str(name), "subject": str(subject), "version": bool(_)}:
            pass
        case {"name": str(name), "subject": str(subject), "version": int(version)}:
            if version == LATEST_VERSION or 0 < version < 1 << 31:
                return SchemaReference(name, subject, version)
    needed = "it needs 'name' and 'subject', strings, and 'version', a number"
    raise RegistryError(Code.INVALID_SCHEMA, f"Invalid reference {shown(str(reference))}: {needed}")


def parse_candidate(
    request: SchemaRequest, dependencies: Dependencies = (), *, check_defaults: bool = True, normalize: bool = False
) -> Candidate:
    """Parse the schema of a request. Raises RegistryError 42201 if it is invalid."""
    work = Work()
    try:
        known = _parse_dependencies(dependencies, work)[-1:]
        schema = parse_schema(request.text, references=known, check_defaults=check_defaults, work=work)
        text = normalized_text(schema, work) if normalize else request.text
    except (InvalidSchemaError, TooMuchWorkError) as error:
        raise RegistryError(Code.INVALID_SCHEMA, f"Invalid schema: {error}") from error
    references = tuple(sorted(set(request.references))) if normalize else request.references
    return Candidate(
        schema=schema,
        text=text,
        identity=identity_of(text, AVRO, references),
        references=references,
        dependencies=dependencies,
        id=request.id,
        version=request.version,
    )


def equal_ids(text: str, referring: Referring) -> frozenset[int]:
    """Return the ids of the schemas that a text equals once the types that they refer to are put in."""
    try:
        wanted = normalized_text(parse_schema(text, check_defaults=False))
    except (InvalidSchemaError, TooMuchWorkError):
        return frozenset()
    return frozenset(schema.id for schema, needed in referring if text_with_dependencies(schema, needed) == wanted)


def text_with_dependencies(schema: StoredSchema, dependencies: Dependencies) -> str | None:
    """Return the text of a schema with the types that it refers to put in; None if that is not possible."""
    work = Work()
    try:
        known = _parse_dependencies(dependencies, work)
        tree = parse_schema(schema.text, references=known[-1:], check_defaults=False, work=work)
        return resolved_text(tree, known, work)
    except (InvalidSchemaError, TooMuchWorkError):
        return None


def parse_stored(schema: StoredSchema, dependencies: Dependencies | None = ()) -> AvroSchema | None:
    """Parse the text of an id; None if it is unreadable, or not Avro."""
    if schema.schema_type != AVRO or dependencies is None:
        return None
    try:
        known = _parse_dependencies(dependencies, Work())[-1:]
        return parse_schema(schema.text, references=known, check_defaults=False)
    except InvalidSchemaError:
        return None


def _parse_dependencies(dependencies: Dependencies, work: Work) -> list[AvroSchema]:
    """Return the schemas. Each has the names of those before it, too."""
    known: list[AvroSchema] = []
    for schema in dependencies:
        if schema.schema_type != AVRO:
            raise InvalidSchemaError("", f"the schema of id {schema.id}, a reference, is not an Avro schema")
        known.append(parse_schema(schema.text, references=known[-1:], check_defaults=False, work=work))
    return known


def reasons_against(
    candidate: Candidate,
    comparison: SchemaComparison,
    tree_of: Callable[[StoredSchema, Dependencies | None], AvroSchema | None] = parse_stored,
) -> list[str]:
    """Return the reasons why a schema may not follow the versions, one sentence each; none if it may."""
    trees = [(version.number, tree_of(version.schema, needed)) for version, needed in comparison.versions]
    unknown = [f"version {number} is not an Avro schema that can be compared" for number, tree in trees if tree is None]
    earlier: Sequence[tuple[int, AvroSchema]] = [(number, tree) for number, tree in trees if tree is not None]
    return [*unknown, *why_incompatible(comparison.level, candidate.schema, earlier)]
