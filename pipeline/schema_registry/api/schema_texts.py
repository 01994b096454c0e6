"""Texts of schemas in the form that a request asks for."""

from starlette.requests import Request

from pipeline.schema_registry.errors import RegistryError
from pipeline.schema_registry.rules.references import dependencies_of
from pipeline.schema_registry.service import RegistryService
from pipeline.schema_registry.state.stored import StoredSchema


async def shown_text(service: RegistryService, request: Request, schema: StoredSchema, subject: str) -> str:
    """Return the text of a schema of a subject; with `format=resolved` the types that it refers to are put in."""
    if not schema.references or request.query_params.get("format") != "resolved":
        return schema.text
    try:
        dependencies = dependencies_of(service.state, subject, schema.references)
    except RegistryError:
        return schema.text
    return await service.work.whole_text(schema, dependencies)
