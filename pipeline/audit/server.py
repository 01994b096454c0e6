"""The audit service: reads the counts of all tiers, judges them, and serves documents, page and metrics over HTTP."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute

from pipeline.audit.api import API_ROLES, AuditApi, Narrow
from pipeline.audit.collecting.collector import EventCollector
from pipeline.audit.collecting.file_shelf import shelves_in
from pipeline.audit.collecting.judging import Judgements, ReadExpectations
from pipeline.audit.collecting.snapshots import snapshots_in
from pipeline.audit.config import AuditConfig
from pipeline.audit.judgement.verdicts import Expectations
from pipeline.audit.metrics import AuditMetrics
from pipeline.audit.page.audit_page import PAGE_ROLES
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.diagnostics import get_logger
from pipeline.model import Clock, HostPort
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, serve_service
from pipeline.net.waiting import Waiting

ANSWER_TIMEOUT_S = 5.0
LOOK_INTERVAL_S = 0.5

logger = get_logger(__name__)


async def run_audit(
    config: AuditConfig,
    clusters: Mapping[str, Cluster],
    *,
    read_expectations: ReadExpectations,
    narrow: Narrow,
    clock: Clock,
    metrics: CollectorRegistry,
    page: Sequence[BaseRoute] = (),
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Collect, judge and answer until cancelled. Reports the address of its HTTP server.

    `clusters` holds a cluster for each one of `config`, by name.
    """
    live = [cluster.name for cluster in config.live]
    replica = config.replica[0].name if config.replica else None
    shelves = shelves_in(config.spill_folder, config.spill_max_bytes)
    snapshots = snapshots_in(config.snapshot_folder)
    collector = EventCollector(clusters, config.retry_backoff_ms / 1000, clock, shelves, snapshots)
    judgements = Judgements(
        collector,
        read_expectations,
        Expectations(live_clusters=live, replica_cluster=replica),
        clock=clock,
        grace_ms=config.grace_ms,
        pending_max_ms=config.pending_max_ms,
    )
    figures = AuditMetrics(collector, judgements, replica, clock)
    metrics.register(figures)
    api = AuditApi(
        collector,
        judgements,
        narrow,
        live_clusters=live,
        replica_cluster=replica,
        grace_ms=config.grace_ms,
        clock=clock,
    )
    waiting = Waiting()
    operations = operations_routes(metrics, lambda: None, lambda: waiting.problem, judgements.trouble)
    routes = [*page, *api.routes(), *operations]
    http = HttpService(name="audit", routes=routes, roles={**PAGE_ROLES, **API_ROLES}, metrics=metrics)
    async with trio.open_nursery() as nursery:
        address: HostPort = await nursery.start(serve_service, http, config.http_listen, config.http)
        task_status.started(address)
        nursery.start_soon(judgements.run)
        nursery.start_soon(figures.run)
        nursery.start_soon(collector.run)
        names = {cluster.name: ",".join(map(str, cluster.bootstrap)) for cluster in config.clusters}
        party = ", ".join(f"{name} at {servers}" for name, servers in names.items())
        party = party if len(names) == 1 else f"one of the clusters {party}"
        await waiting.wait_for(party, partial(_reach_one, clusters.values()), lambda: _errors_of(collector))
        logger.info("audit_ready", http=str(address), clusters=names)


async def _reach_one(clusters: Iterable[Cluster]) -> None:
    """Return once one of the clusters has answered; the others may be away, and their hours are unknown."""

    async def reach(cluster: Cluster) -> None:
        while True:
            with suppress(*UNREACHABLE):
                await cluster.refresh(timeout_s=ANSWER_TIMEOUT_S)
                nursery.cancel_scope.cancel()
            await trio.sleep(LOOK_INTERVAL_S)

    async with trio.open_nursery() as nursery:
        for cluster in clusters:
            nursery.start_soon(reach, cluster)


def _errors_of(collector: EventCollector) -> str:
    return "; ".join(f"{name}: {state.error}" for name, state in collector.states.items() if state.error is not None)
