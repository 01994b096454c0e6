"""TCP proxies before brokers, through which all traffic of a cluster goes, and which are cut or slow for one client.

A broker has one advertised address for clients and for other brokers. So the connections of one client are recognised
by the client id in the header of their first request.

Invariant: as on a broken network, nothing is lost that TCP has accepted. Bytes and ends of connections wait while the
link is cut, and arrive afterwards, also if their sender is gone by then.
"""

import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from enum import Enum, auto
from struct import Struct

import trio

from pipeline.model import HostPort

CHUNK = 65536
BEFORE_CLIENT_ID = Struct(">ihhih")
"""Size of the request, api key, version, correlation id, length of the client id."""
BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


class Direction(Enum):
    """Way of bytes between the client and the brokers."""

    TO_BROKERS = auto()
    TO_CLIENT = auto()


BOTH = tuple(Direction)


class Links:
    """Proxies before the brokers of one cluster. `cut`, `mend` and the rate concern the client `client_id` alone."""

    def __init__(self, client_id: str, bytes_per_s: float = math.inf) -> None:
        """`bytes_per_s`: what all connections of the client carry together in each direction, chunk by chunk."""
        self._client_id = client_id.encode()
        self._bytes_per_s = bytes_per_s
        self._free_at = dict.fromkeys(Direction, -math.inf)
        self._open = {direction: trio.Event() for direction in Direction}
        self.mend()

    def cut(self, directions: Iterable[Direction] = BOTH) -> None:
        """Let nothing through in these directions, without notice to the ends."""
        for direction in directions:
            self._open[direction] = trio.Event()

    def mend(self) -> None:
        """Let all through, what waited first."""
        for event in self._open.values():
            event.set()

    async def serve(self, server: HostPort, client: trio.SocketStream) -> None:
        """Serve one connection to the server."""
        async with client:
            first = await _first_request(client)
            is_subject = first[BEFORE_CLIENT_ID.size :].startswith(self._client_id)
            if is_subject:
                await self._pass(Direction.TO_BROKERS)
            try:
                broker = await trio.open_tcp_stream(server.host, server.port)
            except OSError:
                return
            async with broker, trio.open_nursery() as nursery:
                nursery.start_soon(self._answer, broker, client, is_subject, nursery.cancel_scope)
                await self._ask(first, client, broker, is_subject)

    async def _ask(self, first: bytes, client: trio.SocketStream, broker: trio.SocketStream, is_subject: bool) -> None:
        """Pass requests on. A client that has left leaves its requests."""
        chunk = first
        try:
            while chunk:
                await broker.send_all(chunk)
                chunk = await _received(client)
                if is_subject:
                    await self._pass(Direction.TO_BROKERS, len(chunk))
            await broker.send_eof()
        except BROKEN:
            await trio.aclose_forcefully(broker)

    async def _answer(
        self, broker: trio.SocketStream, client: trio.SocketStream, is_subject: bool, scope: trio.CancelScope
    ) -> None:
        """Pass answers on, until the broker ends the connection. Answers to a client that has left are dropped."""
        is_listening = True
        while chunk := await _received(broker):
            if is_subject:
                await self._pass(Direction.TO_CLIENT, len(chunk))
            try:
                if is_listening:
                    await client.send_all(chunk)
            except BROKEN:
                is_listening = False
        if is_subject:
            await self._pass(Direction.TO_CLIENT)
        scope.cancel()

    async def _pass(self, direction: Direction, size: int = 0) -> None:
        while not self._open[direction].is_set():
            await self._open[direction].wait()
        if size and self._bytes_per_s < math.inf:
            self._free_at[direction] = max(self._free_at[direction], trio.current_time()) + size / self._bytes_per_s
            await trio.sleep_until(self._free_at[direction])


async def _received(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some(CHUNK))
    except BROKEN:
        return b""


async def _first_request(client: trio.SocketStream) -> bytes:
    """Return the first bytes of a connection, with the client id if there is any request."""
    received = b""
    needed = BEFORE_CLIENT_ID.size
    while len(received) < needed:
        chunk = await _received(client)
        if not chunk:
            break
        received += chunk
        if len(received) >= BEFORE_CLIENT_ID.size:
            needed = BEFORE_CLIENT_ID.size + max(0, BEFORE_CLIENT_ID.unpack_from(received)[-1])
    return received


@asynccontextmanager
async def linked(links: Links, servers: Iterable[HostPort]) -> AsyncIterator[list[HostPort]]:
    """Serve a proxy before each server until the block ends. Gives the addresses of the proxies."""

    async with trio.open_nursery() as nursery:
        addresses = []
        for server in servers:

            async def serve(client: trio.SocketStream, server: HostPort = server) -> None:
                await links.serve(server, client)

            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            addresses.append(HostPort("127.0.0.1", listeners[0].socket.getsockname()[1]))
        yield addresses
        nursery.cancel_scope.cancel()
