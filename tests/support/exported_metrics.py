"""Names and labels of the metrics that services export, read from the services' own collectors as they run."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import trio
from prometheus_client import CollectorRegistry

from pipeline.broker.settings.broker import BrokerConfig
from pipeline.cli.foreground import service_metrics
from pipeline.hadoop.load.metrics import LoadMetrics
from pipeline.model import HostPort
from pipeline.net.http.security import HttpSecurity
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, serve_service
from pipeline.testing.memory_journal import MemoryJournal
from pipeline.testing.memory_zookeeper import MemoryZooKeeper
from tests.support.audit_site import AuditSite
from tests.support.brokers import serving_cluster
from tests.support.mirrors import CLICKS, make, mirroring_of, publish, until_copied
from tests.support.registry import serving_registry
from tests.support.secured_http import http_files
from tests.support.serving_broker import serving_broker

TARGET_LABELS = frozenset({"job", "instance", "datacenter"})
"""Labels that Prometheus adds to what it scrapes, as docs/deploy/monitoring.md has it set up."""
SUFFIXES: Mapping[str, Mapping[str, frozenset[str]]] = {
    "counter": {"_total": frozenset()},
    "gauge": {"": frozenset()},
    "summary": {"_sum": frozenset(), "_count": frozenset()},
    "histogram": {"_bucket": frozenset({"le"}), "_sum": frozenset(), "_count": frozenset()},
}
"""Endings of the series of each kind of metric, with the labels that the kind adds."""


def series_of(registry: CollectorRegistry) -> dict[str, frozenset[str]]:
    """Return the labels of all series that a registry can show, by the series' names, also of those without a value."""
    found: dict[str, frozenset[str]] = {}
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            declared = frozenset[str](getattr(family, "_labelnames", ()) or getattr(collector, "_labelnames", ()))
            for suffix, added in SUFFIXES[family.type].items():
                found[family.name + suffix] = declared | added
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, frozenset()) | frozenset(sample.labels)
    return found


@asynccontextmanager
async def exporting_services(directory: Path) -> AsyncIterator[dict[str, CollectorRegistry]]:
    """Run a broker, a mirror, a registry, an audit and the metrics of a load; gives the registries of their metrics."""
    services = {job: service_metrics() for job in ("broker", "mirror", "registry", "audit", "load")}
    LoadMetrics(services["load"], "lake")
    services["audit"].register(AuditSite().metrics)
    config = BrokerConfig.from_settings(
        {
            "broker.id": 1,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(directory / "broker"),
            "zookeeper.connect": "memory:0",
        }
    )
    of_group = {"zookeeper.connect": "memory:0", "throttle.bytes.per.second": 1_000_000}
    zookeeper = MemoryZooKeeper()
    async with (
        MemoryZooKeeper().open() as alone,
        zookeeper.open() as member,
        serving_broker(config, alone, services["broker"]),
        serving_cluster(directory / "east") as east,
        serving_cluster(directory / "hub", zookeeper=zookeeper) as hub,
        mirroring_of(hub, services["mirror"], of_group, None, member, east=east),
        serving_registry(MemoryJournal(), metrics=services["registry"]) as url,
        httpx.AsyncClient() as client,
        trio.open_nursery() as nursery,
    ):
        (await client.get(f"{url}/subjects")).raise_for_status()  # which builds the part that forwards
        security = HttpSecurity.from_settings(http_files(directory).settings)
        secured = HttpService(
            name="load", routes=operations_routes(services["load"], lambda: None), roles={}, metrics=services["load"]
        )
        await nursery.start(serve_service, secured, HostPort("127.0.0.1", 0), security)
        await make(east)
        await publish(east, b"copied")
        await until_copied(hub, CLICKS, b"copied")
        yield services
        nursery.cancel_scope.cancel()
