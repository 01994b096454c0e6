"""What the report says of what it does not know, and what Prometheus is told."""

from typing import Any

import pytest
import trio
import trio.testing
from prometheus_client import CollectorRegistry

from pipeline.audit.collector import Collector
from pipeline.audit.config import AuditConfig
from pipeline.audit.message import AuditEvent, AuditSource, Tier
from pipeline.audit.reconcile import Route
from pipeline.audit.server import AuditMetrics, AuditService
from pipeline.cli.audit.rendering import render
from pipeline.errors import NetworkError
from pipeline.model import TopicPartition
from pipeline.records.tally import Counts

CLICKS = TopicPartition("clicks", 0)
FULL = Counts(10, 1000, 2, 77)
NOW_MS = 1_700_000_000_000
CONFIG = AuditConfig.from_settings(
    {
        "live": [{"name": "east", "bootstrap.servers": "given:1"}],
        "replica": [{"name": "hub", "bootstrap.servers": "given:1"}],
        "http.listen": "127.0.0.1:0",
    }
)


class Routes:
    """The mirror's table, as long as the hub answers."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_silent = False

    async def read(self) -> list[Route]:
        if self.is_silent:
            await trio.sleep_forever()
        if self.error is not None:
            raise self.error
        return [Route(cluster="east", source=CLICKS, replica=CLICKS)]


def told(collector: Collector, start_ms: int = 0) -> None:
    for cluster in ("east", "hub"):
        source = AuditSource(tier=Tier.BROKER, cluster=cluster, partition=CLICKS)
        event = AuditEvent(source=source, revision=10, created_ms=0, window_ms=600_000, windows={start_ms: FULL})
        collector.ledger.apply(event)


@pytest.fixture
def collector() -> Collector:
    no_cluster: Any = None
    return Collector({"east": no_cluster, "hub": no_cluster}, retry_backoff_s=1)


@pytest.fixture
def routes() -> Routes:
    return Routes()


@pytest.fixture
def service(collector: Collector, routes: Routes) -> AuditService:
    return AuditService(CONFIG, collector, routes.read, clock=lambda: NOW_MS)


def read_all(collector: Collector) -> None:
    for state in collector.states.values():
        state.ends_at(state.position)


async def test_the_audit_reports_no_topic_exact_while_a_cluster_was_not_read(
    service: AuditService, collector: Collector
) -> None:
    told(collector)
    collector.states["east"].ends_at(0)
    report = await service.report()
    assert (report["exact"], report["complete"]) == (False, False)
    assert report["hours"][0]["status"] == "exact"
    assert "hub: not read yet" in render(report)
    assert "no verdict is certain" in render(report)
    read_all(collector)
    report = await service.report()
    assert (report["exact"], report["complete"]) == (True, True)
    assert "certain" not in render(report)
    collector.states["hub"].fail("gone")
    report = await service.report()
    assert not report["exact"]
    assert "hub: gone" in render(report)


@pytest.mark.parametrize("is_silent", [True, False])
async def test_the_last_known_routes_hold_while_the_hub_is_away(
    service: AuditService, collector: Collector, routes: Routes, is_silent: bool, autojump_clock: trio.testing.MockClock
) -> None:
    told(collector)
    read_all(collector)
    await service.report()
    routes.is_silent, routes.error = is_silent, NetworkError("no answer from the hub")
    began = trio.current_time()
    report: dict[str, Any] = await service.report()
    assert trio.current_time() - began < 5
    assert "no answer" in report["routes_error"]
    assert (report["exact"], list(report["hours"][0]["stages"])) == (False, ["live", "replica"])
    assert "the mirror's table could not be read" in render(report)


async def test_unreadable_records_are_shown(service: AuditService, collector: Collector) -> None:
    collector.states["east"].unreadable = 3
    report = await service.report()
    assert report["clusters"]["east"]["unreadable"] == 3
    assert "east: 3 records" in render(report)


async def test_times_beyond_all_years_are_shown_too(service: AuditService, collector: Collector) -> None:
    told(collector, start_ms=1_700_000_000_000_000)
    (hour,) = (await service.report())["hours"]
    assert hour["hour"] == "1699999999200000 ms"


def test_metrics_say_which_clusters_are_up(collector: Collector) -> None:
    registry = CollectorRegistry()
    registry.register(AuditMetrics(collector.states))
    collector.states["east"].ends_at(3)
    collector.states["hub"].unreadable = 2

    def sample(name: str, cluster: str) -> float | None:
        return registry.get_sample_value(name, {"cluster": cluster})

    assert [sample("audit_cluster_up", name) for name in ("east", "hub")] == [1, 0]
    assert sample("audit_events_lag", "east") == 3
    assert sample("audit_events_unreadable_total", "hub") == 2
