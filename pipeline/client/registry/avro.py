"""Avro data in records: objects to framed bytes and back, with schemas of a registry.

A serialiser finds the schema of a topic once, which may take requests to the registry, and gets an AvroEncoder, which
encodes without waiting. A deserialiser finds the writer's schema of each id or GUID once.

Invariants: caches hold at most CACHE_CAPACITY topics or schemas. None is no datum but a tombstone, in both directions,
as with Confluent's serialisers. Data of a schema of plain bytes have no length before them, as theirs.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NoReturn
from uuid import UUID

import trio
from fastavro import schemaless_reader, schemaless_writer

from pipeline.client.registry.avro_schemas import UsableSchema, parse_avro
from pipeline.client.registry.bounded_cache import BoundedCache
from pipeline.client.registry.client import (
    CACHE_CAPACITY,
    NOT_FOUND,
    SCHEMA_NOT_FOUND,
    SchemaRegistryClient,
    SchemaRegistryError,
)
from pipeline.client.registry.config import SerializerConfig
from pipeline.client.registry.datum_encoding import compile_object_encoder
from pipeline.client.registry.datum_walk import require_cheap
from pipeline.client.registry.errors import SchemaMismatchError, SerializationError
from pipeline.client.registry.framing import (
    SchemaIdSerializer,
    find_schema_header,
    guid_header,
    id_frame,
    read_frame,
)
from pipeline.client.registry.reading_rules import reason_not_readable
from pipeline.client.registry.references import usable_schema
from pipeline.client.registry.schemas import IdentifiedSchema, SchemaText
from pipeline.client.registry.shared_calls import SharedCalls
from pipeline.errors import ConfigurationError

Header = tuple[str, bytes | None]
Encode = Callable[[Any], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroEncoder:
    """Encodes objects with one schema of a topic. Nothing here waits.

    `encode` returns the bytes of an object, and None for None (a tombstone). A union's branch may be named:
    `("string", "x")`. Missing fields take their default; unknown fields are refused. Raises SchemaMismatchError, which
    names the field. `headers` belong to every record that is not a tombstone. `fastavro_schema` is the schema with all
    types that it uses, as fastavro takes it, and `named` these types by name.
    """

    subject: str
    schema_id: int | None
    guid: UUID | None
    schema: SchemaText
    fastavro_schema: Any
    named: Mapping[str, Any]
    headers: tuple[tuple[str, bytes], ...]
    encode: Encode

    def encode_all(self, data: Iterable[Any]) -> list[bytes | None]:
        """Return the bytes of many objects."""
        return list(map(self.encode, data))


class AvroSerializer:
    """Serialises objects with one schema, or with the one that the settings choose.

    The first call for a topic registers `schema`, unless the settings say otherwise. `to_dict` makes a dict of what the
    program passes.
    """

    def __init__(
        self,
        registry: SchemaRegistryClient,
        schema: str | SchemaText | None = None,
        config: SerializerConfig | None = None,
        *,
        for_keys: bool = False,
        to_dict: Callable[[Any], Any] | None = None,
    ) -> None:
        """Raises ConfigurationError if there is no schema, nor a setting that chooses one."""
        self._registry = registry
        self._schema = SchemaText(schema) if isinstance(schema, str) else schema
        self._config = config or SerializerConfig()
        self._for_keys = for_keys
        self._to_dict = to_dict
        self._own: UsableSchema | None = None
        self._encoders: BoundedCache[str, AvroEncoder] = BoundedCache(CACHE_CAPACITY)
        self._finds: SharedCalls[str, AvroEncoder] = SharedCalls()
        ttl_s = self._config.latest_cache_ttl_sec if self._config.use_latest_version else None
        self._ttl_s = math.inf if ttl_s is None else ttl_s
        self._expires = ttl_s is not None
        self._found_at: dict[str, float] = {}
        if schema is None and not self._config.use_latest_version and self._config.use_schema_id is None:
            raise ConfigurationError("schema", "is missing: give a schema, or use the latest version or a schema id")

    async def serialize(self, topic: str, datum: Any, headers: list[Header] | None = None) -> bytes | None:
        """Return the bytes of an object as AvroEncoder does; waits only for the first object of a topic.

        With `SchemaIdSerializer.HEADER` the schema's header is appended to `headers`, the headers of the record.
        Raises SerializationError for a schema that is not Avro or without a GUID, and the errors of the registry's
        client and of the subject name strategy.
        """
        encoder = self._encoders.get(topic)
        if encoder is None or (self._expires and self._is_old(topic)):
            encoder = await self._find_encoder_once(topic)
        data = encoder.encode(datum)
        if encoder.headers and data is not None:
            if headers is None:
                raise SerializationError("the schema's GUID goes into a header: give the headers of the record")
            headers.extend(encoder.headers)
        return data

    def encode(self, topic: str, data: Any, headers: list[Header]) -> bytes | None:
        """Return the bytes of an object as `serialize`: makes the serialiser an encoder of a producer.

        Raises trio.WouldBlock if the schema is not known yet.
        """
        encoder = self._encoders.get(topic)
        if encoder is None or (self._expires and self._is_old(topic)):
            raise trio.WouldBlock
        encoded = encoder.encode(data)
        if encoder.headers and encoded is not None:
            headers.extend(encoder.headers)
        return encoded

    async def encoder(self, topic: str) -> AvroEncoder:
        """Return the encoder of a topic; waits only if the schema is not known yet. Raises as `serialize`."""
        found = self._encoders.get(topic)
        if found is None or (self._expires and self._is_old(topic)):
            return await self._find_encoder_once(topic)
        return found

    def _is_old(self, topic: str) -> bool:
        return trio.current_time() - self._found_at.get(topic, -math.inf) > self._ttl_s

    async def _find_encoder_once(self, topic: str) -> AvroEncoder:
        """Return the encoder that one task finds for all that wait for it, or raise the error that this task got."""
        return await self._finds.once(topic, lambda: self._find_encoder(topic))

    async def _find_encoder(self, topic: str) -> AvroEncoder:
        if self._schema is not None and self._own is None:
            self._own = await usable_schema(self._registry, self._schema)
        chosen: UsableSchema | None = None
        if self._config.use_schema_id is not None:
            chosen = await usable_schema(
                self._registry, (await self._registry.schema(self._config.use_schema_id)).schema
            )
        named = self._own or chosen
        subject = self._config.subject_name_strategy(topic, self._for_keys, named.name if named else None)
        if not isinstance(subject, str) or not subject:
            raise ConfigurationError(
                "subject.name.strategy", f"gives {subject!r} for topic {topic}, which is no subject"
            )
        found, usable = await self._find_schema(subject, chosen)
        encoder = AvroEncoder(
            subject=subject,
            schema_id=found.id,
            guid=found.guid,
            schema=found.schema,
            fastavro_schema=usable.fastavro,
            named=usable.named,
            headers=self._headers(found),
            encode=_encode_function(usable, self._frame(found), topic, self._to_dict),
        )
        if self._expires:
            self._found_at = {known: at for known, at in self._found_at.items() if known in self._encoders}
            self._found_at[topic] = trio.current_time()
        return self._encoders.put(topic, encoder)

    async def _find_schema(self, subject: str, chosen: UsableSchema | None) -> tuple[IdentifiedSchema, UsableSchema]:
        """Return the schema that the settings choose; `chosen` is that of `use_schema_id`."""
        config, registry = self._config, self._registry
        if config.use_schema_id is not None and chosen is not None:
            text = (await registry.schema(config.use_schema_id)).schema
            found = await registry.identity(subject, text, registers=False, deleted=True)
            if found.id != config.use_schema_id:
                raise SerializationError(f"{subject} has the schema of id {config.use_schema_id} under id {found.id}")
            return found, self._able_to_read(chosen, found, "id.compatibility.strict", config.id_compatibility_strict)
        if config.use_latest_version:
            latest = await registry.version(subject)
            found = IdentifiedSchema(id=latest.id, guid=latest.guid, schema=latest.schema)
            usable = await usable_schema(registry, found.schema)
            is_strict = config.latest_compatibility_strict
            return found, self._able_to_read(usable, found, "latest.compatibility.strict", is_strict)
        assert self._schema is not None
        assert self._own is not None
        found = await registry.identity(
            subject, self._schema, registers=config.auto_register_schemas, normalize=config.normalize_schemas
        )
        return found, self._own

    def _able_to_read(
        self, usable: UsableSchema, found: IdentifiedSchema, setting: str, is_strict: bool
    ) -> UsableSchema:
        """Return the schema. Raises SerializationError if it must, but cannot, read data of the serialiser's own."""
        reason = reason_not_readable(usable.document, self._own.document) if is_strict and self._own else None
        if reason:
            raise SerializationError(
                f"schema {found.id} cannot read the data of the serialiser's schema: {reason}"
                f" ({setting}=false writes them nevertheless)"
            )
        return usable

    def _frame(self, found: IdentifiedSchema) -> bytes:
        if self._config.schema_id_serializer is SchemaIdSerializer.HEADER:
            return b""
        if found.id is None:
            raise SerializationError("the registry gives no id of the schema")
        return id_frame(found.id)

    def _headers(self, found: IdentifiedSchema) -> tuple[tuple[str, bytes], ...]:
        if self._config.schema_id_serializer is SchemaIdSerializer.PREFIX:
            return ()
        if found.guid is None:
            raise SerializationError("the registry gives no GUID of the schema: use SchemaIdSerializer.PREFIX")
        return (guid_header(found.guid, for_keys=self._for_keys),)


class AvroDeserializer:
    """Deserialises framed bytes with the schema of their writer, resolved to `reader_schema` if there is one.

    The schema is identified by a header of the record or by the first bytes of the data. `from_dict` makes an object of
    the program of each datum. With `return_record_name` a record in a union comes as a tuple of its name and a dict, as
    the serialiser takes it.
    """

    def __init__(
        self,
        registry: SchemaRegistryClient,
        reader_schema: str | SchemaText | None = None,
        *,
        for_keys: bool = False,
        from_dict: Callable[[Any], Any] | None = None,
        return_record_name: bool = False,
    ) -> None:
        """Raises SerializationError for a reader schema that is not Avro."""
        self._registry = registry
        self._reader_schema = SchemaText(reader_schema) if isinstance(reader_schema, str) else reader_schema
        self._reader: UsableSchema | None = None
        if self._reader_schema is not None and not self._reader_schema.references:
            self._reader = parse_avro(self._reader_schema.text)
        self._for_keys = for_keys
        self._from_dict = from_dict
        self._return_record_name = return_record_name
        self._decoders: BoundedCache[int | UUID, Callable[[memoryview], Any]] = BoundedCache(CACHE_CAPACITY)

    async def deserialize(self, data: bytes | memoryview | None, headers: Iterable[Header] = ()) -> Any:
        """Return the object; None for None (a tombstone). Waits only for the first datum of a schema.

        Raises SerializationError for bytes that are not a framed datum of a known schema, or cannot be resolved to the
        reader schema, and DeadlineExceededError if the registry does not answer.
        """
        if data is None:
            return None
        schema, datum = read_frame(data, find_schema_header(headers, for_keys=self._for_keys) if headers else None)
        decode = self._decoders.get(schema)
        if decode is None:
            decode = self._decoders.put(schema, await self._find_decoder(schema))
        return decode(datum)

    def deserialize_nowait(self, data: bytes | memoryview | None, headers: Iterable[Header] = ()) -> Any:
        """Return the object as `deserialize`. Raises trio.WouldBlock if the schema is not known yet."""
        if data is None:
            return None
        schema, datum = read_frame(data, find_schema_header(headers, for_keys=self._for_keys) if headers else None)
        decode = self._decoders.get(schema)
        if decode is None:
            raise trio.WouldBlock
        return decode(datum)

    def decode(self, topic: str, data: bytes | memoryview | None, headers: Iterable[Header]) -> Any:  # noqa: ARG002
        """Return the object as `deserialize_nowait`: makes the deserialiser a decoder of a stream."""
        return self.deserialize_nowait(data, headers)

    async def _find_decoder(self, schema: int | UUID) -> Callable[[memoryview], Any]:
        try:
            found = await self._registry.schema(schema)
        except SchemaRegistryError as error:
            is_guid = isinstance(schema, UUID)
            if error.code != SCHEMA_NOT_FOUND and not (
                is_guid and error.status == NOT_FOUND
            ):  # old registries: no path
                raise
            kind = "GUID" if is_guid else "id"
            raise SerializationError(f"the registry knows no schema of {kind} {schema}") from error
        writer = await usable_schema(self._registry, found.schema)
        if self._reader is None and self._reader_schema is not None:
            self._reader = await usable_schema(self._registry, self._reader_schema)
        kind = "id" if isinstance(schema, int) else "GUID"
        return _decode_function(
            writer,
            self._reader,
            f"{writer.name or 'schema'} ({kind} {schema})",
            self._return_record_name,
            self._from_dict,
        )


def _encode_function(usable: UsableSchema, frame: bytes, topic: str, to_dict: Callable[[Any], Any] | None) -> Encode:
    def refuse(error: Exception) -> NoReturn:
        reason = " ".join(str(error).split())
        raise SchemaMismatchError(
            f"the object does not match the schema of {topic}: {type(error).__name__}: {reason}"
        ) from error

    encode = compile_object_encoder(usable, b"" if usable.is_bytes else frame, refuse)
    if usable.is_bytes:
        encode = _without_length(encode, frame)
    return encode if to_dict is None else lambda datum: None if datum is None else encode(to_dict(datum))


def _without_length(encode: Encode, frame: bytes) -> Encode:
    """Return a function that encodes bytes without their length."""

    def encode_bytes(datum: Any) -> bytes | None:
        data = encode(datum)
        if data is None:
            return None
        start = next(place for place, byte in enumerate(data) if byte < 0x80) + 1
        return frame + data[start:]

    return encode_bytes


def _decode_function(
    writer: UsableSchema,
    reader: UsableSchema | None,
    label: str,
    return_record_name: bool,
    from_dict: Callable[[Any], Any] | None,
) -> Callable[[memoryview], Any]:
    writer_schema = writer.fastavro
    reader_schema = None if reader is None or reader.fastavro == writer_schema else reader.fastavro

    def decode(datum: memoryview) -> Any:
        content = _with_length(datum) if writer.is_bytes else datum
        source = BytesIO(content)
        try:
            require_cheap(writer, memoryview(content))
            value = schemaless_reader(source, writer_schema, reader_schema, return_record_name)
        except Exception as error:  # fastavro does not document its exceptions
            reason = f"{type(error).__name__} {error}".strip()
            raise SerializationError(f"not a datum of {label}: {reason}") from error
        left = len(content) - source.tell()
        if left:
            raise SerializationError(f"{left} bytes follow the datum of {label}")
        return value if from_dict is None else from_dict(value)

    return decode


def _with_length(data: memoryview) -> bytes:
    """Return bytes as Avro encodes them."""
    target = BytesIO()
    schemaless_writer(target, "bytes", bytes(data))
    return target.getvalue()
