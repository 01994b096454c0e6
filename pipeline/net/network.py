"""The door to the network: listening, connecting, and noticing that a peer has left.

Everything of this package that speaks over a network takes a `Network`, or its `connect`; `SOCKETS` is the real one.
The simulation puts another one in its place.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from pipeline.model import HostPort
from pipeline.net.hangups import Hangups
from pipeline.net.transport import SocketTransport, Transport, connect


class ConnectionListener(Protocol):
    """A place at which connections come in. Its owner closes it."""

    @property
    def port(self) -> int:
        """The port that it listens on."""

    async def accept(self) -> tuple[Transport, HostPort]:
        """The next connection, and who is at its other end. Raises OSError, after which it can be asked again."""

    def close(self) -> None:
        """Take no more connections. Closing twice does nothing."""


class HangupWatch(Protocol):
    """Tells when peers end their side of a connection, while `run` runs."""

    def watch(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Have `on_gone` called once the peer has ended its side. A second watch of a connection does nothing."""

    def forget(self, descriptor: int) -> None:
        """Watch no longer. Call before the connection is closed."""

    async def run(self) -> None:
        """Notify until cancelled."""


class Network(Protocol):
    """The way in which a process reaches others, and is reached."""

    async def listen(self, address: HostPort) -> Sequence[ConnectionListener]:
        """Listen at this address; port 0 picks a free one. Raises OSError when taken."""

    async def connect(self, address: HostPort) -> Transport:
        """Connect to a server. Raises NetworkError."""

    def hangups(self) -> HangupWatch:
        """Return a watch for the connections of one server."""


class SocketListener:
    """A listening TCP socket."""

    __slots__ = ("_listener",)

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._listener.socket.getsockname()[1]
        return port

    async def accept(self) -> tuple[Transport, HostPort]:
        """The next connection, and who is at its other end. Raises OSError."""
        accepted, address = await self._listener.socket.accept()
        connected = socket.socket(fileno=accepted.detach())
        try:
            return SocketTransport(connected), HostPort(address[0], address[1])
        except OSError:
            connected.close()
            raise

    def close(self) -> None:
        """Take no more connections. Closing twice does nothing."""
        self._listener.socket.close()


class SocketNetwork:
    """TCP."""

    async def listen(self, address: HostPort) -> Sequence[ConnectionListener]:
        """Listen on every address of the host; port 0 picks a free port of its first one. Raises OSError when taken."""
        listeners = await trio.open_tcp_listeners(address.port, host=address.host or None)
        if address.port == 0:
            for surplus in listeners[1:]:
                surplus.socket.close()
            del listeners[1:]
        return [SocketListener(listener) for listener in listeners]

    async def connect(self, address: HostPort) -> Transport:
        """Connect to the first address of the host that answers. Raises NetworkError."""
        return await connect(address)

    def hangups(self) -> HangupWatch:
        """Return a watch for the connections of one server."""
        return Hangups()


SOCKETS = SocketNetwork()
