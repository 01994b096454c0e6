"""Avro data in records: objects to framed bytes and back, with schemas of a registry.

Frame (Confluent's wire format): 0x00, the schema's id as int32 big-endian, the Avro datum. The bytes end with it.
"""

import io
import json
import struct
from typing import Any, Final, NamedTuple

import fastavro

from pipeline.client.registry.client import SCHEMA_NOT_FOUND, SchemaRegistryClient, SchemaRegistryError
from pipeline.errors import ConfigurationError, PipelineError

MAGIC: Final = 0
FRAME_SIZE: Final = 5
_FRAME = struct.Struct(">bi")


class SerializationError(PipelineError):
    """An object that does not match its schema, or bytes that are not a framed datum."""


class SchemaMismatchError(SerializationError):
    """An object that does not match the schema of its topic."""


def value_subject(topic: str) -> str:
    """Return the subject of a topic's values (Confluent's TopicNameStrategy)."""
    return f"{topic}-value"


def key_subject(topic: str) -> str:
    """Return the subject of a topic's keys."""
    return f"{topic}-key"


def read_frame(data: bytes | memoryview) -> tuple[int, memoryview]:
    """Return the schema id and a view of the datum. Raises SerializationError if the data are not framed."""
    if len(data) < FRAME_SIZE:
        raise SerializationError(f"not Avro with a schema id: {len(data)} bytes are too short")
    magic, schema_id = _FRAME.unpack_from(data)
    if magic != MAGIC:
        raise SerializationError(f"not Avro with a schema id: the first byte is {data[0]:#04x} instead of 0x00")
    return schema_id, memoryview(data)[FRAME_SIZE:]


class _Writer(NamedTuple):
    """The frame and schema of a topic. fastavro checks no bounds of an int, so data with an int are validated."""

    frame: bytes
    schema: Any
    holds_int: bool


class AvroSerializer:
    """Serializes objects with one schema, or with the latest of the subject.

    The first call for a topic registers `schema`; without `auto_register` the schema must be registered already. With
    `use_latest` (and no `schema`) that call chooses the latest version for all later calls.
    """

    def __init__(
        self,
        registry: SchemaRegistryClient,
        schema: str | None = None,
        *,
        for_keys: bool = False,
        auto_register: bool = True,
        use_latest: bool = False,
    ) -> None:
        if use_latest == (schema is not None):
            raise ConfigurationError("use.latest.version", "give a schema, or use the latest one, not both")
        self._registry = registry
        self._schema = schema
        self._auto_register = auto_register
        self._subject = key_subject if for_keys else value_subject
        self._writers: dict[str, _Writer] = {}

    async def serialize(self, topic: str, datum: Any) -> bytes:
        """Return the framed bytes of an object; waits only for the first object of a topic.

        A union's branch may be named: `("string", "x")`. Missing fields take their default; unknown fields are refused.
        Raises SchemaMismatchError with the field, SerializationError for a schema that is not Avro, and the errors of
        the registry's client.
        """
        writer = self._writers.get(topic)
        if writer is None:
            writer = self._writers[topic] = await self._open(self._subject(topic))
        target = io.BytesIO()
        target.write(writer.frame)
        try:
            fastavro.schemaless_writer(target, writer.schema, datum, strict_allow_default=True)
            if writer.holds_int:
                fastavro.validate(datum, writer.schema)
        except Exception as error:  # fastavro does not document its exceptions
            reason = " ".join(str(error).split())
            raise SchemaMismatchError(
                f"the object does not match the schema of {topic}: {type(error).__name__}: {reason}"
            ) from error
        return target.getvalue()

    async def _open(self, subject: str) -> _Writer:
        if self._schema is None:
            latest = await self._registry.version(subject)
            schema_id, text = latest.id, latest.text
            schema = _parse(text)
        else:
            text = self._schema
            schema = _parse(text)
            find = self._registry.register if self._auto_register else self._registry.schema_id
            schema_id = await find(subject, text)
        return _Writer(_FRAME.pack(MAGIC, schema_id), schema, '"int"' in text)


class AvroDeserializer:
    """Deserializes framed bytes with the schema of their writer, resolved to `reader_schema` if there is one."""

    def __init__(self, registry: SchemaRegistryClient, reader_schema: str | None = None) -> None:
        self._registry = registry
        self._reader = None if reader_schema is None else _parse(reader_schema)
        self._writers: dict[int, tuple[Any, Any]] = {}

    async def deserialize(self, data: bytes | memoryview | None) -> Any:
        """Return the object; None for None (a tombstone). Waits only for the first datum of a schema.

        Raises SerializationError for bytes that are not a framed datum of a known schema, or cannot be resolved to the
        reader schema, and DeadlineExceededError if the registry does not answer.
        """
        if data is None:
            return None
        schema_id, datum = read_frame(data)
        schemas = self._writers.get(schema_id)
        if schemas is None:
            schemas = self._writers[schema_id] = await self._open(schema_id)
        source = io.BytesIO(datum)
        try:
            value = fastavro.schemaless_reader(source, schemas[0], schemas[1])
        except Exception as error:  # fastavro does not document its exceptions
            reason = f"{type(error).__name__} {error}".strip()
            raise SerializationError(f"not a datum of {_label(schemas[0], schema_id)}: {reason}") from error
        left = len(datum) - source.tell()
        if left:
            raise SerializationError(f"{left} bytes follow the datum of {_label(schemas[0], schema_id)}")
        return value

    async def _open(self, schema_id: int) -> tuple[Any, Any]:
        try:
            writer = _parse(await self._registry.schema_text(schema_id))
        except SchemaRegistryError as error:
            if error.code != SCHEMA_NOT_FOUND:
                raise
            raise SerializationError(f"the registry knows no schema of id {schema_id}") from error
        return writer, None if writer == self._reader else self._reader


def _parse(text: str) -> Any:
    try:
        return fastavro.parse_schema(json.loads(text))
    except Exception as error:  # fastavro does not document its exceptions
        raise SerializationError(f"not an Avro schema: {type(error).__name__} {error}") from error


def _label(schema: Any, schema_id: int) -> str:
    name = schema["name"] if isinstance(schema, dict) and "name" in schema else "schema"
    return f"{name} (id {schema_id})"
