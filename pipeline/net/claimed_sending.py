"""Sends an answer whose memory is claimed in parts, so that an unread answer is noticed and others get their turn."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.model import FileRegion
from pipeline.net.request_memory import MIN_BYTES_PER_CHECK, Claim
from pipeline.net.transport import Piece, Transport

PART_BYTES = MIN_BYTES_PER_CHECK


async def send_claimed(transport: Transport, pieces: Sequence[Piece], claim: Claim) -> None:
    """Send all pieces in order, as `Transport.send` does, and count sent bytes in the claim. Raises NetworkError."""
    part: list[Piece] = []
    part_bytes = 0
    for piece in _parts(pieces):
        part.append(piece)
        part_bytes += len(piece)
        if part_bytes >= PART_BYTES:
            await _send_part(transport, part, part_bytes, claim)
            part, part_bytes = [], 0
    if part:
        await _send_part(transport, part, part_bytes, claim)


async def _send_part(transport: Transport, part: list[Piece], size: int, claim: Claim) -> None:
    await transport.send(part)
    claim.moved_bytes += size
    await transport.give_way()


def _parts(pieces: Sequence[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if len(piece) <= PART_BYTES:
            yield piece
            continue
        for start in range(0, len(piece), PART_BYTES):
            if isinstance(piece, FileRegion):
                size = min(PART_BYTES, piece.size - start)
                yield replace(piece, position=piece.position + start, size=size)
            else:
                yield memoryview(piece)[start : start + PART_BYTES]
