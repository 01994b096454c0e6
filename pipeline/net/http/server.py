"""HTTP side of every service: an ASGI application on trio, with `/metrics`, `/healthz` and `/readyz`.

Owns the listening socket for as long as `serve_http` runs. Cancelling `serve_http` closes the socket and all open
requests, even of clients that do not read their answers.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType

import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.http.connections import HttpConnections
from pipeline.net.http.exposition import exposition

BACKLOG = 1024
"""Connections that wait to be accepted: some 0.2 s of work. A client beyond them tries again after a second."""

HealthCheck = Callable[[], str | None]
"""Returns None, or a sentence that says what is wrong."""


class ReadinessRoute(Route):
    """`/readyz`, and the check that it answers with."""

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], check: HealthCheck) -> None:
        super().__init__(path, endpoint)
        self.check = check


def operations_routes(
    metrics: CollectorRegistry,
    health: HealthCheck,
    readiness: HealthCheck | None = None,
    warning: HealthCheck = lambda: None,
    more: Mapping[str, HealthCheck] = MappingProxyType({}),
) -> list[BaseRoute]:
    """`/metrics` (Prometheus text), `/healthz` (200 `{"status": "ok"}`, or 503 with the reason) and `/readyz`.

    `readiness`: whether requests should be sent here (default: `health`). `warning`: a fault that a restart does not
    repair; `/healthz` shows it as `warnings` beside `{"status": "ok"}`. `more`: further checks that
    `/readyz?check=NAME` carries out in place of `readiness`. `/healthz?check=process` succeeds while the process can
    answer.
    """
    scrapes = _Scrapes(metrics)

    async def serve_metrics(_request: Request) -> Response:
        return Response(await scrapes.text(), media_type=CONTENT_TYPE_LATEST)

    def serve(default: HealthCheck, more: Mapping[str, HealthCheck]) -> Callable[[Request], Awaitable[Response]]:
        async def serve_check(request: Request) -> Response:
            name = request.query_params.get("check")
            check = default if name is None else more.get(name)
            if check is None:
                return JSONResponse({"error": f"check must be one of {', '.join(more) or 'none'}"}, status_code=400)
            reason = check()
            if reason is None:
                warned = warning()
                return JSONResponse({"status": "ok"} | ({} if warned is None else {"warnings": [warned]}))
            return JSONResponse({"status": "failing", "reason": reason}, status_code=503)

        return serve_check

    return [
        Route("/metrics", serve_metrics),
        Route("/healthz", serve(health, {"process": lambda: None})),
        ReadinessRoute("/readyz", serve(readiness or health, more), readiness or health),
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
    application: ASGIApp,
    address: HostPort,
    *,
    tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    handshake_failed: Callable[[], None] = lambda: None,
    setting: str = "http.listen",
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. Reports the bound address once listening (port 0 picks a free one).

    `tls`: returns the context of TLS for the next connection, None for clear text. `handshake_failed`: called for each
    client that cannot speak TLS or shows no certificate that counts. `setting`: name of the address in errors. Raises
    ConfigurationError if the address cannot be listened on.
    """
    bound = _listen(address, setting)
    host, port = bound.getsockname()[:2]
    connections = HttpConnections(application, HostPort(host, port), tls, handshake_failed)
    with closing(bound):
        async with trio.open_nursery() as nursery:
            task_status.started(HostPort(host, port))
            nursery.start_soon(connections.run)
            nursery.start_soon(connections.accept, bound)


def _listen(address: HostPort, setting: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setblocking(False)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(setting, f"cannot listen on {address}: {error}") from error
    return listener
