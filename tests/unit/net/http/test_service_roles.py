"""Tables of roles of all services: every route has a row, every row a route, and what changes something is no read."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from pipeline.audit import server as audit_server
from pipeline.audit.config import AuditConfig
from pipeline.audit.counting import reader_service
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.audit.page.audit_page import audit_page_routes
from pipeline.broker import server as broker_server
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.mirror import service as mirror_service
from pipeline.mirror.config import MirrorConfig
from pipeline.net.http.protection import HttpProtection
from pipeline.net.http.roles import OPERATIONS_ROLES, UnlistedRouteError
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.service import HttpService
from pipeline.net.http.users import Role
from pipeline.schema_registry import server as registry_server
from pipeline.testing.memory_journal import MemoryJournal
from tests.support.mirrors import mirror_settings
from tests.support.registry import serving_registry
from tests.support.secured_http import http_files

HTTP = "127.0.0.1:0"
READ_BY_POST = {
    ("POST", "/"),
    ("POST", "/subjects/{subject}"),
    ("POST", "/compatibility/subjects/{subject}/versions"),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}"),
}
"""Requests that carry a body, and change nothing."""


class CaughtError(Exception):
    """Ends the start of a service, whose server it holds."""

    def __init__(self, service: HttpService) -> None:
        self.service = service


async def catch(service: HttpService, *_arguments: Any, **_options: Any) -> None:
    await trio.lowlevel.checkpoint()
    raise CaughtError(service)


async def start_audit() -> None:
    config = AuditConfig.from_settings({"live": [{"name": "east", "bootstrap.servers": "none:1"}], "http.listen": HTTP})
    nothing: Any = None
    await audit_server.run_audit(
        config,
        {},
        read_expectations=nothing,
        narrow=nothing,
        clock=lambda: 0,
        metrics=CollectorRegistry(),
        page=audit_page_routes(),
    )


async def start_reader() -> None:
    config = ReaderConfig.from_settings({"datacenter": "east", "bootstrap.servers": "none:1", "http.listen": HTTP})
    nothing: Any = None
    await reader_service.run_reader_service(
        config, nothing, nothing, host="a", clock=lambda: 0, rng=Random(1), metrics=CollectorRegistry()
    )


async def start_mirror() -> None:
    nothing: Any = None
    await mirror_service.run_mirror(
        MirrorConfig.from_settings(mirror_settings("east")),
        nothing,
        nothing,
        clock=lambda: 0,
        rng=Random(1),
        metrics=CollectorRegistry(),
    )


async def start_registry() -> None:
    async with serving_registry(MemoryJournal()):
        pass


async def start_broker() -> None:
    nothing: Any = None
    config = BrokerConfig.from_settings(
        {"broker.id": 1, "log.dirs": "/none", "zookeeper.connect": "none:1", "listeners": f"PLAINTEXT://{HTTP}"}
    )
    await broker_server.run_broker(
        config, nothing, clock=lambda: 0, rng=Random(1), observer=nothing, metrics=CollectorRegistry()
    )


SERVICES = {
    audit_server: start_audit,
    reader_service: start_reader,
    mirror_service: start_mirror,
    registry_server: start_registry,
    broker_server: start_broker,
}


@pytest.mark.parametrize("module", SERVICES, ids=lambda module: module.__name__)
async def test_every_route_has_a_role_and_every_role_a_route(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "serve_service", catch)
    with pytest.RaisesGroup(CaughtError, allow_unwrapped=True, flatten_subgroups=True) as caught:
        await SERVICES[module]()
    error: Any = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    service: HttpService = error.service
    routes = [route for route in service.routes if isinstance(route, Route)]
    served = {(method, route.path) for route in routes for method in route.methods or () if method != "HEAD"}
    assert served == service.roles.keys() | OPERATIONS_ROLES.keys()
    for (method, path), role in service.roles.items():
        assert role > Role.READ or method == "GET" or (method, path) in READ_BY_POST
    security = HttpSecurity.from_settings({"http.users.file": str(http_files(tmp_path).users)})
    HttpProtection(security).guard(service.routes, {**OPERATIONS_ROLES, **service.roles})
    for lost in served:
        roles = {key: role for key, role in {**OPERATIONS_ROLES, **service.roles}.items() if key != lost}
        with pytest.raises(UnlistedRouteError):
            HttpProtection(security).guard(service.routes, roles)
