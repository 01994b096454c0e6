"""The audit service: reads the counts of all tiers, and serves their comparison over HTTP."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricSource
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pipeline.audit.collector import Collector, ReadingState
from pipeline.audit.config import AuditConfig
from pipeline.audit.reconcile import HourReport, reconcile
from pipeline.audit.reconcile import Route as ReplicaRoute
from pipeline.client.cluster.cluster import Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.model import Clock, HostPort
from pipeline.net.http import http_application, operations_routes, serve_http

ReadRoutes = Callable[[], Awaitable[Sequence[ReplicaRoute]]]
"""Reads which replica partition is the copy of which source partition. May be cancelled at any moment."""

ROUTES_TIMEOUT_S = 3.0
"""Time that a report waits for a replica cluster that does not answer."""

logger = get_logger(__name__)


class AuditService:
    """Makes reports from the ledger."""

    def __init__(self, config: AuditConfig, collector: Collector, read_routes: ReadRoutes, clock: Clock) -> None:
        self._config = config
        self._collector = collector
        self._read_routes = read_routes
        self._clock = clock
        self._routes: Sequence[ReplicaRoute] = ()
        self._routes_turn = trio.Lock()

    async def report(self, topic: str | None = None) -> dict[str, Any]:
        """Return all hours of one topic, or of all, with the routes as last read."""
        replica = self._config.replica[0].name if self._config.replica else None
        states = self._collector.states
        routes_error = None if replica is None else await self._read_on_routes()
        hours = reconcile(
            self._collector.ledger,
            live_clusters=[cluster.name for cluster in self._config.live],
            replica_cluster=replica,
            routes=self._routes,
            now_ms=self._clock(),
            grace_ms=self._config.grace_ms,
            pending_max_ms=self._config.pending_max_ms if replica is not None and states[replica].is_complete else None,
        )
        chosen = [hour for hour in hours if topic is None or hour.topic == topic]
        is_complete = routes_error is None and all(state.is_complete for state in states.values())
        return {
            "exact": is_complete and bool(chosen) and all(hour.status == "exact" for hour in chosen),
            "complete": is_complete,
            "hours": [_hour_document(hour) for hour in chosen],
            "routes_error": routes_error,
            "clusters": {
                name: {
                    "events": state.position,
                    "lag": state.lag,
                    "complete": state.is_complete,
                    "unreadable": state.unreadable,
                    "error": state.problem,
                }
                for name, state in states.items()
            },
        }

    async def _read_on_routes(self) -> str | None:
        """Read the routes again. If that fails, return the reason and keep the routes as last read."""
        try:
            with trio.move_on_after(ROUTES_TIMEOUT_S) as scope:
                async with self._routes_turn:
                    self._routes = await self._read_routes()
            if scope.cancelled_caught:
                raise DeadlineExceededError(f"no answer within {ROUTES_TIMEOUT_S:.0f} s")
        except PipelineError as error:
            logger.warning("routes_not_read", error=str(error))
            return str(error)
        return None


class AuditMetrics(MetricSource):
    """Metrics of reading each cluster, computed when Prometheus asks."""

    def __init__(self, states: Mapping[str, ReadingState]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """Return the present values. A cluster that cannot be read has no lag."""
        up = GaugeMetricFamily("audit_cluster_up", "1 if the cluster's events can be read.", labels=["cluster"])
        lag = GaugeMetricFamily("audit_events_lag", "Audit events not read yet.", labels=["cluster"])
        unreadable = CounterMetricFamily(
            "audit_events_unreadable",
            "Audit records that this version cannot read.",
            labels=["cluster"],
        )
        for name, state in self._states.items():
            up.add_metric([name], float(state.error is None))
            lag.add_metric([name], float("nan") if state.lag is None else state.lag)
            unreadable.add_metric([name], state.unreadable)
        yield from (up, lag, unreadable)


def _hour_name(start_ms: int) -> str:
    """Return ISO 8601, or milliseconds for a year that it cannot express: producers may send any time."""
    try:
        return datetime.fromtimestamp(start_ms / 1000, UTC).strftime("%Y-%m-%dT%H:00:00Z")
    except (ValueError, OverflowError, OSError):
        return f"{start_ms} ms"


def _hour_document(report: HourReport) -> dict[str, Any]:
    return {
        "topic": report.topic,
        "hour": _hour_name(report.hour_ms),
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


async def run_audit(
    config: AuditConfig,
    clusters: Mapping[str, Cluster],
    *,
    read_routes: ReadRoutes,
    clock: Clock,
    metrics: CollectorRegistry,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Collect and answer until cancelled. Reports the address of its HTTP server.

    `clusters` holds a cluster for each one of `config`, by name.
    """
    collector = Collector(clusters, config.retry_backoff_ms / 1000)
    metrics.register(AuditMetrics(collector.states))
    service = AuditService(config, collector, read_routes, clock)

    async def serve_report(request: Request) -> JSONResponse:
        return JSONResponse(await service.report(request.query_params.get("topic")))

    routes = [Route("/v1/report", serve_report), *operations_routes(metrics, lambda: None)]
    async with trio.open_nursery() as nursery:
        task_status.started(await nursery.start(serve_http, http_application(routes), config.http_listen))
        await collector.run()
