"""Fetches the versions that a schema refers to, directly or through others, and parses the schema with them."""

import json
from typing import Final

from pipeline.client.registry.avro_schemas import UsableSchema, parse_avro
from pipeline.client.registry.client import NOT_FOUND, SchemaRegistryClient, SchemaRegistryError
from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.schemas import AVRO_TYPE, SchemaText

MAX_REFERENCES: Final = 1_000
"""Versions that one schema may refer to, directly or through others."""


async def usable_schema(registry: SchemaRegistryClient, schema: SchemaText) -> UsableSchema:
    """Return the schema with all types that it refers to. Awaits nothing if it refers to none.

    Raises SerializationError for a schema that is not Avro, and for references that are missing or too many, and
    DeadlineExceededError if the registry does not answer.
    """
    return parse_avro(_avro_text(schema), await _referenced_texts(registry, schema))


async def complete_text(registry: SchemaRegistryClient, schema: SchemaText) -> str:
    """Return the schema as one text with all types that it refers to: its own text if it refers to none.

    Raises as `usable_schema`.
    """
    referenced = await _referenced_texts(registry, schema)
    return json.dumps(parse_avro(schema.text, referenced).document) if referenced else schema.text


async def _referenced_texts(registry: SchemaRegistryClient, schema: SchemaText) -> list[str]:
    """Return the texts in the order in which they are found; a version that is referred to twice is fetched once."""
    texts: list[str] = []
    wanted = list(reversed(schema.references))
    known: set[tuple[str, int]] = set()
    while wanted:
        reference = wanted.pop()
        place = (reference.subject, reference.version)
        if place in known:
            continue
        known.add(place)
        if len(known) > MAX_REFERENCES:
            raise SerializationError(f"a schema refers to more than {MAX_REFERENCES} other versions")
        try:
            found = await registry.referenced_version(*place)
        except SchemaRegistryError as error:
            if error.status != NOT_FOUND:
                raise
            raise SerializationError(
                f"the registry lacks version {reference.version} of subject {reference.subject}, which defines"
                f" {reference.name}"
            ) from error
        texts.append(_avro_text(found.schema))
        wanted.extend(reversed(found.references))
    return texts


def _avro_text(schema: SchemaText) -> str:
    if schema.schema_type != AVRO_TYPE:
        raise SerializationError(f"the schema is of type {schema.schema_type}, not Avro")
    return schema.text
