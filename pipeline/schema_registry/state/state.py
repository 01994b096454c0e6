"""State of a registry, the fold of its log. Pure: only `apply` changes it.

Invariants, for every prefix of every log, also of a log that two registries wrote at once:

A. An id, once seen with a schema in a context, never stands for another there. Of two records that contradict each
   other the first in the log wins, for every reader; the other is refused. Likewise for a version of a subject.
B. An id is never given out again: `next_id` lies beyond all ids seen in its context, and beyond those reserved.
C. The text of an id is the text that it was first written with, for all versions that bear the id.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from pipeline.schema_registry.avro.compatibility import CompatibilityLevel
from pipeline.schema_registry.state.contexts import (
    DEFAULT_CONTEXT,
    context_of,
    in_scope,
    join_subject,
    split_subject,
)
from pipeline.schema_registry.state.events import (
    ConfigSet,
    ContextSet,
    Event,
    IdsReserved,
    Ignored,
    ModeSet,
    SchemaRemoved,
    SchemaWritten,
    SubjectCleared,
    SubjectDeleted,
    SubjectVersion,
)
from pipeline.schema_registry.state.id_space import IdSpace
from pipeline.schema_registry.state.scoped_settings import ScopedSettings
from pipeline.schema_registry.state.sorted_names import SortedNames
from pipeline.schema_registry.state.stored import StoredSchema, Version, stored_schema, written

MAX_REPAIRS: Final = 1000
"""Versions that one write repairs, so that planning it takes some milliseconds."""


class _OverwrittenKeys:
    """Keys of versions whose last records in the log do not count; None is the key that this registry writes."""

    def __init__(self) -> None:
        self.keys: dict[SubjectVersion, dict[bytes | None, None]] = {}

    def mark(self, version: SubjectVersion, key: bytes | None) -> None:
        self.keys.setdefault(version, {})[key] = None

    def unmark(self, version: SubjectVersion, key: bytes | None) -> None:
        keys = self.keys.get(version, {})
        keys.pop(key, None)
        if not keys:
            self.keys.pop(version, None)


class RegistryState:
    """Subjects, versions, schemas and contexts; `settings` are their configs and modes."""

    def __init__(self, default_level: CompatibilityLevel) -> None:
        self.settings = ScopedSettings(default_level)
        self.names = SortedNames()
        """Names of the subjects that have versions, also those whose versions are all soft-deleted."""
        self._subjects: dict[str, dict[int, Version]] = {}
        self._spaces: dict[str, IdSpace] = {DEFAULT_CONTEXT: IdSpace()}
        self._contexts: set[str] = set()
        self._referrers: dict[SubjectVersion, dict[SubjectVersion, None]] = {}
        self._overwritten = _OverwrittenKeys()
        self._other_keys: dict[SubjectVersion, dict[bytes, None]] = {}
        """Keys of records of versions, where other registries spelt them otherwise."""

    def apply(self, event: Event) -> str | None:
        """Apply the next event of the log. Return why it was refused, or None."""
        match event:
            case SchemaWritten():
                return self._apply_schema(event)
            case SchemaRemoved():
                self._remove(event.subject, event.version)
                self._note_removal(event)
            case SubjectDeleted():
                versions = self._subjects.get(event.subject, {})
                for number, version in versions.items():
                    if number <= event.version:
                        versions[number] = Version(
                            subject=version.subject, number=number, schema=version.schema, deleted=True
                        )
                    elif version.deleted:  # perhaps by the record of which this one takes the place
                        self._overwritten.mark((event.subject, number), None)
            case SubjectCleared(subject=scope):
                for version in [found for found in self._all_versions(scope) if found.deleted]:
                    self._remove(version.subject, version.number)
            case ConfigSet() | ModeSet():
                self.settings.apply(event)
            case ContextSet(context=context, exists=exists):
                (self._contexts.add if exists else self._contexts.discard)(context)
            case IdsReserved():
                for context, highest_id in ((DEFAULT_CONTEXT, event.highest_id), *event.of_contexts):
                    space = self._space(context)
                    space.highest_id = max(space.highest_id, highest_id)
            case Ignored(reason, version):
                if version is not None and self.version(*version) is not None:
                    self._overwritten.mark(version, event.other_key)
                return reason
        return None

    def _apply_schema(self, event: SchemaWritten) -> str | None:
        space = self._space(context_of(event.subject))
        space.highest_id = max(space.highest_id, event.id)
        key = (event.subject, event.version)
        if event.other_key is not None:
            self._other_keys.setdefault(key, {})[event.other_key] = None
        known = self._subjects.get(event.subject, {}).get(event.version)
        if known is not None and known.schema.id != event.id:
            self._overwritten.mark(key, event.other_key)
            return f"{event.subject} version {event.version} is id {known.schema.id} already, not {event.id}"
        holder = space.schemas.get(event.id)
        if holder is not None and holder.identity != event.identity:
            self._overwritten.mark(key, event.other_key)
            return f"{event.subject} version {event.version}: id {event.id} stands for another schema already"
        schema = holder or stored_schema(event)
        if known is None:
            space.add(schema, key)
            for used in schema.uses(event.subject):
                self._referrers.setdefault(used, {})[key] = None
        version = Version(subject=event.subject, number=event.version, schema=schema, deleted=event.deleted)
        if event.subject not in self._subjects:
            self._subjects[event.subject] = {}
            self.names.add(event.subject)
        self._subjects[event.subject][event.version] = version
        self._overwritten.unmark(key, event.other_key)
        return None

    def _remove(self, subject: str, number: int) -> None:
        key = (subject, number)
        versions = self._subjects.get(subject, {})
        version = versions.pop(number, None)
        if version is None:
            return
        if not versions:
            del self._subjects[subject]
            self.names.remove(subject)
        self._space(context_of(subject)).discard(version.schema, key)
        for used in version.schema.uses(subject):
            referrers = self._referrers.get(used, {})
            referrers.pop(key, None)
            if not referrers:
                self._referrers.pop(used, None)

    def _note_removal(self, event: SchemaRemoved) -> None:
        """Note that records of a removed version may be left under other keys: they would count after compaction."""
        version = (event.subject, event.version)
        self._overwritten.unmark(version, event.other_key)
        keys = self._other_keys.get(version, {})
        if event.other_key is not None:
            keys.pop(event.other_key, None)
            self._overwritten.mark(version, None)
        if not keys:
            self._other_keys.pop(version, None)
        for key in keys:
            self._overwritten.mark(version, key)

    def _space(self, context: str) -> IdSpace:
        space = self._spaces.get(context)
        if space is None:
            space = self._spaces[context] = IdSpace()
        return space

    def _all_versions(self, scope: str | None) -> Iterator[Version]:
        for subject, versions in self._subjects.items():
            if in_scope(scope, subject):
                yield from versions.values()

    def highest_id(self, context: str = DEFAULT_CONTEXT) -> int:
        """Return the highest id ever given out in a context."""
        space = self._spaces.get(context)
        return 0 if space is None else space.highest_id

    def next_id(self, context: str = DEFAULT_CONTEXT) -> int:
        """Return the lowest id beyond all ids that were given out in a context (invariant B)."""
        return self.highest_id(context) + 1

    def reserved_ids(self) -> IdsReserved:
        """Return the record that keeps the highest ids, to be written before schemas are permanently deleted."""
        others = [(context, space.highest_id) for context, space in self._spaces.items() if context != DEFAULT_CONTEXT]
        return IdsReserved(highest_id=self.highest_id(), of_contexts=tuple(others))

    @property
    def schema_count(self) -> int:
        """Number of ids that have a schema."""
        return sum(len(space.schemas) for space in self._spaces.values())

    def contexts(self) -> list[str]:
        """Return all contexts, the default one first."""
        in_use = {context for context, space in self._spaces.items() if space.schemas}
        return [DEFAULT_CONTEXT, *sorted((self._contexts | in_use) - {DEFAULT_CONTEXT})]

    def is_recorded(self, context: str) -> bool:
        """Return True if the log has a record of the context, which other registries need to find it."""
        return context == DEFAULT_CONTEXT or context in self._contexts

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Return subjects, sorted; with `deleted` also those whose versions are all soft-deleted."""
        return [subject for subject in self.names.in_order() if deleted or self.is_live(subject)]

    def is_live(self, subject: str) -> bool:
        """Return True if a subject has a version that is not deleted."""
        return any(not version.deleted for version in self._subjects.get(subject, {}).values())

    def has_subjects(self, scope: str | None, *, deleted: bool = False) -> bool:
        """Return True if a subject has versions, or any in a context, or any at all (None)."""
        if scope is not None and split_subject(scope)[1]:
            return bool(self.versions(scope, deleted=deleted))
        return any(deleted or not version.deleted for version in self._all_versions(scope))

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return versions of a subject, oldest first; with `deleted` also soft-deleted ones. Unknown ones have none."""
        versions = self._subjects.get(subject, {})
        return [versions[number] for number in sorted(versions) if deleted or not versions[number].deleted]

    def version(self, subject: str, number: int) -> Version | None:
        """Return a version, also a soft-deleted one."""
        return self._subjects.get(subject, {}).get(number)

    def schema(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> StoredSchema | None:
        """Return the schema of an id, also a soft-deleted one: data written with it must stay readable."""
        space = self._spaces.get(context)
        return None if space is None else space.schemas.get(schema_id)

    def context_of_id(self, schema_id: int, subject: str = "") -> str | None:
        """Return the context in which an id is meant if a client names a subject with it, or None if there is none.

        A subject without a context may be one of any context; the default context comes first.
        """
        context, name = split_subject(subject)
        if self._bears(context, name, schema_id):
            return context
        if context != DEFAULT_CONTEXT or not name:
            return None
        others = [other for other in self._spaces if self._bears(other, name, schema_id)]
        if others:
            return min(others)
        return context if self._bears(context, "", schema_id) else None

    def _bears(self, context: str, name: str, schema_id: int) -> bool:
        space = self._spaces.get(context)
        if space is None or schema_id not in space.schemas:
            return False
        versions = self._subjects.get(join_subject(context, name), {})
        return not name or any(version.schema.id == schema_id for version in versions.values())

    def id_of(self, identity: bytes, context: str = DEFAULT_CONTEXT) -> int | None:
        """Return the id of a schema in any subject of a context, or None."""
        space = self._spaces.get(context)
        return None if space is None else space.ids.first.get(identity)

    def ids_of_guid(self, guid: bytes) -> list[tuple[str, int]]:
        """Return the contexts and ids of a GUID, the default context first."""
        found = [
            (context, self._spaces[context].guids.first.get(guid))
            for context in self.contexts()
            if context in self._spaces
        ]
        return [(context, schema_id) for context, schema_id in found if schema_id is not None]

    def bearers(self, schema_id: int, context: str = DEFAULT_CONTEXT) -> Collection[SubjectVersion]:
        """Return all versions that bear an id, in no order, also soft-deleted ones (a live view)."""
        space = self._spaces.get(context)
        return () if space is None else space.bearers.get(schema_id, {}).keys()

    def versions_of_id(self, schema_id: int, context: str = DEFAULT_CONTEXT, *, deleted: bool = False) -> list[Version]:
        """Return all versions that bear an id, sorted by subject and number."""
        versions = [self._subjects[subject][number] for subject, number in sorted(self.bearers(schema_id, context))]
        return [version for version in versions if deleted or not version.deleted]

    def referrers(self, subject: str, number: int, *, deleted: bool = False) -> list[Version]:
        """Return versions that refer to this one, sorted by subject and number."""
        referrers = self._referrers.get((subject, number))
        if not referrers:
            return []
        versions = [self._subjects[name][bearer] for name, bearer in sorted(referrers)]
        return [version for version in versions if deleted or not version.deleted]

    def removal(self, subject: str, number: int) -> tuple[SchemaRemoved, ...]:
        """Return what permanently deletes a version, with all its records in the log."""
        keys = (*self._other_keys.get((subject, number), ()), None)
        return tuple(SchemaRemoved(subject=subject, version=number, other_key=key) for key in keys)

    def repairs(self) -> tuple[SchemaWritten | SchemaRemoved, ...]:
        """Return versions whose last record in the log was refused, to be written again, or deleted if none held.

        Of more than MAX_REPAIRS versions the others follow once these are repaired.

        Otherwise compaction would keep the refused record and remove the one that holds, or move it behind the refused
        one, which then would count.
        """
        repairs: list[SchemaWritten | SchemaRemoved] = []
        for (subject, number), keys in islice(self._overwritten.keys.items(), MAX_REPAIRS):
            version = self.version(subject, number)
            if version is None:
                repairs += self.removal(subject, number)
            else:
                record = written(version, deleted=version.deleted)
                repairs += [replace(record, other_key=key) for key in keys]
        return tuple(repairs)
