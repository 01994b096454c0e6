"""Run-time support of the generated codecs: varints, uuids, lists of pieces.

Invariant: reading goes forward only, and no length is allocated before it is checked against the bytes that are there.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from uuid import UUID

from pipeline.errors import ProtocolError
from pipeline.model import FileRegion
from pipeline.protocol.schema import Piece

MAX_STRING_BYTES = 32_767
"""Bound of a string as UTF-8. A compact string could be longer, but then other versions could not carry it, and Kafka
neither reads nor writes such strings."""

BY_REFERENCE_BYTES = 4096
"""Size from which on records are passed by reference; shorter ones are joined with the bytes around them."""

ONE_BYTE = tuple(bytes((value,)) for value in range(128))
"""Unsigned varints of one byte."""


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint, seven bits a byte, the lowest first."""
    if value < 16384:
        return bytes((value & 127 | 128, value >> 7)) if value > 127 else ONE_BYTE[value]
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def text_size(value: int) -> bytes:
    """Encode the compact size of a string (its bytes plus one). Raises ProtocolError if the string is too long."""
    if value > MAX_STRING_BYTES + 1:
        raise ProtocolError(f"a string is longer than {MAX_STRING_BYTES} bytes")
    return uvarint(value)


def long_uvarint(data: memoryview, position: int, first: int) -> tuple[int, int]:
    """Return value and end of an unsigned varint whose first byte (already read) says that more follow."""
    byte = data[position]
    if byte < 128:
        return byte << 7 | first & 127, position + 1
    value = (byte & 127) << 7 | first & 127
    for shift in (14, 21, 28):
        position += 1
        byte = data[position]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position + 1
    raise ProtocolError("a varint is longer than five bytes")


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """Return value and end of an unsigned varint."""
    first = data[position]
    return (first, position + 1) if first < 128 else long_uvarint(data, position + 1, first)


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """Return the uuid of sixteen bytes. Cached: topic ids come again and again, and a UUID is slow to make."""
    return UUID(bytes=raw)


def payload_size(payload: Any) -> int:
    """Return the size of a piece or of a sequence of pieces. Raises ProtocolError if the payload is neither."""
    if isinstance(payload, memoryview):
        if not payload.c_contiguous or payload.itemsize != 1:
            raise ProtocolError("records must be contiguous bytes")
        return payload.nbytes
    if isinstance(payload, (bytes, bytearray, FileRegion)):
        return len(payload)
    if isinstance(payload, (list, tuple)):
        return sum(map(payload_size, payload))
    raise ProtocolError(f"records cannot be a {type(payload).__name__}")


def gather_pieces(payload: Any) -> list[Piece]:
    """Return a payload as pieces: sequences flattened, small neighbours joined, large pieces and files unchanged."""
    pieces: list[Piece] = []
    small: list[bytes | bytearray | memoryview] = []
    for piece in _flat(payload):
        if not isinstance(piece, FileRegion) and len(piece) < BY_REFERENCE_BYTES:
            small.append(piece)
            continue
        if small:
            pieces.append(b"".join(small))
            small.clear()
        if len(piece):
            pieces.append(piece)
    if small:
        pieces.append(b"".join(small))
    return pieces


def _flat(payload: Any) -> Iterator[Piece]:
    if isinstance(payload, (list, tuple)):
        for part in payload:
            yield from _flat(part)
    else:
        yield payload
