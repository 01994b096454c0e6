"""Finds the schemas that a schema refers to. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.rules.candidates import LATEST_VERSION, MAX_REFERENCES, Dependencies, SchemaRequest
from pipeline.schema_registry.state.contexts import subject_beside
from pipeline.schema_registry.state.events import SchemaReference
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.stored import StoredSchema, Version

MAX_SHOWN = 10
MAX_REFERRING = 20
"""Versions with references that a schema without references is compared with."""


def numbered(state: RegistryState, subject: str, request: SchemaRequest) -> SchemaRequest:
    """Return the request with the numbers of the latest versions in references to these. Raises RegistryError 42201."""
    return replace(request, references=tuple(_numbered(state, subject, one) for one in request.references))


def _numbered(state: RegistryState, subject: str, reference: SchemaReference) -> SchemaReference:
    if reference.version != LATEST_VERSION:
        return reference
    versions = state.versions(subject_beside(subject, reference.subject))
    if not versions:
        raise _no_reference(subject_beside(subject, reference.subject), reference.version)
    return replace(reference, version=versions[-1].number)


def dependencies_of(
    state: RegistryState, subject: str, references: Iterable[SchemaReference], *, deleted: bool = True
) -> Dependencies:
    """Return the schemas that a schema of `subject` with these references needs, with `deleted` also soft-deleted ones.

    Raises RegistryError 42201 if one does not exist, or if they are too many.
    """
    found: dict[int, StoredSchema] = {}
    seen: set[tuple[str, int]] = set()
    waiting: list[tuple[str, int, Version | None]] = [
        (subject_beside(subject, one.subject), one.version, None) for one in reversed(tuple(references))
    ]
    while waiting:
        name, number, expanded = waiting.pop()
        if expanded is not None:
            found.setdefault(id(expanded.schema), expanded.schema)
            continue
        if (name, number) in seen:
            continue
        seen.add((name, number))
        version = state.version(name, number)
        if version is None or (version.deleted and not deleted):
            raise _no_reference(name, number)
        if len(seen) > MAX_REFERENCES:
            reason = f"Invalid schema: it needs more than {MAX_REFERENCES} schemas by its references"
            raise RegistryError(Code.INVALID_SCHEMA, reason)
        waiting.append((name, number, version))
        waiting.extend((other, used, None) for other, used in reversed(list(version.schema.uses(name))))
    return tuple(found.values())


def dependencies_of_version(state: RegistryState, version: Version) -> Dependencies | None:
    """Return the schemas that a version needs, or None if one is lost."""
    if not version.schema.references:
        return ()
    try:
        return dependencies_of(state, version.subject, version.schema.references)
    except RegistryError:
        return None


def referring_versions(state: RegistryState, subject: str) -> list[tuple[StoredSchema, Dependencies]]:
    """Return the schemas of the latest versions of a subject that refer to others, with these."""
    schemas = {version.schema.id: version for version in state.versions(subject, deleted=True)}
    latest = [version for version in schemas.values() if version.schema.references][-MAX_REFERRING:]
    found = [(version.schema, dependencies_of_version(state, version)) for version in latest]
    return [(schema, needed) for schema, needed in found if needed is not None]


def _no_reference(subject: str, number: int) -> RegistryError:
    shown = "latest" if number == LATEST_VERSION else number
    return RegistryError(
        Code.INVALID_SCHEMA, f'Invalid schema: no schema reference found for subject "{subject}" and version {shown}'
    )


def check_unused(
    state: RegistryState, versions: Iterable[Version], *, deleted: bool, but_by: Collection[str] = ()
) -> None:
    """Raise RegistryError 42206 if others refer to the versions; with `deleted` soft-deleted ones count, too.

    References by the subjects `but_by` do not count.
    """
    for version in versions:
        referrers = state.referrers(version.subject, version.number, deleted=deleted)
        users = [f"{user.subject} version {user.number}" for user in referrers if user.subject not in but_by]
        if users:
            reason = f"One or more references exist to the schema {version.subject} version {version.number}"
            raise RegistryError(Code.REFERENCE_EXISTS, f"{reason}: {', '.join(users[:MAX_SHOWN])}")
