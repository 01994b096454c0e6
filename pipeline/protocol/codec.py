"""Messages to bytes and back, for every declared version.

The code for one (message class, version) is written and compiled when it is first needed (`encoder.py`, `decoder.py`),
then kept. Whatever is wrong with bytes or values leaves here as ProtocolError and nothing else.
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
"""Of a message from somebody whom we asked. Servers take less from strangers."""

_encoders: dict[tuple[type[Message], int], Encoder] = {}
_encoders_in_pieces: dict[tuple[type[Message], int], Encoder] = {}
_decoders: dict[tuple[type[Message], int], Decoder] = {}


def is_flexible(cls: type[Message], version: int) -> bool:
    """Whether this version has compact lengths, tagged fields and the header that goes with them."""
    return version >= cls.FLEXIBLE_SINCE


def encode(message: Message, version: int, *, in_pieces: bool = False) -> list[Piece]:
    """The message's body. Small parts are joined, records of 4 KiB or more and file regions passed by reference. A very
    long message takes half the memory `in_pieces`: many pieces, long texts and bytes among them as they are.

    ProtocolError if a value does not fit its wire type, or this version cannot carry it.
    """
    encoders = _encoders_in_pieces if in_pieces else _encoders
    encoder = encoders.get((type(message), version)) or _new_encoder(type(message), version, in_pieces=in_pieces)
    try:
        pieces: list[Piece] = encoder(message)
    except (struct.error, TypeError, AttributeError, ValueError, OverflowError, BufferError) as error:
        raise ProtocolError(
            f"{type(message).__name__} v{version} holds a value that cannot be encoded: {error}"
        ) from error
    return pieces


def decode(cls: type[M], version: int, buffer: bytes | bytearray | memoryview) -> M:
    """The message in the buffer, which must hold it and nothing else; ProtocolError otherwise.

    Records are memoryviews over the buffer: they are valid, and writeable, as long and as far as it is.
    """
    view = memoryview(buffer)
    message, end = decode_from(cls, version, view, 0)
    if end != len(view):
        raise ProtocolError(f"{cls.__name__} v{version}: {len(view) - end} bytes too many")
    return message


def decode_from(
    cls: type[M], version: int, view: memoryview, position: int, max_elements: int = MAX_ELEMENTS
) -> tuple[M, int]:
    """The message that starts at this position, and where it ends. ProtocolError if its arrays hold more elements."""
    decoder = _decoders.get((cls, version)) or _new_decoder(cls, version)
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
    (_encoders_in_pieces if in_pieces else _encoders)[cls, version] = encoder
    return encoder


def _new_decoder(cls: type[Message], version: int) -> Decoder:
    decoder = _decoders[cls, version] = compile_decoder(cls, version, _flexible_if_declared(cls, version))
    return decoder
