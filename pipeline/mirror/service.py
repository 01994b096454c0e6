"""The mirror service: the hub with what all sources share, and a mirror of each source."""

from collections.abc import Mapping
from random import Random
from typing import Any

import structlog
import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import PipelineError
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.copying.resume import Resumption
from pipeline.mirror.groups.offset_copier import group_offset_copiers
from pipeline.mirror.hub import Hub
from pipeline.mirror.metrics import MirrorMetrics
from pipeline.mirror.page.status_page import StatusPage
from pipeline.mirror.source_mirror import FIRST_ANSWER_TIMEOUT_S, SourceMirror
from pipeline.mirror.status import MirrorStatus
from pipeline.mirror.topics.flows import flows_of
from pipeline.model import Clock, HostPort
from pipeline.net.http import http_application, serve_http
from pipeline.net.nurseries import unwrapped_errors

logger = structlog.get_logger()


class MirrorService:
    """A mirror of several sources into one destination."""

    def __init__(
        self,
        config: MirrorConfig,
        sources: Mapping[str, Cluster],
        destination: Cluster,
        *,
        clock: Clock,
        rng: Random,
        metrics: MirrorMetrics,
    ) -> None:
        self._config = config
        flows = flows_of(config)
        self._hub = Hub(config, flows, destination, clock=clock, rng=rng, metrics=metrics)
        self.gaps = self._hub.gaps
        self.sources = {
            name: SourceMirror(name, source, self._hub, config, flows[name]) for name, source in sources.items()
        }
        copies = {name: source.copies for name, source in self.sources.items()}
        states = {name: each.states for name, each in copies.items()}
        groups = group_offset_copiers(config, sources, destination, states, clock=clock, rng=rng, metrics=metrics)
        for name, copier in groups.items():
            self.sources[name].groups = copier
        self.state = MirrorStatus(
            copies,
            {name: copier.status for name, copier in groups.items()},
            {name: source.contact for name, source in self.sources.items()},
            metrics,
            clock=clock,
            fetch_wait_s=config.fetch_max_wait_ms / 1000,
        )
        self.state.topics, self.state.flows = self._hub.replicas.problems, self._hub.selected.flows

    async def run(self) -> None:
        """Mirror until cancelled."""
        await self._open_hub()
        async with trio.open_nursery() as nursery:
            for source in self.sources.values():
                nursery.start_soon(source.run)

    async def _open_hub(self) -> None:
        timeout_s = FIRST_ANSWER_TIMEOUT_S
        while True:
            try:
                with unwrapped_errors():
                    await self._hub.open(timeout_s=timeout_s)
                break
            except PipelineError as error:
                self.state.error = str(error)
                logger.warning("destination_not_ready", error=str(error))
                await trio.sleep(self._config.retry_backoff_ms / 1000)
            timeout_s = self._config.produce_timeout_ms / 1000
        self.state.error = None

    @property
    def resumption(self) -> Resumption:
        """Resumption of this mirror's halted partitions."""
        return Resumption([source.copies for source in self.sources.values()], self.gaps, clock=self._hub.clock)

    def status(self) -> dict[str, Any]:
        """Return the document of `/v1/status`."""
        return self.state.document()


async def run_mirror(
    config: MirrorConfig,
    sources: Mapping[str, Cluster],
    destination: Cluster,
    *,
    clock: Clock,
    rng: Random,
    metrics: CollectorRegistry,
    task_status: trio.TaskStatus[HostPort] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mirror the sources into the destination until cancelled. Reports the address of its HTTP server.

    `sources` holds a cluster for each source of `config`, by name. Raises ConfigurationError for a bad pattern.
    """
    service = MirrorService(config, sources, destination, clock=clock, rng=rng, metrics=MirrorMetrics(metrics))

    page = StatusPage(service.state, service.gaps, clock=clock)
    application = http_application([*page.routes(), *service.state.routes(), service.resumption.route()])
    async with trio.open_nursery() as nursery:
        address: HostPort = await nursery.start(serve_http, application, config.http_listen)
        logger.info(
            "mirror_ready",
            http=str(address),
            destination=",".join(map(str, config.destination)),
            sources={source.name: ",".join(map(str, source.bootstrap)) for source in config.sources},
            flows=[flow["name"] for flow in service.state.flows()],
        )
        nursery.start_soon(page.run)
        task_status.started(address)
        await service.run()
