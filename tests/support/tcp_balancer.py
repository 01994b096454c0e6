"""A TCP balancer before brokers, as a hardware balancer or a cloud's: connections go to the servers in turn.

It knows nothing of the protocol, and nothing of the servers' health: a connection to a dead server is closed.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from pipeline.model import HostPort

_CHUNK = 65536
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class TcpBalancer:
    """`servers` may be replaced at any moment, for further connections."""

    def __init__(self, servers: Sequence[HostPort]) -> None:
        self.servers = list(servers)
        self.address = HostPort("127.0.0.1", 0)
        self.connections: Counter[HostPort] = Counter()
        """How many connections each server was given, dead ones included."""

    async def serve(self, client: trio.SocketStream) -> None:
        """Serve one connection."""
        server = self.servers[sum(self.connections.values()) % len(self.servers)]
        self.connections[server] += 1
        async with client:
            try:
                connected = await trio.open_tcp_stream(server.host, server.port)
            except OSError:
                return
            async with connected, trio.open_nursery() as nursery:
                nursery.start_soon(_copy, client, connected, nursery.cancel_scope)
                nursery.start_soon(_copy, connected, client, nursery.cancel_scope)


async def _copy(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(_CHUNK):
            await sink.send_all(data)
    except _BROKEN:
        pass
    both.cancel()


@asynccontextmanager
async def tcp_balancer(servers: Sequence[HostPort] = ()) -> AsyncIterator[TcpBalancer]:
    """Serve on a free port until the block ends."""
    balancer = TcpBalancer(servers)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    balancer.address = HostPort("127.0.0.1", listeners[0].socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, balancer.serve, listeners)
        yield balancer
        nursery.cancel_scope.cancel()
