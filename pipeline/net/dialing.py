"""Opening of connections by clients: the way to the server, and the authentication before the first request."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pipeline.model import HostPort
from pipeline.net.transport import Transport, connect
from pipeline.protocol.schema import Message

Connect = Callable[[HostPort], Awaitable[Transport]]
"""Opens a connection, encrypted if it has to be. Raises NetworkError."""

Exchange = Callable[[Message], Awaitable[Message]]
"""Sends a request on the connection in question, in the highest version that both ends know, and returns the answer."""

Authenticate = Callable[[HostPort, Exchange], Awaitable[float | None]]
"""Authenticates a connection to a server, for the first time or again. Returns the time in s for which that holds, None
for ever. Raises AuthenticationError, and what the exchange raises."""


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections, and authenticates them unless `authenticate` is None."""

    connect: Connect = connect
    authenticate: Authenticate | None = None


PLAIN_DIALER = Dialer()
"""Connections that are neither encrypted nor authenticated."""
