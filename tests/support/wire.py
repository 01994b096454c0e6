"""Bytes of messages as they go over a connection."""

from collections.abc import Sequence

from pipeline.model import FileRegion
from pipeline.protocol.schema import Piece


def joined(pieces: Sequence[Piece]) -> bytes:
    """Return the pieces of a message that are in memory, as one."""
    return b"".join(piece for piece in pieces if not isinstance(piece, FileRegion))
