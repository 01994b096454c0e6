"""Schemas and versions as a registry keeps them. Pure."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5

from pipeline.schema_registry.state.contexts import subject_beside
from pipeline.schema_registry.state.events import SchemaReference, SchemaWritten


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchema:
    """The schema of an id."""

    id: int
    text: str
    schema_type: str
    identity: bytes
    """Equal for equal schemas."""
    references: tuple[SchemaReference, ...] = ()
    more: str = ""
    """Metadata and rules of other registries, a JSON object."""

    @property
    def guid(self) -> bytes:
        """16 bytes, an MD5 of text and references as Confluent's registry computes it: equal in all registries."""
        digest = md5(self.text.encode(errors="surrogatepass"), usedforsecurity=False)
        for one in self.references:
            digest.update((one.name + one.subject).encode(errors="surrogatepass") + struct.pack(">i", one.version))
        return digest.digest()

    def uses(self, subject: str) -> Iterator[tuple[str, int]]:
        """Yield the versions that the schema refers to as a version of `subject`."""
        for reference in self.references:
            yield subject_beside(subject, reference.subject), reference.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of a subject."""

    subject: str
    number: int
    schema: StoredSchema
    deleted: bool


def stored_schema(event: SchemaWritten) -> StoredSchema:
    """Return the schema of a record."""
    return StoredSchema(
        id=event.id,
        text=event.text,
        schema_type=event.schema_type,
        identity=event.identity,
        references=event.references,
        more=event.more,
    )


def written(version: Version, *, deleted: bool) -> SchemaWritten:
    """Return the record of a version, with this mark of deletion."""
    return SchemaWritten(
        subject=version.subject,
        version=version.number,
        id=version.schema.id,
        text=version.schema.text,
        schema_type=version.schema.schema_type,
        references=version.schema.references,
        more=version.schema.more,
        deleted=deleted,
    )
