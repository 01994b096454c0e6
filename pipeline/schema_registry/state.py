"""State of a registry, the fold of its log. Pure: only `apply` changes it.

Invariants, for every prefix of every log, also of a log that two registries wrote at once:

A. An id, once seen with a schema, never stands for another. Of two records that contradict each other the first in
   the log wins, for every reader; the other is refused. Likewise for a version of a subject.
B. An id is never given out again: `next_id` lies beyond all ids seen, and beyond those reserved.
C. The text of an id is the text that it was first written with, for all versions that bear the id.
"""

from dataclasses import dataclass, replace

from pipeline.schema_registry.compatibility import CompatibilityLevel
from pipeline.schema_registry.events import (
    Event,
    IdsReserved,
    Ignored,
    LevelSet,
    SchemaRemoved,
    SchemaWritten,
    SubjectDeleted,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchema:
    """The schema of an id."""

    id: int
    text: str
    schema_type: str
    identity: bytes
    """Equal for equal schemas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of a subject."""

    subject: str
    number: int
    schema: StoredSchema
    deleted: bool


class RegistryState:
    """Subjects, versions, schemas and levels."""

    def __init__(self, default_level: CompatibilityLevel) -> None:
        self._default_level = default_level
        self._subjects: dict[str, dict[int, Version]] = {}
        self._schemas: dict[int, StoredSchema] = {}
        self._ids: dict[bytes, int] = {}
        self._levels: dict[str | None, CompatibilityLevel] = {}
        self.highest_id = 0
        """Highest id ever given out."""
        self._overwritten: dict[tuple[str, int], None] = {}

    def apply(self, event: Event) -> str | None:
        """Apply the next event of the log. Return why it was refused, or None."""
        match event:
            case SchemaWritten():
                return self._apply_schema(event)
            case SchemaRemoved():
                self._remove(event.subject, event.version)
            case SubjectDeleted():
                versions = self._subjects.get(event.subject, {})
                for number, version in versions.items():
                    if number <= event.version:
                        versions[number] = replace(version, deleted=True)
            case LevelSet(subject=subject, level=level):
                self._levels.pop(subject, None)
                if level is not None:
                    self._levels[subject] = level
            case IdsReserved():
                self.highest_id = max(self.highest_id, event.highest_id)
            case Ignored(reason):
                return reason
        return None

    def _apply_schema(self, event: SchemaWritten) -> str | None:
        self.highest_id = max(self.highest_id, event.id)
        key = (event.subject, event.version)
        known = self._subjects.get(event.subject, {}).get(event.version)
        if known is not None and known.schema.id != event.id:
            self._overwritten[key] = None
            return f"{event.subject} version {event.version} is id {known.schema.id} already, not {event.id}"
        schema = _store(event)
        holder = self._schemas.get(event.id)
        if holder is not None and holder.identity != schema.identity:
            if known is not None:
                self._overwritten[key] = None
            return f"id {event.id} stands for another schema already"
        schema = self._schemas.setdefault(event.id, schema)
        self._ids.setdefault(schema.identity, event.id)
        version = Version(subject=event.subject, number=event.version, schema=schema, deleted=event.deleted)
        self._subjects.setdefault(event.subject, {})[event.version] = version
        self._overwritten.pop(key, None)
        return None

    def _remove(self, subject: str, number: int) -> None:
        versions = self._subjects.get(subject, {})
        version = versions.pop(number, None)
        if not versions:
            self._subjects.pop(subject, None)
        self._overwritten.pop((subject, number), None)
        if version is not None and not self.versions_of_id(version.schema.id, deleted=True):
            del self._schemas[version.schema.id]
            if self._ids.get(version.schema.identity) == version.schema.id:
                del self._ids[version.schema.identity]

    @property
    def next_id(self) -> int:
        """Lowest id beyond all ids that were given out (invariant B)."""
        return self.highest_id + 1

    @property
    def schema_count(self) -> int:
        """Number of ids that have a schema."""
        return len(self._schemas)

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Return subjects, sorted; with `deleted` also those whose versions are all soft-deleted."""
        return sorted(subject for subject in self._subjects if self.versions(subject, deleted=deleted))

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return versions of a subject, oldest first; with `deleted` also soft-deleted ones. Unknown ones have none."""
        versions = self._subjects.get(subject, {})
        return [versions[number] for number in sorted(versions) if deleted or not versions[number].deleted]

    def schema(self, schema_id: int) -> StoredSchema | None:
        """Return the schema of an id, also a soft-deleted one: data written with it must stay readable."""
        return self._schemas.get(schema_id)

    def id_of(self, identity: bytes) -> int | None:
        """Return the id of a schema in any subject, or None."""
        return self._ids.get(identity)

    def versions_of_id(self, schema_id: int, *, deleted: bool = False) -> list[Version]:
        """Return all versions that bear an id, sorted by subject and number."""
        return [
            version
            for subject in sorted(self._subjects)
            for version in self.versions(subject, deleted=deleted)
            if version.schema.id == schema_id
        ]

    def configured_level(self, subject: str | None) -> CompatibilityLevel | None:
        """Return the level set for a subject, or the global level (None), without defaults."""
        return self._levels.get(subject)

    def level(self, subject: str | None = None) -> CompatibilityLevel:
        """Return the level that holds for a subject, with defaults."""
        return self._levels.get(subject) or self._levels.get(None) or self._default_level

    def repairs(self) -> tuple[SchemaWritten, ...]:
        """Return versions whose last record in the log was refused, to be written again.

        Otherwise compaction would keep the refused record and remove the one that holds.
        """
        held = [self._subjects[subject][number] for subject, number in self._overwritten]
        return tuple(written(version, deleted=version.deleted) for version in held)


def written(version: Version, *, deleted: bool) -> SchemaWritten:
    """Return the record of a version, with this mark of deletion."""
    return SchemaWritten(
        subject=version.subject,
        version=version.number,
        id=version.schema.id,
        text=version.schema.text,
        schema_type=version.schema.schema_type,
        deleted=deleted,
    )


def _store(event: SchemaWritten) -> StoredSchema:
    return StoredSchema(id=event.id, text=event.text, schema_type=event.schema_type, identity=event.identity)
