"""Schemas as a registry stores them. Pure."""

from dataclasses import dataclass
from uuid import UUID

AVRO_TYPE = "AVRO"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReference:
    """Version of a subject, which defines a type that another schema uses. `name` is the full name of the type."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema as it was written, and the versions that define types which its text only names."""

    text: str
    references: tuple[VersionReference, ...] = ()
    schema_type: str = AVRO_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifiedSchema:
    """A schema with its id and GUID. Registries before Confluent's 8.0 know no GUIDs."""

    id: int | None
    guid: UUID | None
    schema: SchemaText


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    text: str
    references: tuple[VersionReference, ...] = ()
    schema_type: str = AVRO_TYPE
    guid: UUID | None = None

    @property
    def schema(self) -> SchemaText:
        """The schema without its place in the registry."""
        return SchemaText(self.text, self.references, self.schema_type)
