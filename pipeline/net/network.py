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
    """Where connections come in. Whoever has it closes it."""

    @property
    def port(self) -> int:
        """The port it really has."""
        ...

    async def accept(self) -> tuple[Transport, HostPort]:
        """The next connection, and who is at its other end. Raises OSError, after which it can be asked again."""
        ...

    def close(self) -> None:
        """Take no more. Closing twice does nothing."""
        ...


class HangupWatch(Protocol):
    """Tells when peers end their side of a connection, while `run` runs."""

    def watch(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Call when the peer has ended its side, even if it has already. Does nothing for one that is watched."""
        ...

    def forget(self, descriptor: int) -> None:
        """To be called before the connection is closed."""
        ...

    async def run(self) -> None:
        """Tell, until cancelled."""
        ...


class Network(Protocol):
    """How a process reaches others, and is reached."""

    async def listen(self, address: HostPort) -> Sequence[ConnectionListener]:
        """Listen at this address; port 0 picks a free one. Raises OSError when taken."""
        ...

    async def connect(self, address: HostPort) -> Transport:
        """Raises NetworkError."""
        ...

    def hangups(self) -> HangupWatch:
        """One for a server."""
        ...


class SocketListener:
    """A listening TCP socket."""

    __slots__ = ("_listener",)

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener

    @property
    def port(self) -> int:
        """The port it really has."""
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
        """Take no more. Closing twice does nothing."""
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
        """One for a server."""
        return Hangups()


SOCKETS = SocketNetwork()
