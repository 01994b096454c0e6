"""HTTP server of a service with its protection: users, roles, and perhaps a port of its own for metrics."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import trio
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route

from pipeline.diagnostics import get_logger
from pipeline.model import HostPort
from pipeline.net.http.protection import HttpProtection
from pipeline.net.http.roles import OPERATIONS_ROLES, RoleTable
from pipeline.net.http.security import OPERATIONS_PATHS, HttpSecurity
from pipeline.net.http.server import http_application, serve_http
from pipeline.net.nurseries import unwrapped_errors

_LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})

logger = get_logger(__name__)


def _as_it_is(_application: Starlette) -> None:
    """Add nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpService:
    """Routes of a service, and the roles that they need."""

    routes: Sequence[BaseRoute]
    """With those of `operations_routes`."""
    roles: RoleTable
    """Roles that the routes need, but for those of `operations_routes`."""
    name: str
    """Name of the service in its metrics."""
    metrics: CollectorRegistry
    """The metrics that its routes serve; those of logins are added."""
    prepare: Callable[[Starlette], None] = _as_it_is
    """Adds the service's own middleware to the application of its routes."""


async def serve_service(
    service: HttpService,
    address: HostPort,
    security: HttpSecurity,
    *,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. Reports the bound address once listening. Raises ConfigurationError."""
    protection = HttpProtection(security, service.name)
    routes, operations = list(service.routes), []
    if security.metrics_listen is not None:
        operations = [route for route in routes if isinstance(route, Route) and route.path in OPERATIONS_PATHS]
        routes = [route for route in routes if route not in operations]
    application = http_application(protection.guard(routes, {**OPERATIONS_ROLES, **service.roles}))
    service.prepare(application)

    if security.asks_login and not security.is_encrypted and address.host not in _LOCAL:
        logger.warning("http_passwords_in_clear_text", address=str(address), advice="set http.ssl.keystore.location")
    with unwrapped_errors(), _registered(service.metrics, protection, security):
        async with trio.open_nursery() as nursery:
            await nursery.start(protection.run)
            serve = partial(serve_http, tls=lambda: protection.tls, handshake_failed=protection.note_failed_handshake)
            if security.metrics_listen is not None:
                application_of_metrics = protection.with_headers(http_application(operations))
                listen = partial(serve_http, tls=lambda: protection.tls_of_metrics, setting="http.metrics.listen")
                bound: HostPort = await nursery.start(listen, application_of_metrics, security.metrics_listen)
                logger.info("metrics_served", address=str(bound))
            task_status.started(await nursery.start(serve, protection.around(application), address))


@contextmanager
def _registered(metrics: CollectorRegistry, protection: HttpProtection, security: HttpSecurity) -> Iterator[None]:
    """Have the metrics count logins, if there are any."""
    if not security.asks_login and security.client_auth == "none":
        yield
        return
    metrics.register(protection.counts)
    try:
        yield
    finally:
        metrics.unregister(protection.counts)
