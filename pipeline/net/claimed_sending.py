"""Sends an answer whose memory is claimed, in small pieces, so that an answer that nobody reads is noticed."""

from collections.abc import Sequence

from pipeline.model import FileRegion
from pipeline.net.request_memory import MIN_BYTES_PER_CHECK, Claim
from pipeline.net.transport import Piece, Transport


async def send_claimed(transport: Transport, pieces: Sequence[Piece], claim: Claim) -> None:
    """Send all pieces in order, as `Transport.send` does, and note in the claim how it goes. Raises NetworkError."""
    for piece in pieces:
        if isinstance(piece, FileRegion):
            await transport.send([piece])
            continue
        for start in range(0, len(piece), MIN_BYTES_PER_CHECK):
            await transport.send([memoryview(piece)[start : start + MIN_BYTES_PER_CHECK]])
            claim.moved_bytes += MIN_BYTES_PER_CHECK
