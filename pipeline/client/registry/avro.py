"""Avro data in records: objects to framed bytes and back, schemas by way of a registry.

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
    """An object that its schema does not fit, or bytes that are no framed datum. The message says where."""


def value_subject(topic: str) -> str:
    """The subject of a topic's values (Confluent's TopicNameStrategy)."""
    return f"{topic}-value"


def key_subject(topic: str) -> str:
    """The subject of a topic's keys."""
    return f"{topic}-key"


def read_frame(data: bytes | memoryview) -> tuple[int, memoryview]:
    """The schema id and the datum, which is not copied. Raises SerializationError for what is not framed."""
    if len(data) < FRAME_SIZE:
        raise SerializationError(f"{len(data)} bytes are too short for a schema id: the data is not framed Avro")
    magic, schema_id = _FRAME.unpack_from(data)
    if magic != MAGIC:
        raise SerializationError(f"the first byte is {data[0]:#04x}, not 0x00: the data is not framed Avro")
    return schema_id, memoryview(data)[FRAME_SIZE:]


class _Writer(NamedTuple):
    """What is needed to write a topic. fastavro checks no bounds of an int, so schemas that hold one are validated."""

    frame: bytes
    schema: Any
    holds_int: bool


class AvroSerializer:
    """Writes objects with one schema, or with the latest its subject has.

    `schema` is registered when a topic is first written to, or with `auto_register` off must be there. With
    `use_latest` (and no `schema`) the version that is the latest at that moment is used from then on.
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
        """The framed bytes of an object; it waits only when a topic is written to for the first time.

        A union's branch may be named: `("string", "x")`. Fields that are missing take their default; there may be no
        field that the schema does not know. Raises SerializationError naming the field, and what the registry's client
        raises.
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
        except Exception as error:  # fastavro does not say which it raises
            reason = " ".join(str(error).split())
            raise SerializationError(f"no datum of the schema of {topic}: {type(error).__name__}: {reason}") from error
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
    """Reads framed bytes with the schema they were written with, seen through `reader_schema` if there is one."""

    def __init__(self, registry: SchemaRegistryClient, reader_schema: str | None = None) -> None:
        self._registry = registry
        self._reader = None if reader_schema is None else _parse(reader_schema)
        self._writers: dict[int, tuple[Any, Any]] = {}

    async def deserialize(self, data: bytes | memoryview | None) -> Any:
        """The object; None for None (a tombstone). It waits only for a schema that is seen for the first time.

        Raises SerializationError for bytes that are not a framed datum of a known schema, or that the reader schema
        cannot read, and DeadlineExceededError when the registry does not answer.
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
        except Exception as error:  # fastavro does not say which it raises
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
    except Exception as error:  # fastavro does not say which it raises
        raise SerializationError(f"not an Avro schema: {type(error).__name__} {error}") from error


def _label(schema: Any, schema_id: int) -> str:
    name = schema["name"] if isinstance(schema, dict) and "name" in schema else "schema"
    return f"{name} (id {schema_id})"
