"""The audit service: reads what all tiers counted; answers what is exact, under way, missing, doubled or changed."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import trio
from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from pipeline.audit.collector import Collector
from pipeline.audit.config import AuditConfig
from pipeline.audit.reconcile import HourReport, reconcile
from pipeline.audit.reconcile import Route as ReplicaRoute
from pipeline.client.cluster import Cluster
from pipeline.errors import PipelineError
from pipeline.model import Clock, HostPort
from pipeline.net.http import http_application, operations_routes, serve_http

ReadRoutes = Callable[[], Awaitable[Sequence[ReplicaRoute]]]
"""Says which replica partition is the copy of which source partition, as of now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHandle:
    """A running audit service."""

    http: HostPort


class AuditService:
    """Answers from the ledger."""

    def __init__(self, config: AuditConfig, collector: Collector, read_routes: ReadRoutes, clock: Clock) -> None:
        self._config = config
        self._collector = collector
        self._read_routes = read_routes
        self._clock = clock

    async def report(self, topic: str | None = None) -> dict[str, Any]:
        """All hours of one topic, or of all. Raises PipelineError when the routes cannot be read."""
        replica = self._config.replica[0].name if self._config.replica else None
        hours = reconcile(
            self._collector.ledger,
            live_clusters=[cluster.name for cluster in self._config.live],
            replica_cluster=replica,
            routes=await self._read_routes() if replica is not None else (),
            now_ms=self._clock(),
            grace_ms=self._config.grace_ms,
        )
        chosen = [hour for hour in hours if topic is None or hour.topic == topic]
        return {
            "exact": bool(chosen) and all(hour.status == "exact" for hour in chosen),
            "hours": [_hour_document(hour) for hour in chosen],
            "clusters": {
                name: {"events": state.position, "lag": state.lag, "error": state.error}
                for name, state in self._collector.states.items()
            },
        }


def _hour_document(report: HourReport) -> dict[str, Any]:
    return {
        "topic": report.topic,
        "hour": datetime.fromtimestamp(report.hour_ms / 1000, UTC).strftime("%Y-%m-%dT%H:00:00Z"),
        "status": report.status,
        "stages": {
            stage: {"records": c.records, "bytes": c.bytes, "batches": c.batches, "crc_sum": c.crc_sum}
            for stage, c in report.stages.items()
        },
        "findings": [
            {
                "cluster": finding.cluster,
                "source": str(finding.source),
                "replica": None if finding.replica is None else str(finding.replica),
                "after": finding.after,
                "at": finding.at,
                "status": finding.status,
                "records": finding.records,
                "text": str(finding),
            }
            for finding in report.findings
        ],
    }


def _routes(service: AuditService, metrics: CollectorRegistry) -> list[BaseRoute]:
    async def serve_report(request: Request) -> JSONResponse:
        try:
            return JSONResponse(await service.report(request.query_params.get("topic")))
        except PipelineError as error:
            return JSONResponse({"error": str(error)}, status_code=503)

    return [Route("/v1/report", serve_report), *operations_routes(metrics, lambda: None)]


async def run_audit(
    config: AuditConfig,
    clusters: Mapping[str, Cluster],
    *,
    read_routes: ReadRoutes,
    clock: Clock,
    metrics: CollectorRegistry,
    task_status: trio.TaskStatus[AuditHandle] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Collect and answer until cancelled. `clusters` holds a cluster for each of `config`, by name."""
    collector = Collector(clusters, config.retry_backoff_ms / 1000)
    lag = Gauge("audit_events_lag", "Events of a cluster not read yet.", ("cluster",), registry=metrics)
    for name, state in collector.states.items():
        lag.labels(name).set_function(lambda state=state: float("nan") if state.lag is None else state.lag)  # type: ignore[misc]
    service = AuditService(config, collector, read_routes, clock)
    async with trio.open_nursery() as nursery:
        http = await nursery.start(serve_http, http_application(_routes(service, metrics)), config.http_listen)
        task_status.started(AuditHandle(http=http))
        await collector.run()
