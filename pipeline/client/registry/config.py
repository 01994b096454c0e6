"""Declares the settings of serialisers, in the manner of `pipeline.client.cluster.config`. Pure."""

from dataclasses import dataclass, fields

from pipeline.client.registry.framing import SchemaIdSerializer
from pipeline.client.registry.subjects import SubjectNameStrategy, topic_name_strategy
from pipeline.errors import ConfigurationError

MAX_SCHEMA_ID = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializerConfig:
    """Settings of a serialiser, with the names of Confluent's serialisers, and `_` for `.`."""

    auto_register_schemas: bool = True
    """True if the schema is registered when a topic is first used. False if it must be registered already."""
    normalize_schemas: bool = False
    """True if the registry normalises the schema before it looks for an equal one or registers it."""
    use_latest_version: bool = False
    """True if data are written with the latest version of the subject, which is looked up when a topic is first used.
    Needs `auto_register_schemas=False`."""
    latest_compatibility_strict: bool = True
    """True if the latest version must be able to read the data of the serialiser's own schema, where it has one."""
    latest_cache_ttl_sec: float | None = None
    """Age in seconds at which the latest version is looked up again, by one task alone. Never without it."""
    use_schema_id: int | None = None
    """Id of the schema that data are written with. The subject must have this schema. Nothing is registered."""
    id_compatibility_strict: bool = True
    """True if the schema of `use_schema_id` must be able to read the data of the serialiser's own schema, where it has
    one."""
    subject_name_strategy: SubjectNameStrategy = topic_name_strategy
    """Function that names the subject: `topic_name_strategy`, `record_name_strategy`, `topic_record_name_strategy`, or
    the program's own, which is called with the topic, true for keys, and the full name of the record or None."""
    schema_id_serializer: SchemaIdSerializer = SchemaIdSerializer.PREFIX
    """Place of the schema's identification: its id before the datum, or its GUID in a header of the record."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is bool and not isinstance(value, bool):
                raise ConfigurationError(_key(field.name), f"is {value!r}, must be true or false")
        if self.use_latest_version and self.auto_register_schemas:
            raise ConfigurationError("use.latest.version", "registers nothing: set auto_register_schemas=False")
        if self.use_latest_version and self.use_schema_id is not None:
            raise ConfigurationError("use.schema.id", "excludes use.latest.version: use one of both")
        chosen = self.use_schema_id
        if chosen is not None and (type(chosen) is not int or not 0 <= chosen <= MAX_SCHEMA_ID):
            raise ConfigurationError("use.schema.id", f"is {chosen!r}, must be from 0 to {MAX_SCHEMA_ID}")
        ttl = self.latest_cache_ttl_sec
        if ttl is not None and not (isinstance(ttl, int | float) and ttl > 0):
            raise ConfigurationError("latest.cache.ttl.sec", f"is {ttl!r}, must be more than 0")
        if not callable(self.subject_name_strategy):
            raise ConfigurationError("subject.name.strategy", f"is {self.subject_name_strategy!r}, must be a function")
        if not isinstance(self.schema_id_serializer, SchemaIdSerializer):
            raise ConfigurationError(
                "schema.id.serializer", f"is {self.schema_id_serializer!r}, must be a SchemaIdSerializer"
            )


def _key(name: str) -> str:
    return name.replace("_", ".")
