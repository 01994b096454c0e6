"""The service of `pipeline audit count`: a reader of headers, its publisher, and its HTTP server."""

from collections.abc import Iterator
from random import Random
from typing import Any
from uuid import UUID

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricSource
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pipeline.audit.counting.header_counter import HeaderCounter
from pipeline.audit.counting.header_reader import HeaderReader
from pipeline.audit.counting.publisher import open_publisher
from pipeline.audit.counting.read_back import FoundReports, read_back
from pipeline.audit.counting.reader_config import ReaderConfig
from pipeline.client.cluster.cluster import Cluster
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.model import Clock, HostPort
from pipeline.net.http.roles import RoleTable
from pipeline.net.http.server import operations_routes
from pipeline.net.http.service import HttpService, serve_service
from pipeline.net.http.users import Role
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.waiting import Waiting

READER_ROLES: RoleTable = {("GET", "/v1/status"): Role.READ}

logger = get_logger(__name__)


class ReaderService:
    """A reader of headers and what it reports. `reports` is the cluster whose audit topic takes the reports."""

    def __init__(
        self, config: ReaderConfig, source: Cluster, reports: Cluster, *, host: str, clock: Clock, rng: Random
    ) -> None:
        self._config = config
        self._reports = reports
        self._clock = clock
        self._rng = rng
        process = f"{host}/{UUID(int=rng.getrandbits(128), version=4)}"
        self._counter = HeaderCounter(config.datacenter, process, config.window_ms)
        self._found = FoundReports(config.datacenter, config.window_ms)
        self._reader = HeaderReader(config, source, self._counter, self._found, clock)
        self.waiting = Waiting()
        self.has_read_back = False
        self._not_read_back: str | None = None
        self.is_reported = False
        """True if the newest reports were published."""

    async def run(self) -> None:
        """Read back what was reported, then count and report, until cancelled."""
        reports = ",".join(map(str, self._config.reports or self._config.bootstrap))
        party = f"the cluster at {reports}, which takes the reports"
        await self.waiting.wait_for(party, self._read_back, lambda: self._not_read_back)
        logger.info("audit_count_ready", bootstrap=",".join(map(str, self._config.bootstrap)))
        async with (
            open_publisher(self._reports, self._counter, clock=self._clock, rng=self._rng) as publisher,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._reader.run)
            while True:
                await trio.sleep(self._config.interval_ms / 1000)
                self.is_reported = await publisher.publish()

    async def _read_back(self) -> None:
        """Read the audit topic. Without it all would be counted again; so a cluster that is away is waited for."""
        while not self.has_read_back:
            try:
                with unwrapped_errors():
                    await read_back(self._reports, self._found, timeout_s=self._config.timeout_ms / 1000)
                self.has_read_back = True
            except PipelineError as error:
                self._not_read_back = str(error)
                await trio.sleep(self._config.retry_backoff_ms / 1000)

    def status(self) -> dict[str, Any]:
        """Return the document of `/v1/status`."""
        return {**self._reader.status(), "has_read_back": self.has_read_back, "is_reported": self.is_reported}

    def trouble(self) -> str | None:
        """Return a sentence about what keeps hours from being complete; None if there is nothing."""
        status = self.status()
        if not self.has_read_back:
            return "the audit topic has not been read back yet: see the log for its cluster's error"
        if status["error"]:
            return f"the topics of {self._config.datacenter} are not known: {status['error']}"
        if status["halted"]:
            first = status["halted"][0]
            return f"{status['halted_partitions']} partitions are not counted, such as {first['reason']}"
        return None if self.is_reported else "the newest counts are not reported yet: see the log for the reason"


class ReaderMetrics(MetricSource):
    """Metrics of a reader, computed when Prometheus asks."""

    def __init__(self, service: ReaderService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Return the present values."""
        status = self._service.status()
        values = {
            "audit_reader_up": ("1 if the cluster's topics are known.", float(status["error"] is None)),
            "audit_reader_reported": ("1 if the newest counts are reported.", float(status["is_reported"])),
            "audit_reader_partitions": ("Partitions whose records are counted.", float(status["partitions"])),
            "audit_reader_halted_partitions": (
                "Partitions that are not counted, because they cannot be read.",
                float(status["halted_partitions"]),
            ),
            "audit_reader_lag_seconds": (
                "Time for which the partition that is furthest behind has not been read to its end.",
                status["lag_ms"] / 1000,
            ),
        }
        for name, (text, value) in values.items():
            yield GaugeMetricFamily(name, text, value=value)


async def run_reader_service(
    config: ReaderConfig,
    source: Cluster,
    reports: Cluster,
    *,
    host: str,
    clock: Clock,
    rng: Random,
    metrics: CollectorRegistry,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Count `source` and report to the audit topic of `reports` until cancelled. Reports the HTTP server's address."""
    service = ReaderService(config, source, reports, host=host, clock=clock, rng=rng)
    metrics.register(ReaderMetrics(service))

    async def serve_status(_request: Request) -> JSONResponse:
        return JSONResponse(service.status())

    routes = [
        Route("/v1/status", serve_status),
        *operations_routes(metrics, lambda: None, lambda: service.waiting.problem, service.trouble),
    ]
    http = HttpService(name="audit-reader", routes=routes, roles=READER_ROLES, metrics=metrics)
    async with trio.open_nursery() as nursery:
        address: HostPort = await nursery.start(serve_service, http, config.http_listen, config.http)
        task_status.started(address)
        await service.run()
