"""Serialises the keys and values of rows by the schemas of the options."""

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.cli.produce.lines import LineError
from pipeline.cli.produce.rows import Row, data_of
from pipeline.cli.schema_options import SchemaOptions, open_registry, serializer_of
from pipeline.records.builder import Header

if TYPE_CHECKING:
    from pipeline.client.registry.avro import AvroSerializer


@dataclass(frozen=True, slots=True, kw_only=True)
class Serializers:
    """Serialisers of keys and values; None: texts and bytes as they are."""

    topic: str
    keys: "AvroSerializer | None" = None
    values: "AvroSerializer | None" = None

    @property
    def are_none(self) -> bool:
        """True if there is no schema."""
        return self.keys is None and self.values is None

    async def serialize(self, row: Row, number: int) -> Row:
        """Return the row with bytes as key and value, and the headers of their schemas. Raises LineError."""
        headers: list[Header] = []
        key = await self._data(self.keys, row.key, number, headers)
        value = await self._data(self.values, row.value, number, headers)
        return Row(key, value, (*headers, *row.headers), row.timestamp_ms)

    async def _data(
        self, serializer: "AvroSerializer | None", field: Any, number: int, headers: list[Header]
    ) -> bytes | None:
        if serializer is None or field is None:
            try:
                return data_of(field)
            except UnicodeEncodeError as error:
                raise LineError(number, f": {error.reason}") from error
        return await _serialized(serializer, self.topic, field, number, headers)


async def open_serializers(
    registries: str | None,
    topic: str,
    key_schema: SchemaOptions | None,
    value_schema: SchemaOptions | None,
    stack: AsyncExitStack,
) -> Serializers:
    """Open the serialisers for the schemas that are given."""
    if registries is None:
        return Serializers(topic=topic)
    registry = await stack.enter_async_context(open_registry(registries))
    return Serializers(
        topic=topic,
        keys=None if key_schema is None else serializer_of(registry, key_schema, for_keys=True),
        values=None if value_schema is None else serializer_of(registry, value_schema, for_keys=False),
    )


async def _serialized(
    serializer: "AvroSerializer", topic: str, field: Any, number: int, headers: list[Header]
) -> bytes | None:
    """Return the bytes of plain JSON or, if its object does not match the schema, of Avro's JSON encoding.

    A line of text holds JSON; a line of JSON holds the object itself.
    """
    from pipeline.client.registry.avro_json import from_avro_json
    from pipeline.client.registry.errors import SchemaMismatchError

    value = field
    if isinstance(field, bytes):
        try:
            value = json.loads(field)
        except (ValueError, RecursionError) as error:
            raise LineError(number, f" is not JSON: {error}") from error
    try:
        return await serializer.serialize(topic, value, headers)
    except SchemaMismatchError as error:
        encoder = await serializer.encoder(topic)
        try:
            value = from_avro_json(encoder.fastavro_schema, value, encoder.named)
            return await serializer.serialize(topic, value, headers)
        except (SchemaMismatchError, ValueError, RecursionError):
            raise LineError(number, f": {error}") from error
