"""The HTTP side of every service: one ASGI server on trio, with `/metrics`, `/healthz` and `/readyz`.

Owns the listening socket for as long as `serve_http` runs; cancelling it closes the socket and the open requests.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import hypercorn
import hypercorn.trio
import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.net.exposition import exposition

SHUTDOWN_TIMEOUT_S = 3.0

HealthCheck = Callable[[], str | None]
"""Returns None when all is well, or a sentence saying what is wrong."""


def operations_routes(
    metrics: CollectorRegistry,
    health: HealthCheck,
    readiness: HealthCheck | None = None,
    warning: HealthCheck = lambda: None,
) -> list[BaseRoute]:
    """`/metrics` (Prometheus text), `/healthz` (200 `{"status": "ok"}`, or 503 with the reason) and `/readyz`.

    `readiness` says whether requests should be sent here; without it, whoever is well is ready.
    `warning` says what is wrong that no restart mends: `/healthz` names it beside `{"status": "ok"}`, as `warnings`.
    """
    one_at_a_time = trio.Lock()

    async def serve_metrics(_request: Request) -> Response:
        async with one_at_a_time:  # the samples of one are memory enough
            text = await exposition(metrics)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def serve(check: HealthCheck) -> Callable[[Request], Awaitable[Response]]:
        async def serve_check(_request: Request) -> Response:
            reason = check()
            if reason is None:
                return JSONResponse(
                    {"status": "ok"} if (told := warning()) is None else {"status": "ok", "warnings": [told]}
                )
            return JSONResponse({"status": "failing", "reason": reason}, status_code=503)

        return serve_check

    return [
        Route("/metrics", serve_metrics),
        Route("/healthz", serve(health)),
        Route("/readyz", serve(readiness or health)),
    ]


def http_application(
    routes: Sequence[BaseRoute], *, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None
) -> Starlette:
    """A Starlette application of these routes."""
    return Starlette(routes=list(routes), lifespan=lifespan)


async def serve_http(
    application: Starlette, address: HostPort, *, task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled. Reports the bound address once listening (port 0 picks a free one).

    Raises ConfigurationError when the address cannot be listened on.
    """
    listener = _listen(address)
    host, port = listener.getsockname()[:2]
    config = hypercorn.Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = SHUTDOWN_TIMEOUT_S
    config.h11_max_incomplete_size = 64 * 1024
    config.accesslog = None
    config.errorlog = logging.getLogger("pipeline.net.http")
    async with trio.open_nursery() as nursery:
        await nursery.start(_serve, application, config)
        task_status.started(HostPort(host, port))


def _listen(address: HostPort) -> socket.socket:
    """A socket that takes connections. Raises ConfigurationError."""
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


async def _serve(application: Starlette, config: hypercorn.Config, *, task_status: trio.TaskStatus[list[str]]) -> None:
    await hypercorn.trio.serve(application, config, task_status=task_status)  # type: ignore[arg-type]
