"""Connections of an HTTP server, each served by Hypercorn, whose modules take a while to load."""

import logging
from contextlib import suppress
from functools import partial

import hypercorn
import trio
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from starlette.applications import Starlette

from pipeline.net.signals import Signal

SHUTDOWN_TIMEOUT_S = 1.0
"""Time for clients to read their answers when the service stops."""
MAX_SEND_S = 30.0
"""Time for a client to read a piece of an answer, which is in memory until then."""
MAX_CONNECTIONS = 500
"""Connections of a service. A connection that sent half a request takes some 100 KB for any time."""


class HttpConnections:
    """Connections of a server. A connection beyond `MAX_CONNECTIONS` is served, and the oldest one is cut off.

    Hypercorn cannot interrupt a send, so a client that reads no answer is cut off here.
    """

    def __init__(self, application: Starlette) -> None:
        config = hypercorn.Config()
        config.h11_max_incomplete_size = 64 * 1024
        config.accesslog = None
        config.errorlog = logging.getLogger("pipeline.net.http")
        self._serve = partial(
            TCPServer,
            wrap_app(application, config.wsgi_max_body_size, "asgi"),  # type: ignore[arg-type]
            config,
            WorkerContext(None),
            ConnectionState({}),
        )
        self._streams: dict[_Stream, trio.CancelScope] = {}
        """Connections in the order in which they came."""
        self._ended = Signal()

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve a connection until it ends."""
        if len(self._streams) >= MAX_CONNECTIONS:
            self._cut_off_oldest()
        bounded = _Stream(stream)
        self._streams[bounded] = trio.CancelScope()
        server = self._serve(bounded)  # type: ignore[arg-type]
        try:
            with self._streams[bounded]:
                await server
        finally:
            # Hypercorn's server and its protocol refer to each other: without its fields, the received bytes are freed
            # now and not at the next garbage collection. Hypercorn has no public way to do that.
            vars(server).clear()
            self._streams.pop(bounded, None)
            self._ended.notify()

    def _cut_off_oldest(self) -> None:
        """End the oldest connection at once; without the cancel it would last for Hypercorn's idle timeout."""
        oldest = next(iter(self._streams))
        scope = self._streams.pop(oldest)
        oldest.cut_off()
        scope.cancel()

    async def cut_off_when_cancelled(self) -> None:
        """Wait to be cancelled, then cut off the connections that do not end in time."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(SHUTDOWN_TIMEOUT_S, shield=True):
                while self._streams:
                    await self._ended.wait()
            for stream in self._streams:
                stream.cut_off()


class _Stream(trio.abc.HalfCloseableStream):
    """A connection whose client must read each piece within `MAX_SEND_S`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            with trio.fail_after(MAX_SEND_S):
                await self._stream.send_all(data)
        except trio.TooSlowError as error:
            self.cut_off()
            raise trio.BrokenResourceError("the client does not take its answer") from error

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def cut_off(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(trio.socket.SHUT_RDWR)
