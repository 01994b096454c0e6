"""Bytes of messages and of file regions as they go over a connection."""

import os
from collections.abc import Sequence

from pipeline.model import FileRegion
from pipeline.protocol.schema import Piece


def joined(pieces: Sequence[Piece]) -> bytes:
    """Return the pieces of a message that are in memory, as one."""
    return b"".join(piece for piece in pieces if not isinstance(piece, FileRegion))


def content_of(region: FileRegion) -> bytes:
    """Return the bytes that sendfile would send."""
    return os.pread(region.file.fileno(), region.size, region.position)
