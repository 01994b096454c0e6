"""HTTP side of every service: one ASGI server on trio, with `/metrics`, `/healthz` and `/readyz`.

Owns the listening socket for as long as `serve_http` runs. Cancelling `serve_http` closes the socket and all open
requests, even of clients that do not read their answers.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import hypercorn
import trio
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import wrap_app
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.exposition import exposition
from pipeline.net.signals import Signal

SHUTDOWN_TIMEOUT_S = 1.0
"""Time for clients to read their answers when the service stops."""
MAX_SEND_S = 30.0
"""Time for a client to read a piece of an answer, which is in memory until then."""
MAX_CONNECTIONS = 500
"""Connections of a service. A connection that sent half a request takes some 100 KB for any time."""

HealthCheck = Callable[[], str | None]
"""Returns None, or a sentence that says what is wrong."""


def operations_routes(
    metrics: CollectorRegistry,
    health: HealthCheck,
    readiness: HealthCheck | None = None,
    warning: HealthCheck = lambda: None,
) -> list[BaseRoute]:
    """`/metrics` (Prometheus text), `/healthz` (200 `{"status": "ok"}`, or 503 with the reason) and `/readyz`.

    `readiness`: whether requests should be sent here (default: `health`). `warning`: a fault that a restart does not
    repair; `/healthz` shows it as `warnings` beside `{"status": "ok"}`.
    """
    scrapes = _Scrapes(metrics)

    async def serve_metrics(_request: Request) -> Response:
        return Response(await scrapes.text(), media_type=CONTENT_TYPE_LATEST)

    def serve(check: HealthCheck) -> Callable[[Request], Awaitable[Response]]:
        async def serve_check(_request: Request) -> Response:
            reason = check()
            if reason is None:
                warned = warning()
                return JSONResponse({"status": "ok"} | ({} if warned is None else {"warnings": [warned]}))
            return JSONResponse({"status": "failing", "reason": reason}, status_code=503)

        return serve_check

    return [
        Route("/metrics", serve_metrics),
        Route("/healthz", serve(health)),
        Route("/readyz", serve(readiness or health)),
    ]


class _Scrapes:
    """Metrics as text. Requests that come during a scrape share the next one, so many clients do not hold up others."""

    def __init__(self, metrics: CollectorRegistry) -> None:
        self._metrics = metrics
        self._one_at_a_time = trio.Lock()  # the samples of one scrape take memory enough
        self._begun = 0
        self._written = 0
        """Number of the last complete text."""
        self._text = b""

    async def text(self) -> bytes:
        """Return a text that was begun after this call."""
        wanted = self._begun + 1
        async with self._one_at_a_time:
            if self._written < wanted:
                self._begun += 1
                self._text = await exposition(self._metrics)
                self._written = self._begun
            text = self._text
            if not self._one_at_a_time.statistics().tasks_waiting:
                self._text = b""
        return text


def http_application(routes: Sequence[BaseRoute]) -> Starlette:
    """Return a Starlette application of these routes."""
    return Starlette(routes=list(routes))


async def serve_http(
    application: Starlette,
    address: HostPort,
    *,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. Reports the bound address once listening (port 0 picks a free one).

    A connection beyond `MAX_CONNECTIONS` is served, and the oldest one is cut off.
    Raises ConfigurationError if the address cannot be listened on.
    """
    listener = _listen(address)
    host, port = listener.getsockname()[:2]
    config = hypercorn.Config()
    config.h11_max_incomplete_size = 64 * 1024
    config.accesslog = None
    config.errorlog = logging.getLogger("pipeline.net.http")
    async with trio.open_nursery() as nursery:
        connections = _Connections(application, config)
        nursery.start_soon(connections.cut_off_when_cancelled)
        nursery.start_soon(
            trio.serve_listeners, connections.serve, [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
        )
        task_status.started(HostPort(host, port))


class _Connections:
    """Connections of a server. Hypercorn cannot interrupt a send, so a client that reads no answer is cut off here."""

    def __init__(self, application: Starlette, config: hypercorn.Config) -> None:
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


def _listen(address: HostPort) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((address.host, address.port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigurationError("http.listen", f"cannot listen on {address}: {error}") from error
    return listener
