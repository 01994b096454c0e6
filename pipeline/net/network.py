"""Door to the network: listening, connecting, and noticing that a peer has left.

All code of this package that uses a network takes a `Network` or its `connect`. `SOCKETS` is the real network; the
simulation has another one.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import trio

from pipeline.model import HostPort
from pipeline.net.hangups import Hangups
from pipeline.net.transport import SocketTransport, Transport, connect


class ConnectionListener(Protocol):
    """A listening address. Its owner closes it."""

    @property
    def port(self) -> int:
        """The port of the address."""

    async def accept(self) -> tuple[Transport, HostPort]:
        """Wait for the next connection. Return it and its peer's address. Raises OSError; `accept` may be repeated."""

    def close(self) -> None:
        """Accept no more connections. Closing twice does nothing."""


class HangupWatch(Protocol):
    """Notices when peers end their side of a connection, while `run` runs."""

    def watch(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Have `on_gone` called once the peer has ended its side. A second watch of a connection does nothing."""

    def forget(self, descriptor: int) -> None:
        """Stop watching a connection. Call before it is closed."""

    async def run(self) -> None:
        """Call `on_gone` of peers that leave, until cancelled."""


class Network(Protocol):
    """The way in which a process reaches others and is reached."""

    async def listen(self, address: HostPort) -> Sequence[ConnectionListener]:
        """Listen at this address; port 0 picks a free one. Raises OSError if the port is taken."""

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
        """The port of the address."""
        port: int = self._listener.socket.getsockname()[1]
        return port

    async def accept(self) -> tuple[Transport, HostPort]:
        """Wait for the next connection. Return it and its peer's address. Raises OSError."""
        accepted, address = await self._listener.socket.accept()
        connected = socket.socket(fileno=accepted.detach())
        try:
            return SocketTransport(connected), HostPort(address[0], address[1])
        except OSError:
            connected.close()
            raise

    def close(self) -> None:
        """Accept no more connections. Closing twice does nothing."""
        self._listener.socket.close()


class SocketNetwork:
    """The TCP network."""

    async def listen(self, address: HostPort) -> Sequence[ConnectionListener]:
        """Listen on every address of the host; port 0: on a free port of the first one. Raises OSError if taken."""
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
