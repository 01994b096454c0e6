"""Identification of the schema of a key or value: Confluent's wire formats. Pure.

In the payload: 0x00, the schema's id as int32 big-endian, the datum. In a header: `__key_schema_id` or
`__value_schema_id` holds 0x01 and the 16 bytes of the schema's GUID, and the payload is the datum alone. Readers accept
either identification in either place; a header comes before the payload.
"""

import struct
from collections.abc import Iterable
from enum import Enum
from typing import Final
from uuid import UUID

from pipeline.client.registry.errors import SerializationError

MAGIC: Final = 0
GUID_MAGIC: Final = 1
FRAME_SIZE: Final = 5
GUID_FRAME_SIZE: Final = 17
KEY_SCHEMA_ID: Final = "__key_schema_id"
VALUE_SCHEMA_ID: Final = "__value_schema_id"
_FRAME = struct.Struct(">bi")


class SchemaIdSerializer(Enum):
    """Place in which a serialiser writes the schema of a datum."""

    PREFIX = "prefix"
    HEADER = "header"


def id_frame(schema_id: int) -> bytes:
    """Return the bytes before a datum whose schema has this id."""
    return _FRAME.pack(MAGIC, schema_id)


def guid_header(guid: UUID, *, for_keys: bool) -> tuple[str, bytes]:
    """Return the header of a record whose key or value has the schema of this GUID."""
    return KEY_SCHEMA_ID if for_keys else VALUE_SCHEMA_ID, bytes((GUID_MAGIC,)) + guid.bytes


def read_frame(data: bytes | memoryview, header: bytes | None = None) -> tuple[int | UUID, memoryview]:
    """Return the schema's id or GUID, and a view of the datum. `header` is the value of the schema's header, if any.

    Raises SerializationError if neither the header nor the data identify a schema.
    """
    if header is not None:
        schema, rest = _identification(memoryview(header), "a header with a schema id")
        if rest:
            raise SerializationError(f"not a header with a schema id: {len(rest)} bytes too long")
        return schema, memoryview(data)
    return _identification(memoryview(data), "Avro with a schema id")


def find_schema_header(headers: Iterable[tuple[str, bytes | None]], *, for_keys: bool) -> bytes | None:
    """Return the value of the header that identifies the schema, the last of several; None without one."""
    wanted = KEY_SCHEMA_ID if for_keys else VALUE_SCHEMA_ID
    found = None
    for name, value in headers:
        if name == wanted and value is not None:
            found = value
    return found


def _identification(data: memoryview, what: str) -> tuple[int | UUID, memoryview]:
    magic = data[0] if data else None
    size = GUID_FRAME_SIZE if magic == GUID_MAGIC else FRAME_SIZE
    if len(data) < size:
        raise SerializationError(f"not {what}: {len(data)} bytes are too short")
    if magic == MAGIC:
        return int(_FRAME.unpack_from(data)[1]), data[FRAME_SIZE:]
    if magic == GUID_MAGIC:
        return UUID(bytes=bytes(data[1:GUID_FRAME_SIZE])), data[GUID_FRAME_SIZE:]
    raise SerializationError(f"not {what}: the first byte is {magic:#04x} instead of 0x00 or 0x01")
