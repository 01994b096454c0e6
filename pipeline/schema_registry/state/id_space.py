"""The ids of one context. Pure."""

from dataclasses import dataclass, field

from pipeline.schema_registry.state.events import SubjectVersion
from pipeline.schema_registry.state.stored import StoredSchema


@dataclass(slots=True)
class IdIndex:
    """Ids by something that schemas have in common. Of several ids, which imports may bring, the lowest one counts.

    So what counts does not depend on the order of records, which compaction may change.
    """

    first: dict[bytes, int] = field(default_factory=dict)
    others: dict[bytes, list[int]] = field(default_factory=dict)

    def add(self, key: bytes, schema_id: int) -> None:
        """Add an id."""
        first = self.first.setdefault(key, schema_id)
        if first != schema_id:
            self.first[key] = min(first, schema_id)
            self.others.setdefault(key, []).append(max(first, schema_id))

    def discard(self, key: bytes, schema_id: int) -> None:
        """Remove an id. The lowest of the others takes its place."""
        others = self.others.get(key, [])
        if self.first[key] != schema_id:
            others.remove(schema_id)
        elif others:
            self.first[key] = min(others)
            others.remove(self.first[key])
        else:
            del self.first[key]
        if not others:
            self.others.pop(key, None)


@dataclass(slots=True)
class IdSpace:
    """Schemas by id, and the other ways to find them. A schema is in it while a version bears its id."""

    highest_id: int = 0
    """Highest id ever given out."""
    schemas: dict[int, StoredSchema] = field(default_factory=dict)
    ids: IdIndex = field(default_factory=IdIndex)
    """By identity."""
    guids: IdIndex = field(default_factory=IdIndex)
    bearers: dict[int, dict[SubjectVersion, None]] = field(default_factory=dict)
    """Versions that bear an id."""

    def add(self, schema: StoredSchema, bearer: SubjectVersion) -> None:
        """Add a version of a schema."""
        if schema.id not in self.schemas:
            self.schemas[schema.id] = schema
            self.bearers[schema.id] = {}
            self.ids.add(schema.identity, schema.id)
            self.guids.add(schema.guid, schema.id)
        self.bearers[schema.id][bearer] = None

    def discard(self, schema: StoredSchema, bearer: SubjectVersion) -> None:
        """Remove a version, and with the last one the schema."""
        bearers = self.bearers[schema.id]
        del bearers[bearer]
        if not bearers:
            del self.bearers[schema.id], self.schemas[schema.id]
            self.ids.discard(schema.identity, schema.id)
            self.guids.discard(schema.guid, schema.id)
