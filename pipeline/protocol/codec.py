"""Encodes and decodes messages in every declared version.

The code for one (message class, version) is generated when it is first needed (`encoder.py`, `decoder.py`), then kept.
Bytes and values that are wrong raise ProtocolError and nothing else.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.errors import ProtocolError
from pipeline.protocol.decoder import compile_decoder
from pipeline.protocol.encoder import compile_encoder
from pipeline.protocol.schema import Message, Piece

M = TypeVar("M", bound=Message)

Encoder = Callable[[Any], list[Piece]]
Decoder = Callable[[memoryview, int, int, int], tuple[Any, int]]

MAX_ELEMENTS = 10_000_000
"""Bound of elements in a response, from a server that we asked. Servers accept fewer in requests."""

_ENCODERS: dict[tuple[type[Message], int], Encoder] = {}
_ENCODERS_IN_PIECES: dict[tuple[type[Message], int], Encoder] = {}
_DECODERS: dict[tuple[type[Message], int], Decoder] = {}


def is_flexible(cls: type[Message], version: int) -> bool:
    """True if this version has compact lengths, tagged fields and the header that belongs to them."""
    return version >= cls.FLEXIBLE_SINCE


def encode(message: Message, version: int, *, in_pieces: bool = False) -> list[Piece]:
    """Return the message's body. Small parts are joined; records of 4 KiB or more and file regions are references.

    `in_pieces`: a very long message takes half the memory, as many pieces, with references to long texts and bytes.
    Raises ProtocolError if a value does not fit its wire type, or this version cannot carry it.
    """
    encoders = _ENCODERS_IN_PIECES if in_pieces else _ENCODERS
    encoder = encoders.get((type(message), version)) or _new_encoder(type(message), version, in_pieces=in_pieces)
    try:
        pieces: list[Piece] = encoder(message)
    except (struct.error, TypeError, AttributeError, ValueError, OverflowError, BufferError) as error:
        raise ProtocolError(
            f"{type(message).__name__} v{version} holds a value that cannot be encoded: {error}"
        ) from error
    return pieces


def decode(cls: type[M], version: int, buffer: bytes | bytearray | memoryview) -> M:
    """Return the message that fills the buffer. Raises ProtocolError.

    Records are memoryviews over the buffer: valid as long as it is, and writeable if it is.
    """
    view = memoryview(buffer)
    message, end = decode_from(cls, version, view, 0)
    if end != len(view):
        raise ProtocolError(f"{cls.__name__} v{version}: {len(view) - end} bytes too many")
    return message


def decode_from(
    cls: type[M], version: int, view: memoryview, position: int, max_elements: int = MAX_ELEMENTS
) -> tuple[M, int]:
    """Return the message at `position`, and its end. Raises ProtocolError, also beyond `max_elements` in its arrays."""
    decoder = _DECODERS.get((cls, version)) or _new_decoder(cls, version)
    try:
        result: tuple[M, int] = decoder(view, position, len(view), max_elements)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{cls.__name__} v{version} is cut short or garbled: {error}") from error
    return result


def _flexible_if_declared(cls: type[Message], version: int) -> bool:
    first, last = cls.VERSIONS
    if not first <= version <= last:
        raise ProtocolError(f"{cls.__name__} has no version {version}, only {first} to {last}")
    return is_flexible(cls, version)


def _new_encoder(cls: type[Message], version: int, *, in_pieces: bool) -> Encoder:
    encoder = compile_encoder(cls, version, _flexible_if_declared(cls, version), in_pieces=in_pieces)
    (_ENCODERS_IN_PIECES if in_pieces else _ENCODERS)[cls, version] = encoder
    return encoder


def _new_decoder(cls: type[Message], version: int) -> Decoder:
    decoder = _DECODERS[cls, version] = compile_decoder(cls, version, _flexible_if_declared(cls, version))
    return decoder
