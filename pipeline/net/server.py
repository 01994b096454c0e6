"""The shell around the server's byte machine: accepts connections and lets each speak with a request handler.

One task per connection. The requests of a connection are answered in the order in which they came: a handler that
must wait (a long poll, a disk) holds up its own connection alone. All answers that are ready leave in one call.
Owns the listening sockets and the connections for as long as `serve` runs; cancelling it closes them all.

Bounded are: the connections, the bytes of a request (by the machine, before they are read), the answers held before
they are sent, the time a connection may be silent. A peer that sends garbage loses its connection, nobody else.
"""

import errno
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
import trio

from pipeline.errors import NetworkError, ProtocolError
from pipeline.model import HostPort
from pipeline.net.transport import Piece, SocketTransport
from pipeline.protocol.api import ApiKey
from pipeline.protocol.connection import Request, ServerConnection
from pipeline.protocol.schema import Message

log = structlog.get_logger()

MAX_HELD_BYTES = 1024 * 1024
MAX_MUTE_S = 3600.0
ACCEPT_RETRY_S = 0.1
ACCEPT_RETRY_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a connection."""

    address: HostPort


Answer = Message | None
"""A response message, or None when the request gets no answer (Produce with acks=0)."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """An answer for a client that is over its quota: sent at once, then nothing of its connection is read for `mute_s`
    seconds (KIP-219), and what it has sent already waits.
    """

    answer: Answer
    mute_s: float


Outcome = Answer | Throttled

Handler = Callable[[Request[Message], Peer], Outcome | Awaitable[Outcome]]
"""Answers a request at once, or returns a coroutine that will. Raises ProtocolError to have the connection closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The bounds of a server."""

    max_request_bytes: int
    max_connections: int
    max_idle_s: float


@dataclass(slots=True)
class ServerStatistics:
    """Plain counts, read by whoever publishes metrics."""

    open_connections: int = 0
    accepted: int = 0
    refused: int = 0
    broken: int = 0
    """Connections closed because of what they sent, or of an error in a handler."""


@dataclass(slots=True)
class Server:
    """What all connections of a server share."""

    handle: Handler
    apis: Mapping[int, ApiKey]
    config: ServerConfig
    statistics: ServerStatistics = field(default_factory=ServerStatistics)

    async def serve(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; closes the listeners."""
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            for listener in listeners:
                accepting.start_soon(self._accept, listener, connections)
            task_status.started()

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    accepted, address = await listener.socket.accept()
                except OSError as error:
                    if error.errno not in ACCEPT_RETRY_ERRORS:
                        continue
                    log.error("accept_failed", error=os.strerror(error.errno), retry_s=ACCEPT_RETRY_S)
                    await trio.sleep(ACCEPT_RETRY_S)
                    continue
                peer = Peer(address=HostPort(address[0], address[1]))
                if self.statistics.open_connections >= self.config.max_connections:
                    self.statistics.refused += 1
                    accepted.close()
                    log.warning("connection_refused", peer=str(peer.address), limit=self.config.max_connections)
                    continue
                self.statistics.accepted += 1
                self.statistics.open_connections += 1
                connected = socket.socket(fileno=accepted.detach())
                connections.start_soon(self._hold, connected, peer)

    async def _hold(self, connected: socket.socket, peer: Peer) -> None:
        try:
            transport = SocketTransport(connected)
        except OSError:
            self.statistics.open_connections -= 1
            connected.close()
            return
        try:
            with trio.CancelScope() as idle:
                await self._converse(transport, peer, idle)
            if idle.cancelled_caught:
                log.info("connection_idle", peer=str(peer.address), max_idle_s=self.config.max_idle_s)
        except NetworkError as error:
            log.debug("connection_lost", peer=str(peer.address), error=str(error))
        except ProtocolError as error:
            self.statistics.broken += 1
            log.warning("connection_broken", peer=str(peer.address), error=str(error))
        except Exception:
            self.statistics.broken += 1
            log.exception("handler_failed", peer=str(peer.address))
        finally:
            self.statistics.open_connections -= 1
            transport.close()

    async def _converse(self, transport: SocketTransport, peer: Peer, idle: trio.CancelScope) -> None:
        machine = ServerConnection(self.config.max_request_bytes, self.apis)
        ready: list[Piece] = []
        ready_bytes = 0
        while True:
            request = machine.next_request()
            if request is None:
                idle.deadline = trio.current_time() + self.config.max_idle_s
                if ready:
                    await transport.send(ready)
                    ready, ready_bytes = [], 0
                received = await transport.receive_into(machine.get_buffer())
                if received == 0:
                    return
                machine.bytes_received(received)
                continue
            outcome = self.handle(request, peer)
            if isinstance(outcome, Awaitable):
                if ready:
                    await transport.send(ready)
                    ready, ready_bytes = [], 0
                idle.deadline = float("inf")
                outcome = await outcome
                idle.deadline = trio.current_time() + self.config.max_idle_s
            if isinstance(outcome, Throttled):
                answer, mute_s = outcome.answer, min(outcome.mute_s, MAX_MUTE_S)
            else:
                answer, mute_s = outcome, 0.0
            if answer is not None:
                pieces = machine.encode_response(request, answer)
                ready += pieces
                ready_bytes += sum(map(len, pieces))
            if ready_bytes > MAX_HELD_BYTES or (mute_s > 0 and ready):
                await transport.send(ready)
                ready, ready_bytes = [], 0
            if mute_s > 0:
                idle.deadline = float("inf")
                await trio.sleep(mute_s)
                idle.deadline = trio.current_time() + self.config.max_idle_s


async def open_listeners(address: HostPort) -> list[trio.SocketListener]:
    """Listen on every address of the host; port 0 picks a free port of its first one. Raises OSError when taken."""
    listeners = await trio.open_tcp_listeners(address.port, host=address.host or None)
    if address.port == 0:
        for surplus in listeners[1:]:
            await surplus.aclose()
        del listeners[1:]
    return listeners


def bound_port(listeners: Sequence[trio.SocketListener]) -> int:
    """The port the listeners really have."""
    port: int = listeners[0].socket.getsockname()[1]
    return port
