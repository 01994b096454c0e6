"""Looks up schemas by id in the schema registry, in workers that run no event loop. Picklable."""

from dataclasses import dataclass

import trio

from pipeline.client.registry.client import SCHEMA_NOT_FOUND, SchemaRegistryError, open_schema_registry
from pipeline.client.registry.errors import SerializationError
from pipeline.client.registry.references import complete_text
from pipeline.hadoop.avro.avro_schema import SchemaError
from pipeline.net.http.login import NO_LOGIN, HttpLogin


@dataclass(frozen=True, slots=True)
class RegistryLookup:
    """Asks the registries at `urls`, one after the other."""

    urls: tuple[str, ...]
    login: HttpLogin = NO_LOGIN

    def __call__(self, schema_id: int) -> str:
        """Return the schema's text. Raises SchemaError for an unknown id, and as the client without an answer."""
        return trio.run(self._fetch, schema_id)

    def versions(self, schema_id: int) -> list[tuple[str, int]]:
        """Return the subjects that have a schema, each with its version there; none for an unknown id."""
        return trio.run(self._fetch_versions, schema_id)

    async def _fetch_versions(self, schema_id: int) -> list[tuple[str, int]]:
        async with open_schema_registry(self.urls, login=self.login) as registry:
            try:
                return await registry.versions_of_id(schema_id)
            except SchemaRegistryError as error:
                if error.code == SCHEMA_NOT_FOUND:
                    return []
                raise

    async def _fetch(self, schema_id: int) -> str:
        async with open_schema_registry(self.urls, login=self.login) as registry:
            try:
                return await complete_text(registry, (await registry.schema(schema_id)).schema)
            except SerializationError as error:
                raise SchemaError(f"schema {schema_id}: {error}") from error
            except SchemaRegistryError as error:
                if error.code == SCHEMA_NOT_FOUND:
                    raise SchemaError(f"the registry has no schema {schema_id}") from error
                raise
