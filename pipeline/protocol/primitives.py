"""Run-time support of the generated codecs: varints, uuids, lists of pieces.

Invariant: reading goes forward only, and nothing is allocated by a length that was not checked against what is there.
"""

from functools import lru_cache
from typing import Any
from uuid import UUID

from pipeline.errors import ProtocolError
from pipeline.model import FileRegion
from pipeline.protocol.schema import Piece

BY_REFERENCE_BYTES = 4096
"""Records at least this long are passed on as they are; shorter ones are joined with their surroundings."""

ONE_BYTE = tuple(bytes((value,)) for value in range(128))
"""The unsigned varints of one byte."""

_VARINT_MAX_BITS = 35


def uvarint(value: int) -> bytes:
    """An unsigned varint, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def long_uvarint(data: memoryview, position: int, first: int) -> tuple[int, int]:
    """The value and the end of an unsigned varint whose first byte (already read) says that more follow."""
    value = first & 127
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift >= _VARINT_MAX_BITS:
            raise ProtocolError("a varint is longer than five bytes")


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """The value and the end of an unsigned varint."""
    first = data[position]
    return (first, position + 1) if first < 128 else long_uvarint(data, position + 1, first)


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """The uuid of sixteen bytes. Topic ids come again and again, and making a UUID is slow."""
    return UUID(bytes=raw)


def payload_size(payload: Any) -> int:
    """Bytes in a piece or in a sequence of pieces; ProtocolError if it is neither."""
    if isinstance(payload, memoryview):
        if not payload.c_contiguous:
            raise ProtocolError("records must lie contiguously in memory")
        return payload.nbytes
    if isinstance(payload, (bytes, bytearray, FileRegion)):
        return len(payload)
    if isinstance(payload, (list, tuple)):
        return sum(map(payload_size, payload))
    raise ProtocolError(f"records cannot be a {type(payload).__name__}")


def gather(parts: list[Any]) -> list[Piece]:
    """Joins what is small, keeps by reference what is large or lies in a file, flattens sequences of pieces."""
    pieces: list[Piece] = []
    small: list[bytes | bytearray | memoryview] = []
    for part in _flat(parts):
        if isinstance(part, FileRegion) or len(part) >= BY_REFERENCE_BYTES:
            if small:
                pieces.append(b"".join(small))
                small.clear()
            if len(part):
                pieces.append(part)
        else:
            small.append(part)
    if small:
        pieces.append(b"".join(small))
    return pieces


def _flat(parts: list[Any]) -> list[Piece]:
    flat: list[Piece] = []
    for part in parts:
        if isinstance(part, (list, tuple)):
            flat.extend(_flat(list(part)))
        else:
            flat.append(part)
    return flat
