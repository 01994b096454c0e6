"""Answers of the API as JSON values. Pure."""

import json
from typing import Any
from uuid import UUID

from pipeline.schema_registry.state.contexts import DEFAULT_CONTEXT, context_of, subject_beside
from pipeline.schema_registry.state.events import AVRO
from pipeline.schema_registry.state.stored import StoredSchema, Version


def schema_json(schema: StoredSchema, *, text: str | None = None, parent: str | None = None) -> dict[str, Any]:
    """Return a schema, with another text for its own if one is given.

    The subjects of references bear the context of the subject `parent`, if it is given.
    """
    shown = schema.text if text is None else text
    return {"guid": guid_text(schema), **_kind_json(schema, parent), "schema": shown}


def version_json(version: Version, *, text: str | None = None, qualified: bool = False) -> dict[str, Any]:
    """Return a version; with `qualified` the subjects of its references bear their context."""
    schema = version.schema
    answer: dict[str, Any] = {"subject": version.subject, "version": version.number, "id": schema.id}
    answer |= schema_json(schema, text=text, parent=version.subject if qualified else None)
    return {**answer, "deleted": True} if version.deleted else answer


def registered_json(version: Version) -> dict[str, Any]:
    """Return the answer to a registration."""
    return {"id": version.schema.id, "version": version.number, "guid": guid_text(version.schema)}


def guid_text(schema: StoredSchema) -> str:
    """Return the GUID of a schema as text."""
    return str(UUID(bytes=schema.guid))


def _kind_json(schema: StoredSchema, parent: str | None) -> dict[str, Any]:
    """Return what most schemas lack: the type, but for Avro (the oldest clients know no such attribute), and more."""
    answer: dict[str, Any] = {} if schema.schema_type == AVRO else {"schemaType": schema.schema_type}
    if schema.references:
        qualified = parent is not None and context_of(parent) != DEFAULT_CONTEXT
        answer["references"] = [
            {
                "name": one.name,
                "subject": subject_beside(parent or "", one.subject) if qualified else one.subject,
                "version": one.version,
            }
            for one in schema.references
        ]
    if schema.more:
        answer |= {name: value for name, value in json.loads(schema.more).items() if name != "md5"}
    return answer
