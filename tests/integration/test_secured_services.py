"""Broker, audit, reader of headers and mirror with TLS and users: each route asked by each role, and by strangers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import trio
from prometheus_client import CollectorRegistry

from pipeline.audit.api import API_ROLES
from pipeline.audit.config import AuditConfig
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.audit.counting.reader_service import READER_ROLES, run_reader_service
from pipeline.audit.judgement.verdicts import Expectations
from pipeline.audit.page import audit_page
from pipeline.audit.server import run_audit
from pipeline.broker.replication.observer import NoObserver
from pipeline.broker.server import BrokerHandle, run_broker
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.client.cluster.cluster import Cluster
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.page import status_page
from pipeline.mirror.service import MIRROR_ROLES, run_mirror
from pipeline.model import HostPort
from pipeline.net.http.roles import OPERATIONS_ROLES, RoleTable
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.brokers import clock, serving_cluster
from tests.support.mirrors import connected_to, mirror_settings
from tests.support.secured_http import ROLES, HttpFiles, basic, http_files

NEVER: Any = None
Start = Callable[[Cluster, dict[str, Any]], Callable[..., Any]]


def audit(cluster: Cluster, settings: dict[str, Any]) -> Callable[..., Any]:
    async def expectations() -> Expectations:
        return Expectations(live_clusters=["east"], replica_cluster=None)

    live = [{"name": "east", "bootstrap.servers": "given:1"}]
    return partial(
        run_audit,
        AuditConfig.from_settings({"live": live, **settings}),
        {"east": cluster},
        read_expectations=expectations,
        narrow=NEVER,
        clock=clock,
        metrics=CollectorRegistry(),
        page=audit_page.audit_page_routes(),
    )


def reader(cluster: Cluster, settings: dict[str, Any]) -> Callable[..., Any]:
    config = ReaderConfig.from_settings({"datacenter": "east", "bootstrap.servers": "given:1", **settings})
    metrics = CollectorRegistry()
    return partial(run_reader_service, config, cluster, cluster, host="a", clock=clock, rng=Random(1), metrics=metrics)


def mirror(cluster: Cluster, settings: dict[str, Any]) -> Callable[..., Any]:
    return partial(
        run_mirror,
        MirrorConfig.from_settings(mirror_settings("east") | settings),
        connected_to({"east": cluster}),
        cluster,
        clock=clock,
        rng=Random(1),
        metrics=CollectorRegistry(),
    )


SERVICES: dict[str, tuple[Start, RoleTable]] = {
    "audit": (audit, {**API_ROLES, **audit_page.PAGE_ROLES}),
    "reader": (reader, READER_ROLES),
    "mirror": (mirror, {**MIRROR_ROLES, **status_page.PAGE_ROLES}),
}


@pytest.fixture
def files(tmp_path: Path) -> HttpFiles:
    return http_files(tmp_path)


@asynccontextmanager
async def client(files: HttpFiles, address: HostPort) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"https://{address}", verify=files.context, timeout=60) as http:
        yield http


async def check(http: httpx.AsyncClient, roles: RoleTable) -> None:
    """Ask each route as nobody and as each role."""
    for (method, path), needed in {**roles, **OPERATIONS_ROLES}.items():
        filled = path.replace("{topic}", "clicks").replace("{hour}", "2026-01-01T00:00:00Z")
        assert (await http.request(method, filled)).status_code == 401, path
        for name, role in ROLES.items():
            answer = await http.request(method, filled, headers=basic(name), json={} if method == "POST" else None)
            assert (answer.status_code in {401, 403}) == (role < needed), (method, path, name, answer.text)
            assert answer.headers["strict-transport-security"]
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", SERVICES)
async def test_each_route_is_open_to_its_role(name: str, files: HttpFiles, tmp_path: Path) -> None:
    start, roles = SERVICES[name]
    async with serving_cluster(tmp_path / "logs") as cluster, trio.open_nursery() as nursery:
        run = start(cluster, {"http.listen": "127.0.0.1:0", **files.settings})
        async with client(files, await nursery.start(run)) as http:
            await check(http, roles)
        nursery.cancel_scope.cancel()


async def test_metrics_of_a_broker_are_for_its_users(files: HttpFiles, tmp_path: Path) -> None:
    settings = {
        "broker.id": 1,
        "log.dirs": str(tmp_path / "logs"),
        "zookeeper.connect": "memory:0",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "http.listen": "127.0.0.1:0",
        **files.settings,
    }
    async with MemoryZooKeeper().open() as zookeeper, trio.open_nursery() as nursery:
        run = partial(
            run_broker,
            BrokerConfig.from_settings(settings),
            zookeeper,
            clock=clock,
            rng=Random(1),
            observer=NoObserver(),
            metrics=CollectorRegistry(),
        )
        handle: BrokerHandle = await nursery.start(run)
        async with client(files, handle.http_address) as http:
            await check(http, {})
            assert "kafka_server_" in (await http.get("/metrics", headers=basic("reader"))).text
        nursery.cancel_scope.cancel()
