"""Outbox of a connection: encoded answers until they are sent, all in one call."""

import trio

from pipeline.net.claimed_sending import send_claimed
from pipeline.net.request_memory import Claim
from pipeline.net.request_statistics import RequestStatistics
from pipeline.net.transport import Piece, Transport
from pipeline.protocol.connection import size_of


class Outbox:
    """Answers that are ready, in the order of their requests."""

    __slots__ = ("_pieces", "size_bytes", "unsent")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self.size_bytes = 0
        self.unsent: list[tuple[RequestStatistics, float, float]] = []
        """Statistics of each answer, and the times at which its request arrived and was answered."""

    def add(self, pieces: list[Piece], statistics: RequestStatistics, arrived: float, answered: float) -> None:
        """Keep an encoded answer until it is sent; `pieces` is empty for a request without answer."""
        size = size_of(pieces)
        self._pieces += pieces
        self.size_bytes += size
        statistics.response_bytes += size
        self.unsent.append((statistics, arrived, answered))

    async def send(self, transport: Transport, claim: Claim | None) -> None:
        """Send all answers; `claim`: the memory that they hold. Raises NetworkError."""
        pieces, unsent = self._pieces, self.unsent
        self._pieces, self.size_bytes, self.unsent = [], 0, []
        started = ended = trio.current_time()
        if pieces:
            if claim is None:
                await transport.send(pieces)
            else:
                await send_claimed(transport, pieces, claim)
            ended = trio.current_time()
        for statistics, arrived, answered in unsent:
            statistics.sent(arrived, answered, started, ended)
