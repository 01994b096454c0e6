"""Schemas that refer to types of other schemas, with the definitions of these types put in."""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.errors import PipelineError
from pipeline.schema_registry.rules.named_types import TypeUse, named_types, parse_json, with_types

if TYPE_CHECKING:
    from pipeline.client.registry.administration import RegistryAdministration, SchemaEntry

AVRO = "AVRO"
MAX_REFERENCES = 1000
"""Versions that a schema may refer to, also through others."""


async def referenced_types(
    registry: "RegistryAdministration", references: Iterable[tuple[str, str, int]]
) -> dict[str, TypeUse]:
    """Return the types that versions of subjects define, and all types that these refer to, by full name.

    References are a name, a qualified subject and a version. Raises PipelineError if a version is missing or invalid.
    """
    types: dict[str, TypeUse] = {}
    waiting = [(subject, version) for _, subject, version in references]
    seen = set(waiting)
    while waiting:
        entry = await registry.version(*waiting.pop(0), deleted=True)
        types = named_types(parse_json(entry.text)) | types
        found = {(subject, version) for _, subject, version in entry.references} - seen
        seen |= found
        waiting += sorted(found)
        if len(seen) > MAX_REFERENCES:
            raise PipelineError(f"{entry} and others refer to more than {MAX_REFERENCES} versions")
    return types


async def self_contained(registry: "RegistryAdministration", entry: "SchemaEntry") -> str:
    """Return the text of a version with the definitions of the types that it refers to.

    A text without references, or of another type than Avro, stays as it is.
    """
    if not entry.references or entry.schema_type != AVRO:
        return entry.text
    return with_definitions(entry.text, await referenced_types(registry, entry.references))


def with_definitions(text: str, types: Mapping[str, TypeUse]) -> str:
    """Return a schema with the definitions of the types that it uses. Raises InvalidSchemaError."""
    return json.dumps(with_types(parse_json(text), types), ensure_ascii=False)


def schema_body(text: str, references: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return a schema as the API takes it."""
    listed = [dict(reference) for reference in references]
    return {"schema": text, "references": listed} if listed else {"schema": text}
