"""HTTP server of a service with its protection: users, roles, and perhaps a port of its own for metrics."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pipeline.diagnostics import get_logger
from pipeline.model import HostPort
from pipeline.net.http.protection import HttpProtection
from pipeline.net.http.roles import OPERATIONS_ROLES, RoleTable, refused_answer
from pipeline.net.http.security import OPERATIONS_PATHS, HttpSecurity
from pipeline.net.http.server import HealthCheck, ReadinessRoute, http_application, serve_http
from pipeline.net.http.users import Role
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.service_manager import service_manager

_METHODS = ("GET", "POST", "PUT", "DELETE")
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
    """Serve until cancelled. Reports the bound address once listening. Raises ConfigurationError.

    Tells the service manager when the service is ready.
    """
    protection = HttpProtection(security, service.name)
    routes, operations = list(service.routes), []
    if security.metrics_listen is not None:
        operations = [route for route in routes if isinstance(route, Route) and route.path in OPERATIONS_PATHS]
        routes = [route for route in routes if route not in operations]
    application = http_application(protection.guard(routes, {**OPERATIONS_ROLES, **service.roles}))
    service.prepare(application)

    if security.asks_login and not security.is_encrypted and address.host not in _LOCAL:
        logger.warning("http_passwords_in_clear_text", address=str(address), advice="set http.ssl.keystore.location")
    bound: HostPort
    checks = [route.check for route in service.routes if isinstance(route, ReadinessRoute)]
    collectors: list[Collector] = [_ServerState(checks, protection)]
    if security.asks_login or security.client_auth != "none":
        collectors.append(protection.counts)
    with unwrapped_errors(), _registered(service.metrics, collectors):
        async with trio.open_nursery() as nursery:
            await nursery.start(protection.run)
            serve = partial(serve_http, tls=lambda: protection.tls, handshake_failed=protection.note_failed_handshake)
            if security.metrics_listen is not None:
                application_of_metrics = protection.with_headers(http_application(operations))
                listen = partial(serve_http, tls=lambda: protection.tls_of_metrics, setting="http.metrics.listen")
                bound = await nursery.start(listen, application_of_metrics, security.metrics_listen)
                logger.info("metrics_served", address=str(bound))
            bound = await nursery.start(serve, protection.around(application), address)
            logger.info("http_served", address=str(bound))
            task_status.started(bound)
            for check in checks:
                nursery.start_soon(service_manager().announce, check)


class InterimServer:
    """The HTTP server of a service whose routes need what is not there yet: operations, and 503 to all else.

    The answers have the form of the registry's errors, `{"error_code", "message"}`, which its clients read.
    """

    def __init__(self, address: HostPort) -> None:
        self.address = address
        """The address that the service listens at next."""
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def end(self) -> HostPort:
        """Stop listening, and return the address."""
        self.scope.cancel()
        await self.ended.wait()
        return self.address


async def serve_interim(
    service: HttpService,
    address: HostPort,
    security: HttpSecurity,
    *,
    task_status: trio.TaskStatus[InterimServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a service's operations until the server that is reported is ended. Raises ConfigurationError."""
    (readiness,) = (route for route in service.routes if isinstance(route, ReadinessRoute))

    async def refuse(_request: Request) -> Response:
        return refused_answer(503, readiness.check() or "starting")

    others = Route("/{path:path}", refuse, methods=list(_METHODS))
    roles = {(method, others.path): Role.READ for method in _METHODS}
    interim = replace(service, routes=[*service.routes, others], roles=roles)
    server = InterimServer(address)
    with server.scope:
        async with trio.open_nursery() as nursery:
            server.address = await nursery.start(serve_service, interim, address, security)
            task_status.started(server)
    server.ended.set()


class _ServerState(Collector):
    """Metrics of the server of a service: the answer of `/readyz`, the clock, and the end of the certificate."""

    def __init__(self, checks: Sequence[HealthCheck], protection: HttpProtection) -> None:
        self._checks = checks
        self._protection = protection

    def collect(self) -> Iterator[Metric]:
        """Carry out the check of a service that has one."""
        for check in self._checks:
            text = "1 if /readyz succeeds, 0 if it says what is missing."
            yield GaugeMetricFamily("pipeline_ready", text, value=int(check() is None))
        text = "Clock of the host, in seconds since 1970."
        yield GaugeMetricFamily("pipeline_time_seconds", text, value=time.time())
        yield from self._protection.collect_certificate()


@contextmanager
def _registered(metrics: CollectorRegistry, collectors: Sequence[Collector]) -> Iterator[None]:
    """Have the metrics contain what these collect."""
    for collector in collectors:
        metrics.register(collector)
    try:
        yield
    finally:
        for collector in collectors:
            metrics.unregister(collector)
