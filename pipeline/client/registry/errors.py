"""Errors of schemas and of data with schemas. Pure."""

from pipeline.errors import PipelineError


class SerializationError(PipelineError):
    """Data that cannot be encoded or decoded, or a schema that cannot be used."""


class SchemaMismatchError(SerializationError):
    """An object that does not match the schema of its topic."""
